"""Operations of workers that know nothing but unary calls: the server keeps the order for them. Each looks at what is
on record for its step and goes on from there, under the fence of its run, with the set-based writes of the other
modules.
"""

from __future__ import annotations

from datetime import timedelta

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, SIGNAL, SLEEP, Step
from kagzi.protocol.v1.worker_pb2 import (
    BeginStepResponse,
    ChildEnded,
    EndAnswer,
    FailStepResponse,
    ReceiveSignalRequest,
    ReceiveSignalResponse,
    SleepRequest,
    SleepResponse,
    StartChild,
    StartChildResponse,
    StepCompleted,
    StepFailed,
    StepFailedAnswer,
    StepStarted,
    Suspend,
    Warn,
)
from kagzi.store import children, endings, facts, resolutions, rows, signals, steps, suspensions
from kagzi.store.operation import Kind, Operation, Outcome


async def begin(connection: Connection, operation: Operation) -> None:
    """A step was reached: its body is to run, unless it has a result, a final failure, or waits for something."""
    body: StepStarted = operation.body
    record = await _latest(connection, operation, body.step_id)
    if record is not None and record["status"] == "UNKNOWN":
        record = await _resolved(connection, operation, record)
        if operation.refused:
            return
    if record is not None and record["input_hash"] and body.input_hash not in (0, record["input_hash"]):
        await _warn_of_input(connection, operation)
    if record is not None and not _may_run_again(record, body.attempt_id):
        operation.answer = BeginStepResponse(should_execute=False, step=rows.step(record))
        return
    if record is None or str(record["attempt_id"]) != body.attempt_id:
        await steps.start(connection, operation.namespace, [operation])
        if operation.refused:
            return
        record = await _latest(connection, operation, body.step_id)
    operation.answer = BeginStepResponse(should_execute=True, step=_step(record))


async def _warn_of_input(connection: Connection, operation: Operation) -> None:
    step_id = operation.body.step_id
    message = f"step {step_id!r} is called with another input than the one on record"
    warning = Operation(Kind.WARN, operation.namespace, operation.run_id, Warn(step_id=step_id, message=message))
    await suspensions.warn(connection, operation.namespace, [warning])


async def _resolved(connection: Connection, operation: Operation, record: Record) -> Record | None:
    """A step in doubt: what a person said of it goes on record now, for workers that cannot say it themselves."""
    for _, resolved in await resolutions.waiting(connection, operation.namespace, [operation.run_id]):
        if resolved.step_id != record["step_id"]:
            continue
        write: StepCompleted | StepFailed
        if resolved.step.status == rows.STEP_STATUS["COMPLETED"]:
            write = StepCompleted(output=resolved.step.output if resolved.step.HasField("output") else None)
        else:
            write = StepFailed(failure=resolved.step.failure)
        write.step_id, write.attempt_id, write.kind = resolved.step_id, resolved.step.attempt_id, resolved.step.kind
        write.attempt_number, write.position = resolved.step.attempt_number, resolved.step.position
        await _write(connection, operation, Kind.COMPLETE_STEP, write)
        return await _latest(connection, operation, resolved.step_id)
    return record


def _may_run_again(record: Record, attempt_id: str) -> bool:
    """Whether the body may run: the same attempt asked again, a failed one whose delay is over, or one whose worker is
    gone. An effect is never repeated on a guess.
    """
    match record["status"]:
        case "PENDING" | "RUNNING":
            return str(record["attempt_id"]) == attempt_id or not record["effect"]
        case "FAILED":
            return bool(record["retry_due"])
        case "INTERRUPTED":
            return True
    return False


