"""How handler runs stand, read once for all operations of a batch. Whoever changes something of an automation locks its
row first, after the rows of runs, and reads in a second statement: a lock and a look in one would see what was there
before the lock. Nothing here writes but the steps that phases put on record, all of a wave at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store import errors, steps
from kagzi.store.operation import BUSY, Operation
from kagzi.store.queries import Queries
from kagzi.store.rules import Schedule

_sql = Queries("standings.sql")
_lock = _sql.bind("lock", columns=("name",))
_take = _sql.bind("take", columns=("name",))
_COLUMNS = (
    "run_id",
    "automation",
    "handler",
    "started_at",
    "kind",
    "publishes",
    "subscribes",
    "removed",
    "failures",
    "schedule_type",
    "schedule_value",
    "timezone",
    "anchor_at",
    "prepared",
    "reserving",
    "prepared_title",
    "prepared_wake_at",
    "mutation_id",
    "mutation_status",
    "mutation_attempt",
    "mutation_token",
    "has_reconciler",
    "checks",
    "blocked_code",
    "now",
)
_standing = _sql.bind("standing", columns=_COLUMNS)


@dataclass(frozen=True, slots=True)
class Standing:
    """A handler run with its handler and the ledger's row it holds."""

    run_id: str
    automation: str
    handler: str
    started_at: datetime
    kind: str
    publishes: list[str]
    subscribes: list[str]
    removed: bool
    failures: int
    schedule: Schedule | None
    # `prepare` was committed, and reserved something.
    prepared: bool
    reserving: bool
    title: str
    wake_at: datetime | None
    mutation_id: str | None
    mutation_status: str | None
    mutation_attempt: str | None
    mutation_token: str | None
    has_reconciler: bool
    checks: int
    blocked_code: str | None
    now: datetime


async def lock(connection: Connection, namespace: str, names: Collection[str]) -> set[str]:
    """Locks automations for the rest of the transaction; answers those that exist."""
    return {row["name"] for row in await _lock.fetch(connection, namespace=namespace, names=list(names))}


async def take(connection: Connection, namespace: str, names: Collection[str]) -> set[str]:
    """Locks those of these automations that nobody holds; answers which."""
    return {row["name"] for row in await _take.fetch(connection, namespace=namespace, names=list(names))}


async def read(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, Standing]:
    """How these runs stand; ordinary ones are left out."""
    found = await _standing.fetch(connection, namespace=namespace, run_ids=run_ids)
    return {str(row["run_id"]): _standing_of(row) for row in found}


def _standing_of(row: Any) -> Standing:
    return Standing(
        run_id=str(row["run_id"]),
        automation=row["automation"],
        handler=row["handler"],
        started_at=row["started_at"],
        kind=row["kind"],
        publishes=row["publishes"],
        subscribes=row["subscribes"],
        removed=row["removed"],
        failures=row["failures"],
        schedule=schedule_of(row),
        prepared=row["prepared"],
        reserving=row["reserving"],
        title=row["prepared_title"] or "",
        wake_at=row["prepared_wake_at"],
        mutation_id=_text(row["mutation_id"]),
        mutation_status=row["mutation_status"],
        mutation_attempt=_text(row["mutation_attempt"]),
        mutation_token=_text(row["mutation_token"]),
        has_reconciler=bool(row["has_reconciler"]),
        checks=row["checks"] or 0,
        blocked_code=row["blocked_code"],
        now=row["now"],
    )


def schedule_of(row: Any) -> Schedule | None:
    """The schedule in a row of handlers; None for a consumer."""
    if row["schedule_type"] is None:
        return None
    return Schedule(row["schedule_type"], row["schedule_value"], row["timezone"], row["anchor_at"])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@dataclass(slots=True)
class Ground:
    """What a batch knows of the handler runs in it, which it holds. What was written since it was read is read again,
    or known from whoever wrote it.
    """

    connection: Connection
    namespace: str
    # All handler runs of the batch, and the automations of those that are to be written, as the fence saw them.
    run_ids: set[str] = field(default_factory=set)
    # Of these, the runs that end more than one phase in it.
    several: set[str] = field(default_factory=set)
    automations: dict[str, str] = field(default_factory=dict)
    _taken: set[str] | None = None
    _known: dict[str, Standing] = field(default_factory=dict)
    _records: list[Operation] = field(default_factory=list)

    async def of(self, group: Sequence[Operation]) -> dict[str, Standing]:
        """How the runs of these operations stand now."""
        missing = {operation.run_id for operation in group} - self._known.keys()
        if missing:
            # Locked before anything is read, it is not older than what the last holder did.
            await self._lock()
            if not self._known:
                missing |= self.run_ids
            self._known |= await read(self.connection, self.namespace, list(missing))
        return self._known

    async def take(self, group: Sequence[Operation]) -> list[Operation]:
        """Leaves those whose automation the batch has locked; the others are to wait for whoever has it."""
        taken = await self._lock()
        left = []
        for operation in group:
            if self.automations[operation.run_id] in taken:
                left.append(operation)
            else:
                operation.answer = BUSY
        return left

    async def _lock(self) -> set[str]:
        if self._taken is None:
            names = set(self.automations.values())
            self._taken = await take(self.connection, self.namespace, names) if names else set()
        return self._taken

    def record(self, steps: Iterable[Operation]) -> None:
        """Results of steps that are put on record with those of the other phases."""
        self._records += steps

    async def write(self) -> None:
        """Puts on record what was given. A step that another attempt has done already takes its operation with it: what
        was written for that is undone by whoever catches Refused.
        """
        if self._records:
            given, self._records = self._records, []
            await steps.complete(self.connection, self.namespace, given)
            for written in given:
                if isinstance(written.answer, ErrorDetail):
                    raise errors.Refused(written.answer)

    def touched(self, group: Iterable[Operation]) -> None:
        """These runs are not what they were."""
        for operation in group:
            self._known.pop(operation.run_id, None)

    def became(self, run_id: str, **changes: Any) -> None:
        """This and no more was written for a run."""
        if run_id in self.several:
            self._known[run_id] = replace(self._known[run_id], **changes)
        else:
            self._known.pop(run_id, None)
