"""The real store for the model test: one database, two servers on it, and a clock that moves when told. Every example
has a namespace of its own, so nothing has to be emptied between them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store import batch, claims, namespaces, workers
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.errors import Refused
from kagzi.store.operation import Operation, Outcome, Slot
from kagzi.store.roster import ServedType
from tests.laws.operations import QUEUE, TYPE
from tests.laws.world import LEASE, SETTINGS

T = TypeVar("T")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
HEARTBEAT_MS = 10_000
LEASE_MS = int(LEASE.total_seconds() * 1000)
_CLOCK = f"""
create table kagzi.model_clock (moment timestamptz not null);
insert into kagzi.model_clock values ('{NOON.isoformat()}');
create or replace function kagzi.now() returns timestamptz language sql stable parallel safe
    as 'select moment from kagzi.model_clock';
"""  # noqa: S608 - the tests' own words
_RUNS = """
select run_id::text, status, claim_token::text as token, locked_by::text as holder, crashes, attempts, external_id,
       cancel_requested_at is not null as cancelled, started_at is not null as started,
       available_at = 'infinity' as waits, nullif(available_at, 'infinity') as due,
       finished_at is not null as finished
from kagzi.workflow_runs where namespace = $1
"""
_STEPS = """
select run_id::text, step_id, status, attempt_id::text, output, resolution
from kagzi.step_runs where namespace = $1 and is_latest
"""
_SIGNALS = """
select run_id::text, signal_id::text, name, received_by::text
from kagzi.signals where namespace = $1 order by run_id, arrival
"""


class Lab:
    """Synchronous, because Hypothesis is; the loop runs only while something is asked of the store."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._examples = itertools.count(1)
        self._connection: Connection = self._do(asyncpg.connect(url, server_settings=SETTINGS))
        self._do(self._connection.execute(_CLOCK))
        self._servers = [Database(url, size=2) for _ in range(2)]
        for server in self._servers:
            self._do(server.open())
        self.namespace = ""
        self.now = 0
        self.workers: list[str] = []
        self._ids = itertools.count(1)

    def close(self) -> None:
        for server in self._servers:
            self._do(server.close())
        self._do(self._connection.close())
        self._loop.close()

    def begin(self) -> None:
        """An empty namespace at noon, with three workers."""
        self.namespace = f"example-{next(self._examples)}"
        self._ids = itertools.count(1)
        self.now = 0
        self.pass_time(0)
        self.transact(0, lambda c: namespaces.create(c, self.namespace))
        self.workers = [
            self.transact(
                0,
                lambda c, n=number: workers.register(  # type: ignore[misc]
                    c, self.namespace, instance=f"w{n}", task_queue=QUEUE, types=[ServedType(TYPE, "", "")]
                ),
            ).worker_id
            for number in range(3)
        ]

    def new_id(self) -> str:
        """The same ids in the same order whenever an example is run, so that one that fails fails again."""
        return str(UUID(int=next(self._ids)))

    def pass_time(self, ms: int) -> None:
        self.now += ms
        moment = NOON + timedelta(milliseconds=self.now)
        self._do(self._connection.execute("update kagzi.model_clock set moment = $1", moment))

    def flush(self, server: int, operations: Sequence[Operation]) -> list[str]:
        """Applies operations in one batch; the codes they are answered with."""
        for operation in operations:
            operation.namespace = self.namespace
            operation.answer = None
        self._do(batch.flush(self._servers[server], self.namespace, operations, LEASE, 5.0))
        return [code(operation) for operation in operations]

    def claim(self, server: int, worker: str, count: int, *, suspects: bool) -> list[Delivery]:
        served = Served(self.namespace, QUEUE, (TYPE,), ("",))
        slots = [Slot(worker, self.new_id()) for _ in range(count)]
        claimed = self.transact(
            server,
            lambda c: claims.claim(c, served, slots, LEASE, Outcome(), suspects=suspects, expired_too=True),
        )
        return [one.delivery for one in claimed]

    def transact(self, server: int, work: Callable[[Connection], Awaitable[T]]) -> T:
        return self._do(self._servers[server].transact(work))

    def attempt(self, server: int, work: Callable[[Connection], Awaitable[T]]) -> T | str:
        """What the store answers, or the code with which it refuses."""
        try:
            return self.transact(server, work)
        except Refused as refused:
            return ErrorDetail.Code.Name(refused.detail.code)

    def stored(self) -> tuple[list[Record], list[Record], list[Record]]:
        """Runs, latest attempts and signals of the example."""

        async def look() -> tuple[list[Record], list[Record], list[Record]]:
            asked = (_RUNS, _STEPS, _SIGNALS)
            runs, steps, signals = [await self._connection.fetch(query, self.namespace) for query in asked]
            return runs, steps, signals

        return self._do(look())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


def code(operation: Operation) -> str:
    """OK, or the code of the refusal."""
    if isinstance(operation.answer, ErrorDetail):
        return ErrorDetail.Code.Name(operation.answer.code)
    return "OK"


def offset(moment: datetime | None) -> int | None:
    """Milliseconds since noon."""
    return None if moment is None else round((moment - NOON).total_seconds() * 1000)