async def fail_and_give_back(connection: Connection, operation: Operation, outcome: Outcome) -> None:
    """A step failed: when another attempt follows, the run is given back until then and replay reaches the step
    again.
    """
    await steps.fail(connection, operation.namespace, [operation])
    answer = operation.answer
    if not isinstance(answer, StepFailedAnswer):
        return
    if not answer.will_retry:
        operation.answer = FailStepResponse(scheduled_retry=False, status=rows.RUN_STATUS["RUNNING"])
        return
    await suspensions.release(
        connection, operation.namespace, [operation], outcome, delays_ms=[max(0, answer.delay_ms)]
    )
    if not isinstance(operation.answer, EndAnswer):
        return
    operation.answer = FailStepResponse(
        scheduled_retry=True,
        retry_at_us=answer.retry_at_us,
        delay_ms=answer.delay_ms,
        status=operation.answer.status,
    )


async def sleep(connection: Connection, operation: Operation, outcome: Outcome) -> None:
    """A durable timer: recorded when first reached, completed when it is due, otherwise the run is given back."""
    body: SleepRequest = operation.body
    record = await _latest(connection, operation, body.step_id)
    if record is None:
        started = StepStarted(step_id=body.step_id, attempt_id=body.attempt_id, kind=SLEEP)
        if body.HasField("wake_at_us"):
            started.wake_at_us = body.wake_at_us
        else:
            started.duration_ms = body.duration_ms
        if not await _write(connection, operation, Kind.START_STEP, started):
            return
        record = await _latest(connection, operation, body.step_id)
    step = _step(record)
    wake_at_us = step.wake_at.ToMicroseconds()
    if record is not None and record["status"] == "RUNNING" and record["wake_due"]:
        completed = StepCompleted(
            step_id=body.step_id, attempt_id=step.attempt_id, attempt_number=step.attempt_number, kind=SLEEP
        )
        if not await _write(connection, operation, Kind.COMPLETE_STEP, completed):
            return
    elif step.status == rows.STEP_STATUS["RUNNING"]:
        waits = Operation(
            Kind.SUSPEND,
            operation.namespace,
            operation.run_id,
            Suspend(step_ids=[body.step_id]),
            token=operation.token,
            operation_id=operation.operation_id,
        )
        await suspensions.suspend(connection, operation.namespace, [waits], outcome)
        operation.answer = waits.answer
        if isinstance(waits.answer, EndAnswer):
            operation.answer = SleepResponse(elapsed=False, wake_at_us=wake_at_us, status=waits.answer.status)
        return
    operation.answer = SleepResponse(elapsed=True, wake_at_us=wake_at_us, status=rows.RUN_STATUS["RUNNING"])


async def sleep_again(connection: Connection, operation: Operation) -> None:
    """The repeat of a timer that gave the run back: answered as the first time, whoever has the run now."""
    step = _step(await _latest(connection, operation, operation.body.step_id))
    wake_at_us = step.wake_at.ToMicroseconds()
    operation.answer = SleepResponse(elapsed=False, wake_at_us=wake_at_us, status=rows.RUN_STATUS["SLEEPING"])


async def receive(connection: Connection, operation: Operation) -> None:
    """Receives the oldest signal of a name, notes that waiting timed out, or says that none is there."""
    body: ReceiveSignalRequest = operation.body
    record = await _latest(connection, operation, body.step_id)
    if record is None:
        started = StepStarted(step_id=body.step_id, attempt_id=body.attempt_id, kind=SIGNAL, target=body.name)
        if body.HasField("timeout_ms"):
            started.duration_ms = body.timeout_ms
        if not await _write(connection, operation, Kind.START_STEP, started):
            return
        record = await _latest(connection, operation, body.step_id)
    step = _step(record)
    if step.status == rows.STEP_STATUS["RUNNING"] and record is not None:
        found = await signals.next_(connection, operation.namespace, operation.run_id, step.target)
        if found is None and not record["wake_due"]:
            operation.answer = ReceiveSignalResponse(outcome=ReceiveSignalResponse.WAITING)
            if step.HasField("wake_at"):
                operation.answer.wake_at_us = step.wake_at.ToMicroseconds()
            return
        completed = StepCompleted(
            step_id=body.step_id, attempt_id=step.attempt_id, attempt_number=step.attempt_number, kind=SIGNAL
        )
        if found is not None:
            completed.signal_id = str(found["signal_id"])
            message = rows.signal(found)
            if message.HasField("payload"):
                completed.output.CopyFrom(message.payload)
        if not await _write(connection, operation, Kind.COMPLETE_STEP, completed):
            return
        step.signal_id = completed.signal_id
    if not step.signal_id:
        operation.answer = ReceiveSignalResponse(outcome=ReceiveSignalResponse.TIMED_OUT)
        return
    received = await signals.get(connection, operation.namespace, step.signal_id)
    operation.answer = ReceiveSignalResponse(
        outcome=ReceiveSignalResponse.RECEIVED, signal=None if received is None else rows.signal(received)
    )


