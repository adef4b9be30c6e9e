"""A client as a process of its own: `python -m tests.faults.caller SERVERS LOG NAME SEED LANES [MOST]`. It keeps a
number of journeys under way and logs every acknowledgement before its next call. One that is started again after it was
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
from typing import TypeVar

import msgspec

from kagzi import Client
from kagzi.errors import KagziError, ServerError
from tests.faults import acknowledgements
from tests.survival.program import Plan, journey

T = TypeVar("T")
# Sleeps both below and above what a worker waits out in place.
_RESTS = ("0s", "150ms", "2100ms")
_AGAIN = 0.1


class Caller:
    """`lanes` journeys at a time, `most` in all."""

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

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._lane())

    async def _lane(self) -> None:
        while self._left:
            await self._journey(self._left.pop(0))
        for name in self._names:
            if self._stop.exists():
                return
            self._log.note("wish", name)
            await self._journey(name)

    async def _journey(self, name: str) -> None:
        try:
            await self._travel(name)
        except KagziError as error:
            # Its run has ended otherwise than well, which the checker finds in the database too.
            self._log.note("surfaced", name, result=f"{type(error).__name__}: {error}")

    async def _travel(self, name: str) -> None:
        plan = Plan(name, rest=random.Random(name).choice(_RESTS))
        handle = await self._insist(name, lambda: self._client.start(journey, plan, id=name, dedupe="forever"))
        self._log.note("start", name, handle.run_id)
        await asyncio.sleep(self._chance.uniform(0, 1))
        sent = str(uuid.uuid5(uuid.NAMESPACE_URL, name))
        await self._insist(name, lambda: handle.signal("word", f"the word for {name}", id=sent))
        self._log.note("signal", name, handle.run_id, sent)
        result = await self._insist(name, lambda: handle.result(timeout=600))
        self._log.note("result", name, handle.run_id, result=msgspec.to_builtins(result))

    async def _insist(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Asks until there is an answer; what comes through of an outage beyond the client's patience is noted."""
        while True:
            try:
                return await call()
            except ServerError as error:
                self._log.note("surfaced", name, result=f"{type(error).__name__}: {error}")
                await asyncio.sleep(_AGAIN)


async def main(servers: str, log: str, name: str, seed: str, lanes: str, most: str = "1000000") -> None:
    async with Client(servers) as client:
        await Caller(client, Path(log), name, seed, int(lanes), int(most)).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
