"""Rows of the database as messages of the contract, and the few values that go the other way. The only place
that knows both the columns of a run, a step or a signal and their fields on the wire. Pure: it reads no
database, decides nothing, and is never given `infinity` (a query says `nullif(available_at, 'infinity')`).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1.common_pb2 import (
    Failure,
    Payload,
    RetryPolicy,
    RunStatus,
    Signal,
    Step,
    StepKind,
    StepStatus,
)
from kagzi.protocol.v1.workflow_pb2 import RunWarning, WorkflowRun

# What `run` reads: columns of kagzi.workflow_runs, with available_at as nullif(available_at, 'infinity'), and the
# external id of the template as `schedule`.
RUN_COLUMNS = (
    "namespace",
    "run_id",
    "external_id",
    "task_queue",
    "workflow_type",
    "version",
    "status",
    "priority",
    "available_at",
    "attempts",
    "crashes",
    "locked_by",
    "cancel_requested_at",
    "deadline_at",
    "labels",
    "state",
    "error",
    "parent_run_id",
    "root_run_id",
    "parent_step_attempt_id",
    "continued_as",
    "retried_from",
    "waiting",
    "schedule_id",
    "scheduled_for",
    "retry_policy",
    "created_at",
    "started_at",
    "finished_at",
    "seed",
    "schedule",
    "warnings",
)

# What `run` reads besides with `payloads=True`: columns of kagzi.workflow_payloads.
PAYLOAD_COLUMNS = ("input", "input_encoding", "output", "output_encoding")

# What `step` reads: columns of kagzi.step_runs. Without outputs, a query gives null::bytea as output.
STEP_COLUMNS = (
    "step_id",
    "attempt_id",
    "attempt_number",
    "is_latest",
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
    "created_at",
    "started_at",
    "finished_at",
    "unclear",
)

# What `signal` reads: columns of kagzi.signals.
SIGNAL_COLUMNS = ("signal_id", "name", "payload", "payload_encoding", "created_at")

RUN_STATUS = {name: value for name, value in RunStatus.items() if value}
RUN_STATUS_NAME = {value: name for name, value in RUN_STATUS.items()}
STEP_STATUS = {name.removeprefix("STEP_"): value for name, value in StepStatus.items() if value}
STEP_STATUS_NAME = {value: name for name, value in STEP_STATUS.items()}
STEP_KIND = {name: value for name, value in StepKind.items() if value}
STEP_KIND_NAME = {value: name for name, value in STEP_KIND.items()}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Row(Protocol):
    """A database record, or anything else that gives a value for a column's name."""

    def __getitem__(self, column: str, /) -> Any: ...