async def await_child(connection: Connection, operation: Operation, lease: timedelta, outcome: Outcome) -> None:
    """Starts a child when its step is first reached; once the child has ended, records how and says so."""
    body: StartChild = operation.body
    record = await _latest(connection, operation, body.step_id)
    if record is None:
        await children.start(connection, operation.namespace, [operation], lease, outcome)
        if operation.refused:
            return
        record = await _latest(connection, operation, body.step_id)
    step = _step(record)
    ended = None
    if step.status == rows.STEP_STATUS["RUNNING"]:
        ended = await _ended_child(connection, operation, step)
        if operation.refused:
            return
    elif not body.start_only:
        ended = ChildEnded(child_run_id=step.child_run_id, status=rows.RUN_STATUS["FAILED"])
        if step.status == rows.STEP_STATUS["COMPLETED"]:
            ended.status = rows.RUN_STATUS["COMPLETED"]
        if step.HasField("output"):
            ended.output.CopyFrom(step.output)
        if step.HasField("failure"):
            ended.failure.CopyFrom(step.failure)
    status = await endings.status_of(connection, operation.namespace, step.child_run_id)
    operation.answer = StartChildResponse(child_run_id=step.child_run_id, status=rows.RUN_STATUS[status], ended=ended)


async def _ended_child(connection: Connection, operation: Operation, step: Step) -> ChildEnded | None:
    """The end of the child the step waits for, put on record; None while it lives."""
    for _, ended in await facts.children_ended(connection, operation.namespace, [operation.run_id]):
        if ended.child_run_id != step.child_run_id:
            continue
        write: StepCompleted | StepFailed
        if ended.status == rows.RUN_STATUS["COMPLETED"]:
            write = StepCompleted(output=ended.output if ended.HasField("output") else None)
        else:
            write = StepFailed(failure=ended.failure)
            write.failure.non_retryable = True
        write.step_id, write.attempt_id, write.kind = step.step_id, step.attempt_id, CHILD_WORKFLOW
        write.attempt_number, write.child_run_id = step.attempt_number, step.child_run_id
        await _write(connection, operation, Kind.COMPLETE_STEP, write)
        return ended
    return None


async def _write(
    connection: Connection, operation: Operation, kind: Kind, body: StepStarted | StepCompleted | StepFailed
) -> bool:
    """Writes a record for the operation's step; a refusal becomes the operation's own."""
    write = Operation(kind, operation.namespace, operation.run_id, body, token=operation.token)
    if isinstance(body, StepStarted):
        await steps.start(connection, operation.namespace, [write])
    elif isinstance(body, StepFailed):
        await steps.fail(connection, operation.namespace, [write])
    else:
        if body.signal_id:
            await signals.receive(connection, operation.namespace, [write])
        if not write.refused:
            await steps.complete(connection, operation.namespace, [write])
    if write.refused:
        operation.answer = write.answer
    return not write.refused


async def _latest(connection: Connection, operation: Operation, step_id: str) -> Record | None:
    return await steps.latest(connection, operation.namespace, operation.run_id, step_id)


def _step(record: Record | None) -> Step:
    assert record is not None
    return rows.step(record)
