"""Attempts of steps: what was reached, what came of it, and the history a run is replayed from. Every write is
set-based and made under the fence of its run; a repeated one is recognised by its attempt id. A step that has a result
never gets another attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import STEP_FAILED, STEP_UNKNOWN, ErrorDetail
from kagzi.protocol.v1.worker_pb2 import EndAnswer, StepFailed, StepFailedAnswer, StepStartedAnswer
from kagzi.store import retry, rows
from kagzi.store.operation import Operation
from kagzi.store.queries import Queries

_sql = Queries("steps.sql")
_complete = _sql.bind("complete")
_fail = _sql.bind("fail", columns=("run_id", "attempt_id", "retry_at"))
_start = _sql.bind("start", columns=("run_id", "attempt_id", "wake_at", "now"))
_supersede = _sql.bind("supersede")
_recorded = _sql.bind("recorded", columns=("run_id", "attempt_id", "status", "retry_at", "wake_at", "now"))
_failures = _sql.bind("failures", columns=("number", "failures"))
_interrupt = _sql.bind("interrupt")
_set_aside = _sql.bind("set_aside", columns=("run_id", "signal_id", "child_run_id"))
_latest = _sql.bind("latest", columns=(*rows.STEP_COLUMNS, "run_id", "retry_due", "wake_due"))
HISTORY_COLUMNS = (
    "run_id",
    "step_id",
    "attempt_id",
    "attempt_number",
    "kind",
    "status",
    "position",
    "completed_seq",
    "output",
    "output_encoding",
    "error",
    "retry_at",
    "wake_at",
    "target",
    "child_run_id",
    "signal_id",
    "input_hash",
    "effect",
    "unclear",
)
_history = _sql.bind("history", columns=HISTORY_COLUMNS)

ACCEPTED = EndAnswer()


async def complete(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Records results. Each operation is answered ACCEPTED, also when it repeats one, or refused."""
    await _make_room(connection, namespace, operations)
    bodies = [operation.body for operation in operations]
    outputs = [body.output if body.HasField("output") else None for body in bodies]
    written = await _complete.execute(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        step_ids=[body.step_id for body in bodies],
        attempt_ids=[body.attempt_id for body in bodies],
        attempt_numbers=[body.attempt_number for body in bodies],
        positions=[body.position for body in bodies],
        completed_seqs=[body.completed_seq for body in bodies],
        kinds=[rows.STEP_KIND_NAME[body.kind] for body in bodies],
        input_hashes=[body.input_hash or None for body in bodies],
        outputs=[None if output is None else output.data for output in outputs],
        output_encodings=[None if output is None else output.encoding or None for output in outputs],
        child_run_ids=[body.child_run_id or None for body in bodies],
        signal_ids=[body.signal_id or None for body in bodies],
        elapsed_us=[body.elapsed_us for body in bodies],
    )
    if written == len(operations):
        for operation in operations:
            operation.answer = ACCEPTED
    else:
        await recognise(connection, namespace, operations)


