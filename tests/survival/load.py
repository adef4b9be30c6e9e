"""Journeys in flight: a number of them at any time until it is told to stop, each with its signal, and everything that
was acknowledged on the way kept for the checker.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from kagzi import Client
from tests.survival.checker import Told
from tests.survival.program import Plan, journey

# Sleeps both below and above what a worker waits out in place.
_RESTS = ("0s", "150ms", "2100ms")


class Load:
    """`lanes` journeys at a time."""

    def __init__(self, client: Client, chance: random.Random, lanes: int, patience: float = 60) -> None:
        self._client = client
        self._chance = chance
        self._lanes = lanes
        self._patience = patience
        self._numbers = itertools.count(1)
        self._stopping = False
        self.told: list[Told] = []

    def stop(self) -> None:
        """No more are started; those in flight go on."""
        self._stopping = True

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Journeys are in flight inside the block; it ends when the last one has ended."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._lanes):
                group.create_task(self._lane())
            try:
                yield
            finally:
                self.stop()

    async def _lane(self) -> None:
        while not self._stopping:
            await self._journey(f"journey-{next(self._numbers)}")

    async def _journey(self, name: str) -> None:
        plan = Plan(name, rest=self._chance.choice(_RESTS))
        handle = await self._client.start(journey, plan, id=name, dedupe="forever")
        told = Told(handle.run_id, name)
        self.told.append(told)
        await asyncio.sleep(self._chance.uniform(0, 1))
        signal = str(uuid.uuid4())
        await handle.signal("word", f"the word for {name}", id=signal)
        told.signals.append(signal)
        told.result = msgspec.to_builtins(await handle.result(timeout=self._patience))


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Returns once the condition holds; fails after so many seconds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - processes and files tell nobody
            await asyncio.sleep(0.02)


async def until_async(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    """The same for what has to be asked for."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.02)
