"""Signals: named messages to runs, kept until received, in the order of their arrival. Storing one and making its run
due are one transaction; the run's row is locked first, whatever its status, so that a suspension under way is not
missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.workflow_pb2 import SignalWorkflowResponse
from kagzi.store import errors, rows
from kagzi.store.leases import Fence
from kagzi.store.operation import Operation, Outcome
from kagzi.store.queries import Queries

_sql = Queries("signals.sql")
_send = _sql.bind("send")
_wake = _sql.bind("wake", columns=("run_id", "status", "task_queue"))
_stored = _sql.bind("stored", columns=("signal_id", "run_id"))
_receive = _sql.bind("receive", columns=("signal_id",))
_give_back = _sql.bind("give_back")
_next = _sql.bind("next", columns=rows.SIGNAL_COLUMNS)
_get = _sql.bind("get", columns=rows.SIGNAL_COLUMNS)
_waiting = _sql.bind("waiting", columns=("run_id", *rows.SIGNAL_COLUMNS))
_final_run = _sql.bind("final_run", columns=("run_id", "status"))

_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


async def send(
    connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence, outcome: Outcome
) -> None:
    """Stores messages for locked runs and makes those due that wait for one."""
    found = await _stored.fetch(
        connection, namespace=namespace, signal_ids=[operation.body.signal_id for operation in operations]
    )
    stored = {str(row["signal_id"]): str(row["run_id"]) for row in found}
    live: list[Operation] = []
    for operation in operations:
        lock = fence.of(operation)
        assert lock is not None
        holder = stored.get(operation.body.signal_id)
        if holder is not None:
            operation.answer = _answer(operation, holder, lock.status)
        elif lock.status in _TERMINAL:
            operation.answer = errors.precondition(
                f"run {operation.run_id} has ended ({lock.status}) and receives no more signals",
                operation.run_id,
            ).detail
        else:
            operation.answer = _answer(operation, operation.run_id, lock.status)
            live.append(operation)
    if not live:
        return
    payloads = [operation.body.payload if operation.body.HasField("payload") else None for operation in live]
    await _send.execute(
        connection,
        namespace=namespace,
        signal_ids=[operation.body.signal_id for operation in live],
        run_ids=[operation.run_id for operation in live],
        names=[operation.body.name for operation in live],
        payloads=[None if payload is None else payload.data for payload in payloads],
        payload_encodings=[None if payload is None else payload.encoding or None for payload in payloads],
    )
    await wake(connection, namespace, [(operation.run_id, operation.body.name) for operation in live], outcome)


async def wake(connection: Connection, namespace: str, sent: Sequence[tuple[str, str]], outcome: Outcome) -> None:
    """Makes locked runs due that wait for one of the messages (run, name) that are there for them now."""
    woken = await _wake.fetch(
        connection,
        namespace=namespace,
        run_ids=[run_id for run_id, _ in sent],
        names=[name for _, name in sent],
    )
    for row in woken:
        if row["status"] == "RUNNING":
            outcome.told.append(str(row["run_id"]))
        else:
            outcome.becomes_due(row["task_queue"], None)


async def receive(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Marks the signals that these steps got. An operation whose signal another step has is refused."""
    marked = await _receive.fetch(
        connection,
        namespace=namespace,
        signal_ids=[operation.body.signal_id for operation in operations],
        run_ids=[operation.run_id for operation in operations],
        attempt_ids=[operation.body.attempt_id for operation in operations],
    )
    got = {str(row["signal_id"]) for row in marked}
    for operation in operations:
        if operation.body.signal_id not in got:
            operation.answer = ErrorDetail(
                code=ErrorDetail.PRECONDITION_FAILED,
                message=f"signal {operation.body.signal_id} is not there for this step: unknown, or received before",
                subject=operation.body.signal_id,
                field="step.signal_id",
            )


async def give_back(connection: Connection, namespace: str, signal_ids: Sequence[str]) -> None:
    """Lets signals be received again whose receipt was set aside."""
    await _give_back.execute(connection, namespace=namespace, signal_ids=signal_ids)


async def next_(connection: Connection, namespace: str, run_id: str, name: str) -> Record | None:
    """The oldest signal of a name that the run has not received."""
    return await _next.first(connection, namespace=namespace, run_id=run_id, name=name)


async def get(connection: Connection, namespace: str, signal_id: str) -> Record | None:
    """One signal."""
    return await _get.first(connection, namespace=namespace, signal_id=signal_id)


async def waiting(connection: Connection, namespace: str, run_ids: Sequence[str]) -> list[Record]:
    """Signals that the runs have not received, by run and arrival."""
    return await _waiting.fetch(connection, namespace=namespace, run_ids=run_ids)


async def final_run(connection: Connection, namespace: str, run_id: str) -> str | None:
    """The last run of a chain of continue-as-new; None when the run does not exist."""
    row = await _final_run.first(connection, namespace=namespace, run_id=run_id)
    return None if row is None else str(row["run_id"])


def _answer(operation: Operation, run_id: str, status: str) -> SignalWorkflowResponse:
    return SignalWorkflowResponse(signal_id=operation.body.signal_id, run_id=run_id, status=rows.RUN_STATUS[status])
