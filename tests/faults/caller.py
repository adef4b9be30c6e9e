"""A client as a process of its own: `python -m tests.faults.caller SERVERS LOG NAME SEED LANES [MOST]`. It keeps a
number of errands under way and logs every acknowledgement before its next call. One that is started again after it was
killed goes on with what its log says it had set out for, by the same names. A file LOG.stop lets it finish what is
under way and end.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kagzi import Client, Handle, Input
from kagzi.errors import KagziError, RunCancelled, ServerError
from tests.faults import acknowledgements
from tests.faults.program import blind, patrol, purchase, seeing
from tests.survival.program import Plan, journey

T = TypeVar("T")
# A schedule that never fires by itself.
BELL = "bell"
# Sleeps both below and above what a worker waits out in place.
_RESTS = ("0s", "150ms", "2100ms")
_AGAIN = 0.1


class Caller:
    """`lanes` errands at a time, `most` in all."""

    def __init__(self, client: Client, log: Path, name: str, seed: str, lanes: int, most: int) -> None:
        before = acknowledgements.read([log])
        self._client = client
        self._log = acknowledgements.Log(log, name)
        self._chance = random.Random(f"{seed} {name} {len(before)}")
        self._lanes = lanes
        self._left = acknowledgements.unfinished(before)
        begun = sum(line.what == "wish" for line in before)
        self._names = (f"{name}-{number}" for number in itertools.islice(itertools.count(begun + 1), most - begun))
        self._stop = acknowledgements.stop(log)
        # How often each comes up.
        self._kinds = {self._travel: 5, self._end: 2, self._buy: 2, self._publish: 2, self._ring: 1}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._lane())

    async def _lane(self) -> None:
        while self._left:
            await self._errand(self._left.pop(0))
        for name in self._names:
            if self._stop.exists():
                return
            self._log.note("wish", name)
            await self._errand(name)

    async def _errand(self, name: str) -> None:
        # The name decides, so that whoever goes on after a crash goes on with the same.
        [kind] = random.Random(name).choices(list(self._kinds), list(self._kinds.values()))
        try:
            await kind(name)
        except KagziError as error:
            # Its run has ended otherwise than well, which the checker finds in the database too.
            self._log.note("surfaced", name, result=f"{type(error).__name__}: {error}")

    async def _travel(self, name: str) -> None:
        """A journey, and the signal that it waits for."""
        handle = await self._start(name, journey, Plan(name, rest=random.Random(name).choice(_RESTS)))
        await asyncio.sleep(self._chance.uniform(0, 1))
        sent = _uuid(name)
        await self._insist(name, lambda: handle.signal("word", f"the word for {name}", id=sent))
        self._log.note("signal", name, handle.run_id, sent)
        result = await self._insist(name, lambda: handle.result(timeout=600))
        self._log.note("result", name, handle.run_id, result=msgspec.to_builtins(result))

    async def _end(self, name: str) -> None:
        """A patrol that is cancelled or terminated, before it begins or while it runs or after it has ended."""
        handle = await self._start(name, patrol, name)
        await asyncio.sleep(self._chance.choice((0, 1, 2, 8)) * self._chance.random())
        end = handle.cancel if random.Random(name).random() < 0.7 else handle.terminate
        status = str(await self._insist(name, lambda: end("enough")))
        self._log.note("status", name, handle.run_id, result=status)
        try:
            await self._insist(name, lambda: handle.result(timeout=600))
            status = "COMPLETED"
        except RunCancelled:
            status = "CANCELLED"
        self._log.note("status", name, handle.run_id, result=status)
        self._log.note("result", name, handle.run_id)

    async def _buy(self, name: str) -> None:
        """A change of the outside by a workflow."""
        handle = await self._start(name, purchase, name)
        result = await self._insist(name, lambda: handle.result(timeout=600))
        self._log.note("result", name, handle.run_id, result=result)

    async def _publish(self, name: str) -> None:
        """An event from outside."""
        automation = random.Random(name).choice((seeing.name, blind.name))
        source = Input("caller", "letter", name)
        publish = self._client.automations.publish
        await self._insist(name, lambda: publish(automation, "mail", id=name, input=source))
        self._log.note("publish", name, result=automation)
        self._log.note("result", name)

    async def _ring(self, name: str) -> None:
        """A schedule started by hand, that may be paused meanwhile, and is changed."""
        bell = self._client.schedules.handle(BELL)
        turn = random.Random(name).choice((bell.pause, bell.resume, lambda: bell.update(max_catchup=len(name))))
        await self._insist(name, turn)
        rung = await self._insist(name, lambda: bell.trigger(run_id=_uuid(name)))
        assert rung is not None
        self._log.note("trigger", name, rung.run_id)
        result = await self._insist(name, lambda: rung.result(timeout=600))
        self._log.note("result", name, rung.run_id, result=result)

    async def _start(self, name: str, workflow: Any, given: Any) -> Handle[Any]:
        handle: Handle[Any] = await self._insist(
            name, lambda: self._client.start(workflow, given, id=name, dedupe="forever")
        )
        self._log.note("start", name, handle.run_id)
        return handle

    async def _insist(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Asks until there is an answer; what comes through of an outage beyond the client's patience is noted."""
        while True:
            try:
                return await call()
            except ServerError as error:
                self._log.note("surfaced", name, result=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_AGAIN)


def _uuid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


async def main(servers: str, log: str, name: str, seed: str, lanes: str, most: str = "1000000") -> None:
    async with Client(servers) as client:
        await Caller(client, Path(log), name, seed, int(lanes), int(most)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
