"""Parts of a server, put together for a test: a batcher over a database, a dispatcher, and places as workers have them.
Nothing listens: what these tests see happens without a single notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.server.announcer import Announcer
from kagzi.server.batcher import Batcher
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.notifier import Notifier
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.operation import Claimed, Operation, Slot
from tests.laws import operations
from tests.laws.operations import new_id
from tests.laws.world import LEASE, SERVED


class Nobody:
    """No worker is connected."""

    def reserve(self, operation: Operation) -> Slot | None:
        return None

    def hand_over(self, start: Operation, slot: Slot) -> None:
        raise AssertionError("nothing was reserved")

    def deliver(self, claimed: Claimed) -> None:
        raise AssertionError("nothing was reserved")

    def restore(self, slot: Slot) -> None:
        raise AssertionError("nothing was reserved")


@asynccontextmanager
async def batching(database: Database, hand_over: Any = None, **options: Any) -> AsyncIterator[Batcher]:
    """A batcher at work; stopped at the end with everything answered."""
    announcer = Announcer(Notifier(database.url))
    batcher = Batcher(database, announcer, hand_over or Nobody(), lease=LEASE, **options)
    batcher.start()
    try:
        yield batcher
    finally:
        await batcher.stop(5.0)


class Place:
    """A worker with some free places, that keeps what it is given."""

    def __init__(self, free: int, worker_id: str | None = None, served: Served = SERVED) -> None:
        self.worker_id = worker_id or new_id()
        self.served = served
        self.free = free
        self.lends = False
        self.residents: dict[str, str] = {}
        self.given: list[Delivery] = []
        self._arrived = asyncio.Event()

    def deliver(self, delivery: Delivery) -> None:
        self.given.append(delivery)
        self._arrived.set()

    def end(self) -> None:
        """The server stops."""

    async def has(self, count: int, within: float = 60.0) -> list[Delivery]:
        """Waits until it was given so many runs."""
        async with asyncio.timeout(within):
            while len(self.given) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return self.given


@asynccontextmanager
async def dispatching(
    database: Database, *, grace: float = 0.0, interval: float = 1.0
) -> AsyncIterator[tuple[Dispatcher, Batcher]]:
    """A dispatcher at work and the batcher that hands runs over to it. `grace` is the time in which leases that ran out
    are not claimed, after the start and after the database was lost.
    """
    announcer = Announcer(Notifier(database.url))
    heartbeat = timedelta(seconds=grace) - LEASE / 6
    dispatcher = Dispatcher(database, announcer, lease=LEASE, heartbeat=heartbeat, interval=interval)
    batcher = Batcher(database, announcer, dispatcher, lease=LEASE)
    batcher.start()
    try:
        yield dispatcher, batcher
    finally:
        await dispatcher.stop()
        await batcher.stop(5.0)


async def reserved(dispatcher: Dispatcher) -> Slot:
    """Waits until the dispatcher has seen that nothing is due, so that a start is handed over, and takes a place."""
    async with asyncio.timeout(60):
        while True:
            slot = dispatcher.reserve(operations.start())
            if slot is not None:
                return slot
            await asyncio.sleep(0.005)
