"""What a client is told of runs and steps: plain facts, frozen when they were read. Inputs, outputs and errors stay
encoded until they are looked at, so that listing a thousand runs decodes none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import admin_pb2, common_pb2
from kagzi.protocol.v1.admin_pb2 import ExplainRunResponse
from kagzi.protocol.v1.common_pb2 import Failure, Payload, Step
from kagzi.protocol.v1.workflow_pb2 import WorkflowRun
from kagzi.sdk.failure import ErrorInfo

# Reads a stored value; None when nothing is stored.
Decode = Callable[[Payload | None], Any]


class RunStatus(StrEnum):
    """Where a run is in its life. Equal to its name as text."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SLEEPING = "SLEEPING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def ended(self) -> bool:
        """Whether it changes no more."""
        return self in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class StepStatus(StrEnum):
    """Where one attempt of a step is. Equal to its name as text."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    UNKNOWN = "UNKNOWN"
    ABANDONED = "ABANDONED"
    INTERRUPTED = "INTERRUPTED"


class StepKind(StrEnum):
    """What a step runs or waits for. Equal to its name as text."""

    FUNCTION = "FUNCTION"
    SLEEP = "SLEEP"
    SIGNAL = "SIGNAL"
    CHILD_WORKFLOW = "CHILD_WORKFLOW"
    NOW = "NOW"
    CANCEL = "CANCEL"
    PATCH = "PATCH"


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Something to know of a run that goes on all the same."""

    step_id: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A run as it was when it was read."""

    namespace: str
    run_id: str
    # The caller's own name for it.
    id: str | None
    type: str
    queue: str
    version: str
    status: RunStatus
    priority: int
    labels: Mapping[str, str]
    # Failed tries of the whole workflow so far.
    attempts: int
    # The document it last published with `ctx.set_state`.
    state: Any
    # Why it failed or was ended.
    error: ErrorInfo | None
    # What a suspended run waits for.
    waiting: Any
    worker_id: str | None
    parent_run_id: str | None
    root_run_id: str
    # The run that went on where this one ended; the run that this one repeats.
    continued_as: str | None
    retried_from: str | None
    # The schedule that started it, by the id its creator chose (None once that is deleted) and by that of its template,
    # and the slot it was started for.
    schedule: str | None
    schedule_run_id: str | None
    scheduled_for: datetime | None
    cancel_requested_at: datetime | None
    deadline_at: datetime | None
    available_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    # What was noticed on the way and is no error: a step called with another input than the one on record.
    warnings: tuple[RunWarning, ...]
    _input: Payload | None = field(repr=False, compare=False)
    _output: Payload | None = field(repr=False, compare=False)
    _decode_input: Decode = field(repr=False, compare=False)
    _decode_output: Decode = field(repr=False, compare=False)

    @property
    def input(self) -> Any:
        """What it was started with; only from `handle.describe()`."""
        return self._decode_input(self._input)

    @property
    def output(self) -> Any:
        """What it returned; only from `handle.describe()`, once COMPLETED."""
        return self._decode_output(self._output)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The latest attempt of a step as it was when it was read."""

    step_id: str
    kind: StepKind
    status: StepStatus
    attempt: int
    attempt_id: str
    # Order in which the code asked for it; order in which its result was handed to the code, None before that.
    position: int
    completed_seq: int | None
    error: ErrorInfo | None
    # The next attempt of a failed step; the end of a timer or of waiting for a signal.
    retry_at: datetime | None
    wake_at: datetime | None
    # The signal's name, or the child's type.
    target: str | None
    child_run_id: str | None
    # Its outcome is never guessed after a crash.
    effect: bool
    created_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    _output: Payload | None = field(repr=False, compare=False)
    _decode: Decode = field(repr=False, compare=False)

    @property
    def output(self) -> Any:
        """What it returned; None unless COMPLETED."""
        return self._decode(self._output)


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that holds a run, or explains where it is."""

    # Which kind, as "NO_WORKER".
    code: str
    sentence: str
    # What to do if that is not wanted; empty when there is nothing to do.
    suggestion: str
    # What it is about: a step, signal, child run, worker, queue or version.
    subject: str | None
    since: datetime | None
    # When it ends by itself.
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is, as it was when it was asked."""

    status: RunStatus
    # The whole in one sentence.
    summary: str
    # The most important first; never empty.
    reasons: Sequence[Reason]


