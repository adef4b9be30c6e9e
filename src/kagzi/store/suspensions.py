"""Giving runs back without ending them, and what a run publishes or has noted on it on the way. A suspended run is due
again when one of the steps it named can go on; whether that is so already is looked at under the run's lock, so that no
wake-up is lost between the worker's decision and the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.protocol.v1.worker_pb2 import EndAnswer, Fail, SetStateResponse
from kagzi.store import endings, errors
from kagzi.store.operation import Kind, Operation, Outcome
from kagzi.store.queries import Queries

_sql = Queries("suspensions.sql")
_GIVEN = ("run_id", "task_queue", "status", "available_at", "due")
_suspend = _sql.bind("suspend", columns=_GIVEN)
_release = _sql.bind("release", columns=_GIVEN)
_asked_to_cancel = _sql.bind("asked_to_cancel", columns=("run_id",))
_warn = _sql.bind("warn")
_set_state = _sql.bind("set_state", columns=("run_id", "state_number"))


async def suspend(connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome) -> None:
    """Gives runs back until one of the steps they name can go on."""
    parked = [operation for operation in operations if operation.body.parked_json]
    if parked:
        await _end_cancelled(connection, namespace, parked, outcome)
        operations = [operation for operation in operations if operation.answer is None]
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
        kept=[operation.body.kept and not operation.body.parked_json for operation in operations],
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


async def _end_cancelled(connection: Connection, namespace: str, parked: Sequence[Operation], outcome: Outcome) -> None:
    """Ends those of the runs that were asked to cancel: no code is there that could hear of it, and nobody waits for
    better code on behalf of a run that is to end.
    """
    asked = await _asked_to_cancel.fetch(connection, namespace=namespace, run_ids=[run.run_id for run in parked])
    run_ids = {str(row["run_id"]) for row in asked}
    ending = [operation for operation in parked if operation.run_id in run_ids]
    if not ending:
        return
    await endings.lock_with_concerned(connection, namespace, [operation.run_id for operation in ending])
    fails = [
        Operation(
            Kind.FAIL,
            namespace,
            operation.run_id,
            Fail(failure=_unfit(operation.body.parked_json)),
            token=operation.token,
            operation_id=operation.operation_id,
        )
        for operation in ending
    ]
    await endings.fail(connection, namespace, fails, outcome)
    for operation, failed in zip(ending, fails, strict=True):
        operation.answer = failed.answer


def _unfit(parked_json: str) -> Failure:
    document = msgspec.json.decode(parked_json)
    why = document.get("message", "") if isinstance(document, dict) else ""
    return Failure(
        type="NondeterminismError",
        message=f"it was asked to cancel, and its code does not fit its history, so no cleanup ran: {why}",
        non_retryable=True,
    )


async def warn(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Notes on runs what a person should know of them; of several for one step the first stays."""
    await _warn.execute(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        step_ids=[operation.body.step_id for operation in operations],
        messages=[operation.body.message for operation in operations],
    )
    for operation in operations:
        operation.answer = EndAnswer()


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
