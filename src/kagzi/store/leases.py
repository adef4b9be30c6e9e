"""The fence. Every write for a run first locks the run's row by key and compares the token of the locked version: a
write whose token is not the current one changes nothing. The lock skips rows that somebody else holds, so a caller's
long transaction delays its own run and never a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from asyncpg.connection import Connection

from kagzi.store.operation import ENDING, Operation
from kagzi.store.queries import Queries

_sql = Queries("leases.sql")
_fence = _sql.bind(
    "fence",
    columns=(
        "number",
        "status",
        "held",
        "done",
        "crashed",
        "complete",
        "parent_run_id",
        "continued_as",
        "automation",
        "history_excess",
    ),
)
_present = _sql.bind("present", columns=("run_id",))
_progress = _sql.bind("progress")
_put_back = _sql.bind("put_back", columns=("run_id", "task_queue"))


@dataclass(frozen=True, slots=True)
class Lock:
    """A locked run, seen by the holder of one token."""

    status: str
    # The token is the run's current one.
    held: bool
    # The operation with which this token gave the run away, if it did.
    done: str | None
    # The run's lease ran out since it last got on.
    crashed: bool
    parent_run_id: str | None
    continued_as: str | None
    # Whose handler run it is; None for an ordinary run.
    automation: str | None
    # An upper bound of what its history holds beyond an even share of the limit for each step.
    history_excess: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The locks of one batch, by run and token. A run in `busy` is locked by somebody else; one in neither is
    unknown.
    """

    locks: dict[tuple[str, str | None], Lock] = field(default_factory=dict)
    busy: frozenset[str] = frozenset()

    def of(self, operation: Operation) -> Lock | None:
        return self.locks.get((operation.run_id, operation.token))


async def fence(connection: Connection, namespace: str, operations: Iterable[Operation]) -> Fence:
    """Locks the runs of these operations for the rest of the transaction."""
    pairs = list(dict.fromkeys((operation.run_id, operation.token) for operation in operations))
    ending = [operation.run_id for operation in operations if operation.kind in ENDING]
    run_ids = [pair[0] for pair in pairs]
    rows = await _fence.fetch(
        connection,
        namespace=namespace,
        run_ids=run_ids,
        tokens=[pair[1] for pair in pairs],
        ending_ids=ending,
    )
    locks: dict[tuple[str, str | None], Lock] = {}
    busy: set[str] = set()
    for number, status, held, done, crashed, complete, parent, continued, automation, excess in rows:
        pair = pairs[number - 1]
        if not complete and pair[0] in ending:
            busy.add(pair[0])
            continue
        locks[pair] = Lock(
            status,
            held,
            str(done) if done else None,
            crashed,
            str(parent) if parent else None,
            str(continued) if continued else None,
            automation,
            excess,
        )
    if len(rows) < len(pairs):
        missing = list({run_id for run_id, _ in pairs} - {run_id for run_id, _ in locks})
        rows = await _present.fetch(connection, namespace=namespace, run_ids=missing)
        busy.update(str(row[0]) for row in rows)
    return Fence(locks, frozenset(busy))


async def progress(connection: Connection, namespace: str, run_ids: Sequence[str]) -> None:
    """These runs recorded a result, so their earlier crashes no longer count."""
    await _progress.execute(connection, namespace=namespace, run_ids=run_ids)


async def put_back(
    connection: Connection,
    namespace: str,
    held: Sequence[tuple[str, str]],
    untils: Sequence[datetime] | None = None,
) -> set[str]:
    """Gives runs that never reached their worker back; answers the queues that have something due now. With `untils`
    only those whose leases were not renewed beyond that.
    """
    rows = await _put_back.fetch(
        connection,
        namespace=namespace,
        run_ids=[pair[0] for pair in held],
        tokens=[pair[1] for pair in held],
        untils=untils or [None] * len(held),
    )
    return {row["task_queue"] for row in rows}
