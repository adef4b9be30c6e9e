"""A campaign: an estate at work, a nemesis for so many faults or so many seconds, and then those who judge. What they
found is a summary of figures; nothing is wrong when no violation is among them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kagzi import Client
from kagzi.embedded import Embedded
from tests.faults import acknowledgements, books, conduct, timetable
from tests.faults.acknowledgements import Line
from tests.faults.estate import LEASE, Estate
from tests.faults.nemesis import Nemesis
from tests.faults.person import Person
from tests.survival import checker
from tests.survival.load import until_async
from tests.survival.record import rows

WORKERS = 3
_FINISHES_WITHIN = 180.0


@dataclass(frozen=True, slots=True)
class Summary:
    """What was seen."""

    seed: int
    seconds: float
    runs: int
    injected: dict[str, int]
    violations: list[str]
    slowest: tuple[float, str]
    reclaim: float
    repeats: int
    lost_leases: int
    standstills: int
    surfaced: int
    slots: int
    cancelled: int
    # Of automations: events consumed, changes of the outside, and changes that a person had to answer for.
    consumed: int
    changes: int
    answered: int

    @property
    def faults(self) -> int:
        return sum(self.injected.values())

    def __str__(self) -> str:
        took, fault = self.slowest
        return (
            f"seed {self.seed}, {self.seconds:.0f} s: {self.runs} runs, {self.slots} slots, {self.cancelled} runs "
            f"cancelled, {self.consumed} events consumed, {self.changes} changes outside ({self.answered} answered for "
            f"by a person), {self.faults} faults "
            f"injected ({', '.join(f'{name} {count}' for name, count in sorted(self.injected.items()))}), "
            f"{len(self.violations)} violations, slowest recovery {took:.1f} s ({fault}), slowest reclaim "
            f"{self.reclaim:.1f} s, {self.repeats} steps again after a kill, {self.lost_leases} after a lost lease, "
            f"{self.standstills} begun across a standstill, "
            f"{self.surfaced} errors surfaced to clients"
        )


async def wage(
    postgres: Embedded,
    directory: Path,
    seed: int,
    *,
    faults: int | None = None,
    seconds: float | None = None,
    watch: Callable[[Nemesis], Awaitable[None]] | None = None,
) -> Summary:
    """One campaign, of so many faults or for so long; `watch` sees it after each."""
    began = time.monotonic()
    async with Estate(postgres, directory, seed) as estate:
        # Past every wire, and all the servers one after the other: a person finds a way.
        async with Client(",".join(station.address for station in estate.stations)) as client:
            first = await timetable.begin(client)
            await estate.staff(WORKERS)
            await estate.open()
            person = Person(client, estate.outside)
            attending = asyncio.create_task(person.attend())
            nemesis = Nemesis(estate)
            while nemesis.injected.total() != faults and (seconds is None or time.monotonic() - began < seconds):
                await nemesis.strike()
                if watch is not None:
                    await watch(nemesis)
            violations = nemesis.violations + await estate.finish(_FINISHES_WITHIN)
            violations += [f"{name} has died" for name, worker in estate.berths.items() if not worker.running]
            await timetable.end(client)
            violations += await _settle(postgres.url, client)
            attending.cancel()
            with suppress(asyncio.CancelledError):
                await attending
        return await _judge(estate, nemesis, person, violations, await timetable.slots(postgres.url, first), began)


async def _settle(url: str, client: Client) -> list[str]:
    """Every event that was published so far is consumed, then automations rest, and no run is left under way. Answers
    what did not come to that.
    """
    waiting = "select 1 from kagzi.deliveries where status in ('PENDING', 'RESERVED') and published_at <= $1 limit 1"
    live = (
        "select workflow_type, run_id, status, automation from kagzi.workflow_runs "
        "where status in ('PENDING', 'RUNNING', 'SLEEPING')"
    )
    [(now,)] = await rows(url, "select now()")

    async def consumed() -> bool:
        return not await rows(url, waiting, now)

    async def ended() -> bool:
        return not await rows(url, live)

    try:
        await until_async(consumed, _FINISHES_WITHIN)
        async for info in client.automations.list():
            await client.automations.pause(info.name)
        await until_async(ended, _FINISHES_WITHIN)
    except TimeoutError:
        left = await rows(url, waiting.replace("select 1", "select automation, consumer, event_id, status"), now)
        return [f"still waiting: {one}" for one in (left + await rows(url, live))[:10]]
    return []


async def _judge(
    estate: Estate, nemesis: Nemesis, person: Person, violations: list[str], slots: timetable.Slots, began: float
) -> Summary:
    url, lines, entries = estate.postgres.url, estate.acknowledged(), estate.crew.entries()
    found = await checker.check(url, acknowledgements.told(lines), entries, estate.crew.deaths, estate.troubles, LEASE)
    seen = await conduct.watch(url, entries, estate.crew.deaths, estate.drained, estate.troubles, LEASE)
    kept = estate.books()
    violations += [f"{name} was never told of its end" for name in acknowledgements.unfinished(lines)]
    violations += [*person.puzzled, *found.violations, *seen.violations, *slots.violations]
    violations += await books.audit(url, kept, acknowledgements.published(lines), estate.troubles)
    [(consumed,)] = await rows(url, "select count(*) from kagzi.deliveries where status = 'CONSUMED'")
    return Summary(
        seed=estate.seed,
        seconds=time.monotonic() - began,
        runs=_count(lines, "result") + slots.count,
        injected=dict(nemesis.injected),
        violations=violations,
        slowest=max(nemesis.recoveries, default=(0.0, "none")),
        reclaim=max(seen.reclaims, default=0.0),
        repeats=len(found.repeats),
        lost_leases=found.lost_leases,
        standstills=found.standstills,
        surfaced=_count(lines, "surfaced"),
        slots=slots.count,
        cancelled=seen.cancelled,
        consumed=consumed,
        changes=len(kept.rows),
        answered=person.answered,
    )


def _count(lines: list[Line], what: str) -> int:
    return sum(line.what == what for line in lines)
