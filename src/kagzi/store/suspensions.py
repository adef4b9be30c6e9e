"""Giving runs back without ending them, and the document a run publishes on the way. A suspended run is due again when
one of the steps it named can go on; whether that is so already is looked at under the run's lock, so that no wake-up is
lost between the worker's decision and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.worker_pb2 import SetStateResponse
from kagzi.store import endings, errors
from kagzi.store.operation import Operation, Outcome
from kagzi.store.queries import Queries

_sql = Queries("suspensions.sql")
_GIVEN = ("run_id", "task_queue", "status", "available_at", "due")
_suspend = _sql.bind("suspend", columns=_GIVEN)
_release = _sql.bind("release", columns=_GIVEN)
_set_state = _sql.bind("set_state", columns=("run_id", "state_number"))


async def suspend(connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome) -> None:
    """Gives runs back until one of the steps they name can go on."""
    named = [list(dict.fromkeys(operation.body.step_ids)) for operation in operations]
    waits = [(operation.run_id, step) for operation, steps in zip(operations, named, strict=True) for step in steps]
    found = await _suspend.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        tokens=[operation.token for operation in operations],
        operation_ids=[operation.operation_id for operation in operations],
        parked=[operation.body.parked_json or None for operation in operations],
        parked_hashes=[operation.body.parked_hash or None for operation in operations],
        named=[len(steps) for steps in named],
        wait_run_ids=[run_id for run_id, _ in waits],
        wait_step_ids=[step for _, step in waits],
    )
    _answer(operations, found, outcome)
    given = {str(row["run_id"]) for row in found}
    for operation, steps in zip(operations, named, strict=True):
        # Its token is the current one, as the fence has seen: a step it names was never recorded.
        if operation.run_id not in given and steps:
            subject = ", ".join(steps)
            operation.answer = errors.not_found("step on record among", subject, "suspend.step_ids").detail


async def release(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    outcome: Outcome,
    delays_ms: Sequence[int] | None = None,
) -> None:
    """Gives runs back for anybody to claim, at once or after a delay."""
    found = await _release.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        tokens=[operation.token for operation in operations],
        operation_ids=[operation.operation_id for operation in operations],
        retry_ms=delays_ms or [0] * len(operations),
    )
    _answer(operations, found, outcome)


async def set_state(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Publishes documents; of several for one run the highest number stays."""
    newest = {operation.run_id: operation for operation in sorted(operations, key=lambda given: given.body.number)}
    found = await _set_state.fetch(
        connection,
        namespace=namespace,
        run_ids=list(newest),
        states=[operation.body.state_json for operation in newest.values()],
        numbers=[operation.body.number for operation in newest.values()],
    )
    numbers = {str(row["run_id"]): row["state_number"] for row in found}
    for operation in operations:
        operation.answer = SetStateResponse(number=numbers[operation.run_id])


def _answer(operations: Sequence[Operation], found: Sequence[Record], outcome: Outcome) -> None:
    given = {str(row["run_id"]): row for row in found}
    for operation in operations:
        row = given.get(operation.run_id)
        if row is None:
            operation.answer = errors.lease_lost(operation.run_id)
            continue
        operation.answer = endings.answer(row)
        if row["due"] or row["available_at"] is not None:
            outcome.becomes_due(row["task_queue"], None if row["due"] else row["available_at"])
