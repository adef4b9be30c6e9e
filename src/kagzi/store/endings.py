"""How runs end. Completion with its output, failure, cancel, terminate, continue-as-new: each is one transition in one
transaction together with the waking of whoever waits for it. Terminal is terminal: every statement here leaves a run
alone that has ended, and exactly one writer gets there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import HandlerFault
from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.protocol.v1.worker_pb2 import ContinueAsNew, EndAnswer, Fail
from kagzi.protocol.v1.workflow_pb2 import CancelWorkflowResponse, TerminateWorkflowResponse
from kagzi.store import errors, instances, retry, rows, settlement, signals, steps
from kagzi.store.leases import Fence
from kagzi.store.operation import Ended, Fault, Kind, Operation, Outcome
from kagzi.store.queries import Queries

_sql = Queries("endings.sql")
_ENDED = ("run_id", "status", "parent_run_id", "task_queue", "workflow_type", "took_ms", "automation", "frees")
_complete = _sql.bind("complete", columns=("run_id", "parent_run_id", "workflow_type", "took_ms", "frees"))
_failing = _sql.bind("failing", columns=("run_id", "attempts", "retry_policy", "cancelled", "late"))
_fail = _sql.bind("fail", columns=(*_ENDED, "available_at"))
_cancel = _sql.bind("cancel", columns=_ENDED)
_terminate = _sql.bind("terminate", columns=_ENDED)
_wake_parents = _sql.bind("wake_parents", columns=("run_id", "status", "task_queue"))
_children = _sql.bind("children", columns=("run_id",))
_lock = _sql.bind("lock", columns=("run_id", "status", "detached"))
_concerned = _sql.bind("concerned", columns=("run_id",))
_release_external_id = _sql.bind("release_external_id")
_continue = _sql.bind("continue_as_new", columns=("run_id", "task_queue", "workflow_type"))
_dedupe = _sql.bind("dedupe", columns=("dedupe_forever",))
_status = _sql.bind("status", columns=("run_id", "status", "available_at"))

_FAULTS: dict[int, Fault] = {
    HandlerFault.HANDLER_FAULT_UNSPECIFIED: "DEFECT",
    HandlerFault.FAULT_TRANSIENT: "TRANSIENT",
    HandlerFault.FAULT_NEEDS_ATTENTION: "NEEDS_ATTENTION",
    HandlerFault.FAULT_DEFECT: "DEFECT",
}
_NO_FAULTS: Mapping[str, Fault] = {}
LIVE = frozenset({"PENDING", "RUNNING", "SLEEPING"})
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


async def complete(connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome) -> None:
    """Ends runs with their outputs."""
    outputs = [operation.body.output if operation.body.HasField("output") else None for operation in operations]
    found = await _complete.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        tokens=[operation.token for operation in operations],
        operation_ids=[operation.operation_id for operation in operations],
        outputs=[None if output is None else output.data for output in outputs],
        output_encodings=[None if output is None else output.encoding or None for output in outputs],
    )
    written = {str(row["run_id"]): row for row in found}
    ended = []
    for operation, output in zip(operations, outputs, strict=True):
        row = written.get(operation.run_id)
        if row is None:
            operation.answer = errors.lease_lost(operation.run_id)
            continue
        operation.answer = EndAnswer(status=rows.RUN_STATUS["COMPLETED"])
        parent = str(row["parent_run_id"]) if row["parent_run_id"] else None
        took = (row["workflow_type"], row["took_ms"])
        ended.append(Ended(operation.run_id, "COMPLETED", parent, output, took=took, frees=_frees(row)))
    await settle(connection, namespace, ended, outcome)


async def fail(connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome) -> None:
    """Ends runs with an error. One with tries left is set back instead; one that was asked to cancel is CANCELLED."""
    run_ids = [operation.run_id for operation in operations]
    facts = {str(row["run_id"]): row for row in await _failing.fetch(connection, namespace=namespace, run_ids=run_ids)}
    decided = [_decide(operation.body, facts[operation.run_id]) for operation in operations]
    found = await _fail.fetch(
        connection,
        namespace=namespace,
        run_ids=run_ids,
        tokens=[operation.token for operation in operations],
        operation_ids=[operation.operation_id for operation in operations],
        statuses=[status for status, _, _ in decided],
        errors=[error for _, error, _ in decided],
        retry_ms=[delay for _, _, delay in decided],
    )
    written = {str(row["run_id"]): row for row in found}
    aside = []
    for operation in operations:
        row = written.get(operation.run_id)
        if row is None:
            operation.answer = errors.lease_lost(operation.run_id)
            continue
        operation.answer = answer(row)
        if row["status"] == "PENDING":
            outcome.becomes_due(row["task_queue"], row["available_at"])
            if operation.body.failed_step_id:
                aside.append((operation.run_id, operation.body.failed_step_id))
    if aside:
        await _set_aside(connection, namespace, aside, outcome)
    kept = {run_id: error for run_id, (_, error, _) in zip(run_ids, decided, strict=True)}
    faults = {operation.run_id: _FAULTS[operation.body.fault] for operation in operations}
    await settle(connection, namespace, _ended(found, kept, faults), outcome)


def _decide(body: Fail, row: Record) -> tuple[str, str, int | None]:
    """The status to write, the error to keep, and the delay before another try."""
    error = rows.failure_text(body.failure, body.failed_step_id)
    if row["cancelled"]:
        late = Failure(type="DeadlineExceeded", message="the run's time was up")
        return ("FAILED", rows.failure_text(late), None) if row["late"] else ("CANCELLED", error, None)
    policy = rows.retry_policy(row["retry_policy"])
    if policy is None or body.failure.non_retryable:
        return "FAILED", error, None
    delay = retry.delay_ms(policy, row["attempts"] + 1)
    if delay is None:
        return "FAILED", error, None
    if body.failure.HasField("retry_after_ms"):
        delay = body.failure.retry_after_ms
    return "PENDING", error, delay


async def _set_aside(
    connection: Connection, namespace: str, failed: Sequence[tuple[str, str]], outcome: Outcome
) -> None:
    """What will happen again gives its signal back, and its live children are asked to end."""
    dropped = await steps.set_aside(connection, namespace, failed)
    received = [str(row["signal_id"]) for row in dropped if row["signal_id"]]
    if received:
        await signals.give_back(connection, namespace, received)
    children = [str(row["child_run_id"]) for row in dropped if row["child_run_id"]]
    await abandon_children(connection, namespace, children, "the step that started it is tried again", outcome)


async def abandon_children(
    connection: Connection, namespace: str, run_ids: Sequence[str], reason: str, outcome: Outcome
) -> None:
    """Asks children to end that nobody waits for any more, unless they were started detached."""
    if run_ids:
        locked = await _lock.fetch(connection, namespace=namespace, run_ids=run_ids)
        live = [str(row["run_id"]) for row in locked if row["status"] in LIVE and not row["detached"]]
        await _ask(connection, namespace, live, reason, outcome)


async def cancel(
    connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence, outcome: Outcome
) -> None:
    """Asks runs to end and answers the status each has then."""
    reasons = {operation.run_id: operation.body.reason for operation in operations}
    found = await _request(connection, namespace, reasons, outcome)
    for operation in operations:
        lock = fence.of(operation)
        assert lock is not None
        status = found.get(operation.run_id, lock.status)
        operation.answer = CancelWorkflowResponse(status=rows.RUN_STATUS[status])


async def _request(connection: Connection, namespace: str, reasons: dict[str, str], outcome: Outcome) -> dict[str, str]:
    """Writes cancel requests for locked runs; answers the status of those that had not ended."""
    kept = {run_id: cancelled_error(reason) for run_id, reason in reasons.items()}
    found = await _cancel.fetch(
        connection,
        namespace=namespace,
        run_ids=list(reasons),
        reasons=list(reasons.values()),
        errors=list(kept.values()),
    )
    for row in found:
        if row["status"] == "RUNNING":
            outcome.told.append(str(row["run_id"]))
        elif row["status"] in LIVE:
            outcome.becomes_due(row["task_queue"], None)
    await settle(connection, namespace, _ended(found, kept), outcome)
    return {str(row["run_id"]): row["status"] for row in found}


async def _ask(connection: Connection, namespace: str, run_ids: Sequence[str], reason: str, outcome: Outcome) -> None:
    if run_ids:
        await _request(connection, namespace, dict.fromkeys(run_ids, reason), outcome)


async def terminate(
    connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence, outcome: Outcome
) -> None:
    """Ends runs now and answers the status each has then."""
    kept = {operation.run_id: _error("Terminated", operation.body.reason or "terminated") for operation in operations}
    found = await _terminate.fetch(
        connection,
        namespace=namespace,
        run_ids=list(kept),
        statuses=["CANCELLED"] * len(kept),
        errors=list(kept.values()),
    )
    statuses = {str(row["run_id"]): row["status"] for row in found}
    for operation in operations:
        lock = fence.of(operation)
        assert lock is not None
        status = statuses.get(operation.run_id, lock.status)
        operation.answer = TerminateWorkflowResponse(status=rows.RUN_STATUS[status])
    outcome.told.extend(statuses)
    await steps.interrupt(connection, namespace, list(statuses))
    await settle(connection, namespace, _ended(found, kept), outcome)


async def replace(connection: Connection, namespace: str, run_id: str, by: str, outcome: Outcome) -> None:
    """Ends the run that has an external id, so that the run `by` can take it in the same transaction."""
    await end_by_force(
        connection, namespace, [run_id], "CANCELLED", _error("Replaced", f"replaced by run {by}"), outcome
    )


async def expire(connection: Connection, namespace: str, run_ids: Sequence[str], outcome: Outcome) -> None:
    """Ends runs whose time was up long ago and that did not end by themselves."""
    error = _error("DeadlineExceeded", "the run's time was up and it did not end when asked to")
    await end_by_force(connection, namespace, run_ids, "FAILED", error, outcome)


async def request_cancel(
    connection: Connection, namespace: str, run_ids: Sequence[str], reason: str, outcome: Outcome
) -> dict[str, str]:
    """Asks runs to end, for callers that hold no fence: locks them, and whom their end concerns, first. Answers the
    status of those that had not ended.
    """
    await lock_with_concerned(connection, namespace, run_ids)
    return await _request(connection, namespace, dict.fromkeys(run_ids, reason), outcome)


async def end_by_force(
    connection: Connection, namespace: str, run_ids: Sequence[str], status: str, error: str, outcome: Outcome
) -> None:
    """Ends runs for callers that hold no fence: locks them and whom their end concerns in key order, then ends what
    still lives.
    """
    await lock_with_concerned(connection, namespace, run_ids)
    found = await _terminate.fetch(
        connection,
        namespace=namespace,
        run_ids=run_ids,
        statuses=[status] * len(run_ids),
        errors=[error] * len(run_ids),
    )
    ended = _ended(found, dict.fromkeys(run_ids, error))
    outcome.told.extend(run.run_id for run in ended)
    await steps.interrupt(connection, namespace, [run.run_id for run in ended])
    await settle(connection, namespace, ended, outcome)


async def lock_concerned(connection: Connection, namespace: str, ended: Sequence[Ended]) -> None:
    """Locks whom the end of runs concerns, where no fence could lock them along."""
    concerned = {run_id for run in ended for run_id in (run.parent_run_id, run.frees) if run_id}
    if concerned:
        await _lock.fetch(connection, namespace=namespace, run_ids=list(concerned))


async def lock_with_concerned(connection: Connection, namespace: str, run_ids: Sequence[str]) -> None:
    """Locks runs that may end, and whom their end concerns, in key order."""
    concerned = await _concerned.fetch(connection, namespace=namespace, run_ids=run_ids)
    all_ = {*run_ids, *(str(row["run_id"]) for row in concerned if row["run_id"])}
    await _lock.fetch(connection, namespace=namespace, run_ids=list(all_))


async def continue_as_new(
    connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome
) -> None:
    """Ends runs and stores their successors. A parent is not told of an end: whoever waits goes on waiting for the
    successor.
    """
    for operation in operations:
        body: ContinueAsNew = operation.body
        keeps = await _dedupe.first(connection, namespace=namespace, run_id=operation.run_id)
        done = await _complete.fetch(
            connection,
            namespace=namespace,
            run_ids=[operation.run_id],
            tokens=[operation.token],
            operation_ids=[operation.operation_id],
            outputs=[None],
            output_encodings=[None],
        )
        if not done or keeps is None:
            operation.answer = errors.lease_lost(operation.run_id)
            continue
        await _release_external_id.execute(
            connection, namespace=namespace, run_id=operation.run_id, new_run_id=body.new_run_id
        )
        row = await _continue.first(
            connection,
            namespace=namespace,
            run_id=operation.run_id,
            new_run_id=body.new_run_id,
            seed=random.getrandbits(62),
            dedupe_forever=keeps["dedupe_forever"],
            input=body.input.data if body.HasField("input") else None,
            input_encoding=body.input.encoding or None,
        )
        assert row is not None
        outcome.becomes_due(row["task_queue"], None)
        outcome.started.append(row["workflow_type"])
        took = (row["workflow_type"], done[0]["took_ms"])
        outcome.ended.append(Ended(operation.run_id, "COMPLETED", None, continued_as=body.new_run_id, took=took))
        operation.answer = EndAnswer(status=rows.RUN_STATUS["COMPLETED"])


async def settle(connection: Connection, namespace: str, ended: Sequence[Ended], outcome: Outcome) -> None:
    """What the end of runs means for others, in the same transaction: a parent that waits is made due, and so is the
    next run of its schedule; children of a run that ended badly are asked to end too, and its automation goes on as
    the ledger says.
    """
    if not ended:
        return
    outcome.ended.extend(ended)
    parents = [run.parent_run_id for run in ended if run.parent_run_id]
    if parents:
        for row in await _wake_parents.fetch(connection, namespace=namespace, run_ids=parents):
            if row["status"] == "RUNNING":
                outcome.told.append(str(row["run_id"]))
            else:
                outcome.becomes_due(row["task_queue"], None)
    freed = [run.frees for run in ended if run.frees]
    if freed:
        await instances.release(connection, namespace, freed, outcome)
    badly = [run.run_id for run in ended if run.status != "COMPLETED"]
    if badly:
        children = await _children.fetch(connection, namespace=namespace, run_ids=badly)
        live = [str(row["run_id"]) for row in children]
        await _ask(connection, namespace, live, "its parent ended", outcome)
    handling = [run for run in ended if run.automation is not None and run.status != "COMPLETED"]
    if handling:
        await settlement.settle(connection, namespace, handling, outcome)


async def answer_again(connection: Connection, namespace: str, operations: Collection[Operation]) -> None:
    """Answers operations that gave a run away as the first time, whoever has the run now."""
    found = await _status.fetch(connection, namespace=namespace, run_ids=[operation.run_id for operation in operations])
    stands = {str(row["run_id"]): row for row in found}
    for operation in operations:
        row = stands[operation.run_id]
        status = _status_after(operation.kind, row["status"])
        operation.answer = answer(row) if status == row["status"] else EndAnswer(status=rows.RUN_STATUS[status])


def _status_after(kind: Kind, status: str) -> str:
    """The status that an operation of this kind left; `status` is the one the run has now."""
    match kind:
        case Kind.SUSPEND | Kind.SLEEP:
            return "SLEEPING"
        case Kind.RELEASE | Kind.FAIL_STEP_AND_GIVE_BACK:
            return "PENDING"
        case Kind.FAIL if status not in TERMINAL:
            return "PENDING"
    return status


async def status_of(connection: Connection, namespace: str, run_id: str) -> str:
    """The status of one run."""
    row = await _status.first(connection, namespace=namespace, run_ids=[run_id])
    if row is None:
        raise errors.not_found("run", run_id)
    status: str = row["status"]
    return status


def answer(row: Record) -> EndAnswer:
    """The answer to an operation that gave a run away."""
    given = EndAnswer(status=rows.RUN_STATUS[row["status"]])
    if row["available_at"] is not None:
        given.available_at_us = rows.microseconds(row["available_at"])
    return given


def _ended(found: Iterable[Record], kept: Mapping[str, str], faults: Mapping[str, Fault] = _NO_FAULTS) -> list[Ended]:
    """Those of the rows that have ended, with the error that was written. What a worker blames on a handler counts only
    if that is why the run ended.
    """
    return [
        Ended(
            str(row["run_id"]),
            row["status"],
            str(row["parent_run_id"]) if row["parent_run_id"] else None,
            error=kept[str(row["run_id"])],
            took=(row["workflow_type"], row["took_ms"]),
            automation=row["automation"],
            fault=faults.get(str(row["run_id"]), "TRANSIENT") if row["status"] == "FAILED" else "TRANSIENT",
            frees=_frees(row),
        )
        for row in found
        if row["status"] in TERMINAL
    ]


def _frees(row: Record) -> str | None:
    return str(row["frees"]) if row["frees"] else None


def cancelled_error(reason: str) -> str:
    """The error of a run that was cancelled."""
    return _error("Cancelled", reason or "cancelled")


def _error(type_: str, message: str) -> str:
    return msgspec.json.encode({"type": type_, "message": message.replace("\0", "")}).decode()
