"""What this server did, counted by minute and put into the database every few seconds, for charts. Counting is memory
and never waits; what was not put when a server is killed is missing in the charts and nowhere else. A run is counted
by the server whose transaction made it; one that was started by SQL by whichever server finds that first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import structlog
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.lifecycle import Loop
from kagzi.store import outside, stats
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.operation import Ended, Kind, Operation
from kagzi.store.outside import Taken
from kagzi.store.stats import Tally

log = structlog.get_logger(__name__)

# By namespace and workflow type; '' is for what is counted without regard to a type.
_Counted = defaultdict[str, defaultdict[str, Tally]]

_EVERY_SECS = 5.0
# Namespaces, and starts in one of them, that are taken at a time.
_MOST = 1_000
_COUNTS = {"COMPLETED": "completed", "FAILED": "failed", "CANCELLED": "cancelled"}


class Tallies(Loop):
    """Counts what happens and stores it."""

    name = "tallies"

    def __init__(self, database: Database, server_id: str) -> None:
        super().__init__()
        self._database = database
        self._server_id = server_id
        self._now = _nothing()
        self._minute = _minute()
        # The minutes that are over: of this hour, and of all.
        self._hour = _nothing()
        self._past = _nothing()
        # Namespaces with something to put.
        self._changed: set[str] = set()
        # Starts by SQL that are taken away, or not: the database did not answer.
        self._unsure: list[Taken] = []

    def applied(self, namespace: str, operations: Sequence[Operation]) -> None:
        """Operations were committed, or refused."""
        self._changed.add(namespace)
        by_type = self._now[namespace]
        for operation in operations:
            answer = operation.answer
            if isinstance(answer, ErrorDetail):
                by_type[""].leases_lost += answer.code == ErrorDetail.LEASE_LOST
            elif operation.kind is Kind.COMPLETE_STEP:
                by_type[""].steps_completed += 1
            elif operation.kind in (Kind.FAIL_STEP, Kind.FAIL_STEP_AND_GIVE_BACK):
                by_type[""].steps_failed += 1

    def claimed(self, namespace: str, waited: Sequence[tuple[str, float]]) -> None:
        """Runs were claimed, which had been due for so many milliseconds."""
        self._changed.add(namespace)
        by_type = self._now[namespace]
        for workflow_type, milliseconds in waited:
            by_type[workflow_type].picked_up(milliseconds)

    def totals(self) -> dict[str, dict[str, Tally]]:
        """Everything since this server began, by namespace and type."""
        made: dict[str, dict[str, Tally]] = {}
        for counted in (self._past, self._now):
            for namespace, by_type in counted.items():
                for workflow_type, tally in by_type.items():
                    made.setdefault(namespace, {}).setdefault(workflow_type, Tally()).add(tally)
        return made

    def started(self, namespace: str, types: Sequence[str]) -> None:
        """Runs of these types exist from now on."""
        self._changed.add(namespace)
        for workflow_type in types:
            self._now[namespace][workflow_type].started += 1

    def ended(self, namespace: str, runs: Sequence[Ended]) -> None:
        """Runs ended."""
        self._changed.add(namespace)
        by_type = self._now[namespace]
        for run in runs:
            workflow_type, took_ms = run.took
            tally = by_type[workflow_type]
            count = _COUNTS[run.status]
            setattr(tally, count, getattr(tally, count) + 1)
            tally.ended(took_ms)

    async def run(self) -> None:
        more = False
        while not self.stopping.is_set():
            if not more:
                await self._nap()
            more = await self.look_outside()
            await self._put()

    async def look_outside(self) -> bool:
        """Counts the runs that were started by SQL, which no server has counted, until it is time to put. Whether there
        are more.
        """
        until = time.monotonic() + _left()
        try:
            await self._make_sure()
            found = await self._database.read(lambda c: outside.namespaces(c, most=_MOST), patience=1.0)
            # By turns: a namespace with a million of them does not keep the others waiting.
            while found and not self.stopping.is_set() and time.monotonic() < until:
                found = [namespace for namespace in found if await self._take(namespace)]
        except Unreachable:
            log.warning("tallies_wait_for_database")
            return False
        return bool(found)

    async def _take(self, namespace: str) -> bool:
        """Counts some of a namespace. Whether there may be more."""
        tries: list[Taken] = []

        async def take(connection: Connection) -> None:
            tries.append(await outside.take(connection, namespace=namespace, most=_MOST))

        answered = False
        try:
            await self._database.transact(take, patience=1.0)
            answered = True
        finally:
            # Of a try before the last one nobody knows whether it committed.
            last = tries.pop() if answered else Taken(namespace)
            self._unsure += [each for each in tries if each.types]
        self.started(namespace, last.types)
        return len(last.types) == _MOST

    async def _make_sure(self) -> None:
        """Counts what was taken away though no answer came."""
        for taken in list(self._unsure):
            committed = await self._database.read(partial(outside.committed, taken=taken), patience=1.0)
            if committed:
                self.started(taken.namespace, taken.types)
            if committed is not None:
                self._unsure.remove(taken)

    async def stop(self, grace: float = 0.0) -> None:
        """Puts what is left."""
        await super().stop(grace)
        await self._put(over=True)

    async def _put(self, *, over: bool = False) -> None:
        counted, minute, changed = self._now, self._minute, self._changed
        self._changed = set()
        over = over or _minute() != minute
        if over:
            self._now, self._minute = _nothing(), _minute()
        for namespace in changed:
            await self._store(namespace, minute, counted[namespace], stats.MINUTE)
        if over:
            await self._put_hour(minute, counted)

    async def _put_hour(self, minute: datetime, counted: _Counted) -> None:
        """Once a minute: a chart of days may be that late."""
        for namespace, by_type in counted.items():
            for workflow_type, tally in by_type.items():
                self._hour[namespace][workflow_type].add(tally)
                self._past[namespace][workflow_type].add(tally)
            await self._store(namespace, minute, self._hour[namespace], stats.HOUR)
        if self._minute.hour != minute.hour:
            self._hour = _nothing()

    async def _store(self, namespace: str, minute: datetime, tallies: dict[str, Tally], span: int) -> None:
        # What is counted meanwhile is put next time.
        taken = dict(tallies)
        try:
            await self._database.transact(
                lambda c: stats.put(c, namespace, self._server_id, minute, taken, span), patience=1.0
            )
        except Unreachable:
            log.warning("tally_not_put", namespace=namespace)

    async def _nap(self) -> None:
        """Until the next time to put, or the end of the minute that is counted."""
        await self.pause(_left())


def _left() -> float:
    """Seconds until the next time to put."""
    return min(_EVERY_SECS, 60 - time.time() % 60)


def _nothing() -> _Counted:
    return defaultdict(lambda: defaultdict(Tally))


def _minute() -> datetime:
    now = datetime.now(UTC)
    return now - timedelta(seconds=now.second, microseconds=now.microsecond)