def explanation(told: ExplainRunResponse) -> Explanation:
    """An explanation of the wire."""
    return Explanation(
        status=run_status(told.status),
        summary=told.summary,
        reasons=tuple(
            Reason(
                code=admin_pb2.ExplainCode.Name(each.code).removeprefix("EXPLAIN_"),
                sentence=each.sentence,
                suggestion=each.suggestion,
                subject=each.subject or None,
                since=each.since.ToDatetime(UTC) if each.HasField("since") else None,
                until=each.until.ToDatetime(UTC) if each.HasField("until") else None,
            )
            for each in told.reasons
        ),
    )


def run_info(run: WorkflowRun, decode_input: Decode, decode_output: Decode) -> RunInfo:
    """A run of the wire."""
    return RunInfo(
        namespace=run.namespace,
        run_id=run.run_id,
        id=run.external_id or None,
        type=run.workflow_type,
        queue=run.task_queue,
        version=run.version,
        status=run_status(run.status),
        priority=run.priority,
        labels=dict(run.labels),
        attempts=run.attempts,
        state=json.loads(run.state_json) if run.state_json else None,
        error=error_info(run.failure) if run.HasField("failure") else None,
        waiting=json.loads(run.waiting_json) if run.waiting_json else None,
        worker_id=run.worker_id or None,
        parent_run_id=run.parent_run_id or None,
        root_run_id=run.root_run_id,
        continued_as=run.continued_as or None,
        retried_from=run.retried_from or None,
        schedule=run.schedule or None,
        schedule_run_id=run.schedule_id or None,
        scheduled_for=_moment(run, "scheduled_for"),
        cancel_requested_at=_moment(run, "cancel_requested_at"),
        deadline_at=_moment(run, "deadline_at"),
        available_at=_moment(run, "available_at"),
        created_at=run.created_at.ToDatetime(UTC),
        started_at=_moment(run, "started_at"),
        finished_at=_moment(run, "finished_at"),
        warnings=tuple(RunWarning(each.step_id, each.message, each.at.ToDatetime(UTC)) for each in run.warnings),
        _input=run.input if run.HasField("input") else None,
        _output=run.output if run.HasField("output") else None,
        _decode_input=decode_input,
        _decode_output=decode_output,
    )


def step_info(step: Step, decode: Decode) -> StepInfo:
    """A step of the wire."""
    return StepInfo(
        step_id=step.step_id,
        kind=StepKind(common_pb2.StepKind.Name(step.kind)),
        status=StepStatus(common_pb2.StepStatus.Name(step.status).removeprefix("STEP_")),
        attempt=step.attempt_number,
        attempt_id=step.attempt_id,
        position=step.position,
        completed_seq=step.completed_seq or None,
        error=error_info(step.failure) if step.HasField("failure") else None,
        retry_at=_moment(step, "retry_at"),
        wake_at=_moment(step, "wake_at"),
        target=step.target or None,
        child_run_id=step.child_run_id or None,
        effect=step.effect,
        created_at=_moment(step, "created_at"),
        started_at=_moment(step, "started_at"),
        finished_at=_moment(step, "finished_at"),
        _output=step.output if step.HasField("output") else None,
        _decode=decode,
    )


def run_status(status: common_pb2.RunStatus.ValueType) -> RunStatus:
    """A status of the wire."""
    return RunStatus(common_pb2.RunStatus.Name(status))


def error_info(failure: Failure) -> ErrorInfo:
    """A failure of the wire."""
    return ErrorInfo(failure.type, failure.message, failure.traceback)


def _moment(message: WorkflowRun | Step, field_name: str) -> datetime | None:
    # Protobuf names fields by text, and an absent time reads as 1970.
    if not message.HasField(field_name):  # type: ignore[arg-type]
        return None
    moment: Timestamp = getattr(message, field_name)
    return moment.ToDatetime(UTC)
