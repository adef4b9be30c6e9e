"""The nemesis: one fault after another, chosen by a seed, over real processes. It waits after each until the work goes
on, for that is the recovery, and writes down when leases could be lost, so that the checker can tell a reason from an
excuse. The same seed chooses the same faults in the same order; what they meet is the machine's business.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from tests.faults.estate import LEASE, Estate
from tests.faults.program import blind
from tests.survival.load import until

_GOES_ON_WITHIN = 60.0
# What a server is armed with now and then: it dies where nobody could time it from outside, or meets what a busy
# database says.
_ARMS = (
    "transaction.committed=crash@{visit}",
    "transaction.commit=crash@{visit}",
    "batcher.answer=crash@{visit}",
    "dispatcher.deliver=crash@{visit}",
    "transaction.commit=error:40001%5; transaction.committed=error:08006%5",
    "transaction.commit=error:40P01%5; transaction.committed=error:57P01%5",
    "stream.frame=stall:0.2%3",
)


class Nemesis:
    """Does harm to an estate. `injected` counts by kind; `recoveries` are in seconds, with their faults."""

    def __init__(self, estate: Estate) -> None:
        self.estate = estate
        self._chance = random.Random(estate.seed)
        self.injected: Counter[str] = Counter()
        self.recoveries: list[tuple[float, str]] = []
        self.violations: list[str] = []
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "kill a worker": self._kill_worker,
            "kill a changing worker": self._kill_changer,
            "stop a worker": self._stop_worker,
            "drain a worker": self._drain_worker,
            "kill a server": self._kill_server,
            "stop a server": self._stop_server,
            "arm a server": self._arm_server,
            "stop the database at once": self._restart_database,
            "kill the database": self._crash_database,
            "no database": self._no_database,
            "kill sessions": self._kill_sessions,
            "kill a client": self._kill_client,
            "cut a wire": self._cut,
            "black hole": self._black_hole,
            "half-open": self._half_open,
            "slow wire": self._slow,
            "late wire": self._late,
            "refused connections": self._refuse,
            "lost replies": self._lose_replies,
        }

    async def strike(self) -> None:
        """One fault, from its beginning until the work goes on."""
        name = self._next()
        began = time.monotonic_ns()
        await self._faults[name]()
        await self._mend()
        if not name.endswith(("worker", "client")):
            self.estate.trouble(began)
        self.injected[name] += 1
        await self._goes_on(name)

    def _next(self) -> str:
        """Each kind once before any comes again, so that a short run is a broad one."""
        least = min(self.injected[name] for name in self._faults)
        return self._chance.choice([name for name in self._faults if self.injected[name] == least])

    async def _goes_on(self, name: str) -> None:
        before, healed = self.estate.progress(), time.monotonic()
        try:
            await until(lambda: self.estate.progress() > before, _GOES_ON_WITHIN)
        except TimeoutError:
            self.violations.append(f"nothing went on within {_GOES_ON_WITHIN:.0f} s of: {name}")
        self.recoveries.append((time.monotonic() - healed, name))
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))

    async def _mend(self) -> None:
        """What a fault left broken is whole again; a server that died of its arms starts without them."""
        estate = self.estate
        for wire in estate.wires.values():
            wire.heal()
        if not estate.postgres.running:
            await asyncio.to_thread(estate.postgres.start)
        for station in estate.stations:
            if not station.running:
                station.arm("")
                await asyncio.to_thread(station.start)

    async def _rest(self, least: float, most: float) -> None:
        await asyncio.sleep(self._chance.uniform(least, most))

    async def _berth(self) -> str:
        """A worker that has got to work."""
        await until(lambda: any(worker.connected for worker in self.estate.berths.values()), _GOES_ON_WITHIN)
        return self._chance.choice([name for name, worker in self.estate.berths.items() if worker.connected])

    async def _kill_worker(self) -> None:
        berth = await self._berth()
        self.estate.crew.kill(self.estate.berths[berth])
        await self.estate.hire(berth)

    async def _kill_changer(self) -> None:
        """Whoever has changed the outside and not said so yet."""
        with suppress(TimeoutError):
            changer = await self.estate.changer(blind.name, _GOES_ON_WITHIN)
            for berth, worker in list(self.estate.berths.items()):
                if worker.name == changer:
                    self.estate.crew.kill(worker)
                    await self.estate.hire(berth)

    async def _stop_worker(self) -> None:
        worker = self.estate.berths[await self._berth()]
        began = time.monotonic_ns()
        worker.send(signal.SIGSTOP)
        await asyncio.sleep(self._chance.choice((1.0, LEASE + 2)))
        worker.send(signal.SIGCONT)
        self.estate.trouble(began, worker.name)

    async def _drain_worker(self) -> None:
        berth = await self._berth()
        worker = self.estate.berths[berth]
        self.estate.drained.add(worker.name)
        worker.send(signal.SIGTERM)
        await until(lambda: not worker.running, _GOES_ON_WITHIN)
        await self.estate.hire(berth)

    async def _kill_server(self) -> None:
        self._chance.choice(self.estate.stations).kill()
        await self._rest(0, 2)

    async def _stop_server(self) -> None:
        station = self._chance.choice(self.estate.stations)
        station.send(signal.SIGSTOP)
        await self._rest(0.5, 4)
        station.send(signal.SIGCONT)

    async def _arm_server(self) -> None:
        station = self._chance.choice(self.estate.stations)
        station.kill()
        station.arm(self._chance.choice(_ARMS).format(visit=self._chance.randint(1, 60)))
        # One that dies while it starts has met its fault.
        with suppress(AssertionError):
            await asyncio.to_thread(station.start)
        station.arm("")
        await self._rest(2, 4)

    async def _restart_database(self) -> None:
        await asyncio.to_thread(self.estate.postgres.stop, immediate=True)

    async def _crash_database(self) -> None:
        await asyncio.to_thread(self.estate.postgres.crash)

    async def _no_database(self) -> None:
        await asyncio.to_thread(self.estate.postgres.stop, immediate=True)
        await self._rest(1, LEASE + 2)

    async def _kill_sessions(self) -> None:
        """Every session of the servers, those that listen included."""
        connection = await asyncpg.connect(self.estate.postgres.url)
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and pid <> pg_backend_pid()"
        )
        await connection.close()

    async def _kill_client(self) -> None:
        name = self._chance.choice(sorted(self.estate.clients))
        self.estate.kill_client(name)
        await self.estate.call(name)

    def _wire(self) -> str:
        return self._chance.choice(sorted(self.estate.wires))

    async def _cut(self) -> None:
        self.estate.wires[self._wire()].cut()

    async def _black_hole(self) -> None:
        self.estate.wires[self._wire()].black_hole()
        await self._rest(0.5, 4)

    async def _half_open(self) -> None:
        self.estate.wires[self._wire()].half_open()
        await self._rest(0.5, 4)

    async def _slow(self) -> None:
        self.estate.wires[self._wire()].pace = self._chance.choice((4_000, 40_000))
        await self._rest(1, 4)

    async def _late(self) -> None:
        self.estate.wires[self._wire()].delay = self._chance.uniform(0.02, 0.3)
        await self._rest(1, 4)

    async def _refuse(self) -> None:
        wire = self.estate.wires[self._wire()]
        wire.refuses = True
        wire.cut()
        await self._rest(0.5, 3)

    async def _lose_replies(self) -> None:
        for name in sorted(self.estate.wires):
            if self._chance.random() < 0.5:
                self.estate.wires[name].lose_reply()
        await self._rest(0.5, 1.5)