async def fail(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Records attempts that did not end well and decides, from the policy that came along, whether another follows."""
    await _make_room(connection, namespace, operations)
    bodies: list[StepFailed] = [operation.body for operation in operations]
    run_ids = [operation.run_id for operation in operations]
    counted = await _failures.fetch(
        connection, namespace=namespace, run_ids=run_ids, step_ids=[body.step_id for body in bodies]
    )
    failures = {row["number"] - 1: row["failures"] for row in counted}
    delays = [_retry_delay(body, failures[index] + 1) for index, body in enumerate(bodies)]
    written = await _fail.fetch(
        connection,
        namespace=namespace,
        run_ids=run_ids,
        step_ids=[body.step_id for body in bodies],
        attempt_ids=[body.attempt_id for body in bodies],
        attempt_numbers=[body.attempt_number for body in bodies],
        positions=[body.position for body in bodies],
        completed_seqs=[body.completed_seq for body in bodies],
        statuses=[rows.STEP_STATUS_NAME[body.outcome or STEP_FAILED] for body in bodies],
        kinds=[rows.STEP_KIND_NAME[body.kind] for body in bodies],
        input_hashes=[body.input_hash or None for body in bodies],
        errors=[rows.failure_text(body.failure) if body.HasField("failure") else None for body in bodies],
        retry_ms=delays,
        child_run_ids=[body.child_run_id or None for body in bodies],
        elapsed_us=[body.elapsed_us for body in bodies],
        unclear=[body.unclear for body in bodies],
    )
    if len(written) < len(operations):
        await recognise(connection, namespace, operations, held=True)
        return
    retry_at = {(str(row["run_id"]), str(row["attempt_id"])): row["retry_at"] for row in written}
    for operation, delay in zip(operations, delays, strict=True):
        at = retry_at[operation.run_id, operation.body.attempt_id]
        operation.answer = _failed_answer(at, delay or 0)


async def start(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Records that steps were reached; timers get their end."""
    await _make_room(connection, namespace, operations)
    bodies = [operation.body for operation in operations]
    written = await _start.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        step_ids=[body.step_id for body in bodies],
        attempt_ids=[body.attempt_id for body in bodies],
        attempt_numbers=[body.attempt_number for body in bodies],
        positions=[body.position for body in bodies],
        kinds=[rows.STEP_KIND_NAME[body.kind] for body in bodies],
        effects=[body.effect for body in bodies],
        input_hashes=[body.input_hash or None for body in bodies],
        durations_ms=[body.duration_ms if body.HasField("duration_ms") else None for body in bodies],
        wake_ats=[moment(body.wake_at_us) if body.HasField("wake_at_us") else None for body in bodies],
        targets=[body.target or None for body in bodies],
        child_run_ids=[body.child_run_id or None for body in bodies],
    )
    if len(written) < len(operations):
        await recognise(connection, namespace, operations)
        return
    wake_at = {(str(row["run_id"]), str(row["attempt_id"])): row for row in written}
    for operation in operations:
        row = wake_at[operation.run_id, operation.body.attempt_id]
        operation.answer = _started_answer(row["wake_at"], row["now"])


async def recognise(
    connection: Connection, namespace: str, operations: Sequence[Operation], *, held: bool = False
) -> None:
    """Answers step operations from what is on record: the same answer as the first time for a repeat or a write of
    this very transaction, a refusal for anything else. Looked at before the fence speaks, because a repeat may arrive
    after the run was given away. Who holds the run (`held`) may repeat a doubt that it has settled since; from anybody
    else it is news, for an effect in doubt keeps its attempt in the hands of the next worker.
    """
    found = await _recorded.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in operations],
        step_ids=[operation.body.step_id for operation in operations],
        attempt_ids=[operation.body.attempt_id for operation in operations],
    )
    records = {(str(row["run_id"]), str(row["attempt_id"])): row for row in found}
    for operation in operations:
        record = records.get((operation.run_id, operation.body.attempt_id))
        if record is not None:
            operation.answer = _stored_answer(operation, record, held=held)
        if operation.answer is None:
            step = operation.body.step_id
            status = "taken by another attempt" if record is None else str(record["status"]).lower()
            operation.answer = ErrorDetail(
                code=ErrorDetail.PRECONDITION_FAILED,
                message=f"step {step!r} of run {operation.run_id} cannot take this: it is {status}",
                subject=step,
                field="step.attempt_id",
            )


async def ended(connection: Connection, namespace: str, attempts: Sequence[tuple[str, str, str]]) -> set[str]:
    """Those of these attempts, given as (run, step, attempt), that are on record with what became of them."""
    found = await _recorded.fetch(
        connection,
        namespace=namespace,
        run_ids=[run_id for run_id, _, _ in attempts],
        step_ids=[step_id for _, step_id, _ in attempts],
        attempt_ids=[attempt_id for _, _, attempt_id in attempts],
    )
    return {str(row["attempt_id"]) for row in found if row["status"] not in ("PENDING", "RUNNING")}