class _Failure(msgspec.Struct, omit_defaults=True):
    """The column `error`. What a newer server adds to it is left out here, never an error."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    non_retryable: bool = False
    retry_after_ms: int | None = None
    # Of a run: the step whose error left the workflow.
    step: str = ""


class _Warning(msgspec.Struct):
    """A value of the column `warnings`."""

    message: str
    at: datetime


class _RetryPolicy(msgspec.Struct):
    """The column `retry_policy`."""

    maximum_attempts: int = 0
    initial_interval_ms: int = 0
    backoff_coefficient: float = 0.0
    maximum_interval_ms: int = 0


def run(row: Row, *, payloads: bool = False) -> WorkflowRun:
    """The run in a row of RUN_COLUMNS, and PAYLOAD_COLUMNS if they are asked for."""
    return WorkflowRun(
        namespace=row["namespace"],
        run_id=str(row["run_id"]),
        external_id=row["external_id"] or "",
        task_queue=row["task_queue"],
        workflow_type=row["workflow_type"],
        version=row["version"],
        status=RUN_STATUS[row["status"]],
        priority=row["priority"],
        available_at=timestamp(row["available_at"]),
        attempts=row["attempts"],
        crashes=row["crashes"],
        worker_id=identity(row["locked_by"]),
        cancel_requested_at=timestamp(row["cancel_requested_at"]),
        deadline_at=timestamp(row["deadline_at"]),
        labels=labels(row["labels"]),
        state_json=row["state"] or "",
        failure=failure(row["error"]),
        parent_run_id=identity(row["parent_run_id"]),
        root_run_id=str(row["root_run_id"] or row["run_id"]),
        parent_step_attempt_id=identity(row["parent_step_attempt_id"]),
        continued_as=identity(row["continued_as"]),
        retried_from=identity(row["retried_from"]),
        waiting_json=row["waiting"] or "",
        schedule_id=identity(row["schedule_id"]),
        scheduled_for=timestamp(row["scheduled_for"]),
        retry=retry_policy(row["retry_policy"]),
        created_at=timestamp(row["created_at"]),
        started_at=timestamp(row["started_at"]),
        finished_at=timestamp(row["finished_at"]),
        seed=row["seed"],
        schedule=row["schedule"] or "",
        warnings=warnings(row["warnings"]),
        input=payload(row["input"], row["input_encoding"]) if payloads else None,
        output=payload(row["output"], row["output_encoding"]) if payloads else None,
    )


def step(row: Row) -> Step:
    """The attempt in a row of STEP_COLUMNS."""
    return Step(
        step_id=row["step_id"],
        attempt_id=str(row["attempt_id"]),
        attempt_number=row["attempt_number"],
        is_latest=row["is_latest"],
        kind=STEP_KIND[row["kind"]],
        status=STEP_STATUS[row["status"]],
        position=row["position"],
        completed_seq=row["completed_seq"] or 0,
        output=payload(row["output"], row["output_encoding"]),
        failure=failure(row["error"]),
        retry_at=timestamp(row["retry_at"]),
        wake_at=timestamp(row["wake_at"]),
        target=row["target"] or "",
        child_run_id=identity(row["child_run_id"]),
        signal_id=identity(row["signal_id"]),
        input_hash=row["input_hash"] or 0,
        effect=row["effect"],
        created_at=timestamp(row["created_at"]),
        started_at=timestamp(row["started_at"]),
        finished_at=timestamp(row["finished_at"]),
        unclear=row["unclear"],
    )


def signal(row: Row) -> Signal:
    """The signal in a row of SIGNAL_COLUMNS."""
    return Signal(
        signal_id=str(row["signal_id"]),
        name=row["name"],
        payload=payload(row["payload"], row["payload_encoding"]),
        created_at=timestamp(row["created_at"]),
    )


def identity(value: object) -> str:
    """An id as text; empty when there is none."""
    return "" if value is None else str(value)


def payload(data: bytes | None, encoding: str | None) -> Payload | None:
    """A stored value, or None when nothing was stored."""
    return None if data is None else Payload(data=data, encoding=encoding or "")


def timestamp(moment: datetime | None) -> Timestamp | None:
    """A time of the database."""
    if moment is None:
        return None
    seconds, micros = divmod(microseconds(moment), 1_000_000)
    return Timestamp(seconds=seconds, nanos=micros * 1000)


def microseconds(moment: datetime) -> int:
    """A time of the database in microseconds since 1970, exactly."""
    return (moment - _EPOCH) // _MICROSECOND


def moment(microseconds: int) -> datetime:
    """The time that is so many microseconds after 1970."""
    return _EPOCH + microseconds * _MICROSECOND


def labels(text: str | None) -> dict[str, str]:
    """Stored labels."""
    return {} if text is None else msgspec.json.decode(text, type=dict[str, str])


def labels_text(given: dict[str, str]) -> str | None:
    """Labels as they are stored: NULL for none."""
    return msgspec.json.encode(given).decode() if given else None


def failure(text: str | None) -> Failure | None:
    """A stored error."""
    if text is None:
        return None
    stored = msgspec.json.decode(text, type=_Failure)
    return Failure(
        type=stored.type,
        message=stored.message,
        traceback=stored.traceback,
        non_retryable=stored.non_retryable,
        retry_after_ms=stored.retry_after_ms,
    )


def failure_text(given: Failure, step: str = "") -> str:
    """An error as it is stored, with the step it came from. Its texts are the user's and may hold NUL, which PostgreSQL
    cannot keep.
    """
    stored = _Failure(
        type=given.type.replace("\0", ""),
        message=given.message.replace("\0", ""),
        traceback=given.traceback.replace("\0", ""),
        non_retryable=given.non_retryable,
        retry_after_ms=given.retry_after_ms if given.HasField("retry_after_ms") else None,
        step=step.replace("\0", ""),
    )
    return msgspec.json.encode(stored).decode()


def warnings(text: str | None) -> list[RunWarning]:
    """What is noted on a run, in the order in which it was noticed."""
    noted = {} if text is None else msgspec.json.decode(text, type=dict[str, _Warning])
    return [
        RunWarning(step_id=step_id, message=warning.message, at=timestamp(warning.at))
        for step_id, warning in sorted(noted.items(), key=lambda item: (item[1].at, item[0]))
    ]


def retry_policy(text: str | None) -> RetryPolicy | None:
    """A stored retry policy."""
    if text is None:
        return None
    stored = msgspec.json.decode(text, type=_RetryPolicy)
    return RetryPolicy(
        maximum_attempts=stored.maximum_attempts,
        initial_interval_ms=stored.initial_interval_ms,
        backoff_coefficient=stored.backoff_coefficient,
        maximum_interval_ms=stored.maximum_interval_ms,
    )


def retry_policy_text(given: RetryPolicy) -> str:
    """A retry policy as it is stored."""
    stored = _RetryPolicy(
        maximum_attempts=given.maximum_attempts,
        initial_interval_ms=given.initial_interval_ms,
        backoff_coefficient=given.backoff_coefficient,
        maximum_interval_ms=given.maximum_interval_ms,
    )
    return msgspec.json.encode(stored).decode()
