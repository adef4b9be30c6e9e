"""A world for the laws: one database, the store's own functions to change it, and a look at everything that is stored.
Nothing here writes SQL that the engine would write; what only a test does (moving a lease into the past, holding a
caller's transaction open) is done over a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store import batch, claims
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.operation import BUSY, Operation, Outcome, Slot
from tests.laws import operations
from tests.laws.operations import NAMESPACE, QUEUE, TYPE, Run, new_id

LEASE = timedelta(seconds=30)
SETTINGS = {"search_path": "pg_catalog, pg_temp", "timezone": "UTC"}
SERVED = Served(NAMESPACE, QUEUE, (TYPE, "shipping"), ("", ""))
TABLES = ("workflow_runs", "workflow_payloads", "step_runs", "signals", "workers", "namespaces")

Contents = dict[str, list[tuple[Any, ...]]]


class World:
    """The store on a database of the test's own."""

    def __init__(self, database: Database, connection: Connection, url: str) -> None:
        self.database = database
        # For looking, and for what only a test does.
        self.connection = connection
        self.url = url

    async def flush(self, *given: Operation, patience: float = 5.0) -> list[Outcome]:
        """Applies operations in one batch; each has its answer afterwards."""
        return await batch.flush(self.database, NAMESPACE, given, LEASE, patience)

    async def ask(self, operation: Operation) -> Any:
        """Applies one operation and returns its answer."""
        await self.flush(operation)
        while operation.answer is BUSY:
            # As the batcher would: at times the database itself holds a table for longer than a batch waits for it.
            await asyncio.sleep(0.002)
            await self.flush(operation)
        return operation.answer

    async def start(self, **fields: Any) -> str:
        """A stored run that nobody has claimed."""
        operation = operations.start(**fields)
        await self.flush(operation)
        assert not operation.refused, operation.answer
        return operation.run_id

    async def running(self, worker_id: str | None = None, **fields: Any) -> Run:
        """A run that a worker holds, handed over as it was stored."""
        operation = operations.start(**fields)
        slot = operation.slot = Slot(worker_id or new_id(), new_id())
        await self.flush(operation)
        assert operation.slot is slot, operation.answer
        return Run(operation.run_id, slot.token)

    async def claim(self, count: int = 1, worker_id: str | None = None, **options: Any) -> list[Run]:
        return [Run(one.run_id, one.claim_token) for one in await self.deliveries(count, worker_id, **options)]

    async def deliveries(self, count: int = 1, worker_id: str | None = None, **options: Any) -> list[Delivery]:
        """Claims what is due for one worker; expired leases and suspects too, unless told otherwise."""
        found: list[Delivery] = []
        patience = options.pop("patience", 5.0)
        for suspects in options.pop("suspects", (False, True)):
            slots = [Slot(worker_id or new_id(), new_id()) for _ in range(count - len(found))]

            async def claim(
                connection: Connection, slots: Sequence[Slot] = slots, suspects: bool = suspects
            ) -> list[Delivery]:
                given = {"expired_too": True, **options}
                claimed = await claims.claim(connection, SERVED, slots, LEASE, Outcome(), suspects=suspects, **given)
                return [one.delivery for one in claimed]

            if slots:
                found += await self.database.transact(claim, patience)
        return found

    async def expire(self, run_id: str) -> None:
        """The lease ran out a second ago."""
        await self.connection.execute(
            "update kagzi.workflow_runs set available_at = kagzi.now() - interval '1 s' where run_id = $1", run_id
        )

    async def row(self, run_id: str) -> Record:
        """A run as it stands; `due_s` is the time from now until it can be claimed, None for infinity and never."""
        row = await self.connection.fetchrow(
            "select *, case when available_at < 'infinity' then extract(epoch from available_at - kagzi.now())::float8"
            " end as due_s, available_at = 'infinity' as waits from kagzi.workflow_runs where run_id = $1",
            run_id,
        )
        assert row is not None, f"there is no run {run_id}"
        return row

    async def steps(self, run_id: str) -> list[Record]:
        return await self.connection.fetch(
            "select * from kagzi.step_runs where run_id = $1 order by position, attempt_number", run_id
        )

    async def count(self, table: str) -> int:
        count: int = await self.connection.fetchval(f"select count(*) from kagzi.{table}")  # noqa: S608
        return count

    async def contents(self) -> Contents:
        """Everything that is stored, to compare."""
        return {
            table: [
                tuple(row)
                for row in await self.connection.fetch(f"select t::text from kagzi.{table} t order by 1")  # noqa: S608
            ]
            for table in TABLES
        }

    @asynccontextmanager
    async def held(self, run_id: str, lock: str = "no key update") -> AsyncIterator[Connection]:
        """A caller's transaction that has the run's row locked meanwhile."""
        connection = await asyncpg.connect(self.url, server_settings=SETTINGS)
        try:
            async with connection.transaction():
                await connection.execute(f"select from kagzi.workflow_runs where run_id = $1 for {lock}", run_id)
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def uncommitted(self, *given: Operation) -> AsyncIterator[Connection]:
        """The operations are applied and not committed meanwhile."""
        connection = await asyncpg.connect(self.url, server_settings=SETTINGS)
        try:
            async with connection.transaction():
                await batch.apply(connection, NAMESPACE, given, LEASE)
                yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def slowly(self) -> AsyncIterator[World]:
        """The same world through sessions named `slow`, which a test can let wait, and with all the time they need."""
        database = Database(self.url)
        database._settings |= {"application_name": "slow", "lock_timeout": "0"}
        await database.open()
        try:
            yield World(database, self.connection, self.url)
        finally:
            await database.close()

    async def until(self, condition: str) -> None:
        """Waits until a query answers true."""
        async with asyncio.timeout(60):
            while not await self.connection.fetchval(condition):  # noqa: ASYNC110 - a database tells nobody
                await asyncio.sleep(0.005)