def _stored_answer(operation: Operation, record: Record, *, held: bool) -> Any:
    """What the attempt was answered the first time, or None if this is no repetition of it."""
    status = record["status"]
    match operation.kind.name:
        case "COMPLETE_STEP" if status == "COMPLETED":
            return ACCEPTED
        case "FAIL_STEP" | "FAIL_STEP_AND_GIVE_BACK" if status == _told(operation) or (
            held and _settled(operation, status)
        ):
            at = record["retry_at"]
            delay = 0 if at is None else max(0, rows.microseconds(at) - rows.microseconds(record["now"])) // 1000
            return _failed_answer(at, delay)
        case "START_STEP" | "START_CHILD":
            return _started_answer(record["wake_at"], record["now"])
    return None


def _told(operation: Operation) -> str:
    """The status that a failed attempt is said to have."""
    return rows.STEP_STATUS_NAME[operation.body.outcome or STEP_FAILED]


def _settled(operation: Operation, status: str) -> bool:
    """Whether it says that an outcome is unknown, and the outcome has become known."""
    return operation.body.outcome == STEP_UNKNOWN and status in ("COMPLETED", "FAILED")


async def set_aside(connection: Connection, namespace: str, failed: Sequence[tuple[str, str]]) -> list[Record]:
    """A retry of whole workflows: (run, step) and all that was asked for after it will happen again."""
    return await _set_aside.fetch(
        connection,
        namespace=namespace,
        run_ids=[pair[0] for pair in failed],
        step_ids=[pair[1] for pair in failed],
    )


async def interrupt(connection: Connection, namespace: str, run_ids: Sequence[str]) -> None:
    """Runs were ended from outside: bodies that were under way are so no more."""
    if run_ids:
        await _interrupt.execute(connection, namespace=namespace, run_ids=run_ids)


async def latest(connection: Connection, namespace: str, run_id: str, step_id: str) -> Record | None:
    """The latest attempt of one step."""
    return await _latest.first(connection, namespace=namespace, run_ids=[run_id], step_ids=[step_id])


async def history(connection: Connection, namespace: str, run_ids: Sequence[str]) -> list[Record]:
    """What the runs have on record, by run and position."""
    return await _history.fetch(connection, namespace=namespace, run_ids=run_ids)


def moment(microseconds: int) -> datetime:
    """A time of the wire."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


async def _make_room(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    further = [operation for operation in operations if operation.body.attempt_number != 1]
    if further:
        await _supersede.execute(
            connection,
            namespace=namespace,
            run_ids=[operation.run_id for operation in further],
            step_ids=[operation.body.step_id for operation in further],
            attempt_ids=[operation.body.attempt_id for operation in further],
        )


def _retry_delay(body: StepFailed, failures: int) -> int | None:
    if body.outcome == STEP_UNKNOWN and body.HasField("ask_again_ms"):
        return body.ask_again_ms
    if body.outcome not in (0, STEP_FAILED) or body.failure.non_retryable:
        return None
    delay = retry.delay_ms(body.retry if body.HasField("retry") else None, failures)
    if delay is not None and body.failure.HasField("retry_after_ms"):
        return body.failure.retry_after_ms
    return delay


def _failed_answer(retry_at: datetime | None, delay_ms: int) -> StepFailedAnswer:
    if retry_at is None:
        return StepFailedAnswer()
    return StepFailedAnswer(will_retry=True, retry_at_us=rows.microseconds(retry_at), delay_ms=delay_ms)


def _started_answer(wake_at: datetime | None, now: datetime) -> StepStartedAnswer:
    answer = StepStartedAnswer(now_us=rows.microseconds(now))
    if wake_at is not None:
        answer.wake_at_us = rows.microseconds(wake_at)
    return answer
