"""What a schedule is told, as requests of the wire: when it is due, and what its runs get. What can be checked without
a server is checked here; whether a cron expression or a phrase says when, only the server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

import uuid_utils
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk import duration
from kagzi.sdk.definition import Workflow
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.request import retry_policy
from kagzi.sdk.retry import Retry
from kagzi.sdk.schedule_info import OVERLAPS, Overlap

# Encodes an input for a workflow: its declaration, the type it has by name, and the value.
Encode = Callable[[Workflow[Any, Any] | None, str, Any], Payload]


class Times(TypedDict, total=False):
    """When a schedule is due: one of `cron`, `every` and `text`."""

    # 5 fields, 6 with seconds in front, or an alias as "@daily".
    cron: str | None
    # Every so often, counted from `start_at` or from now; whole slots, whatever the runs take.
    every: Duration | None
    # In words, as "every friday at 5pm".
    text: str | None
    # An IANA time zone; the server's when it is not given.
    timezone: str | None
    # No slot lies before the first, or at or after the second.
    start_at: datetime | None
    end_at: datetime | None


class RunOptions(Times, total=False):
    """What a schedule's runs get, besides when."""

    # Each run starts up to this much after its slot.
    jitter: Duration
    # Runs it may start for slots in all; None: any number.
    max_runs: int | None
    # What happens at a slot while the run before has not ended.
    overlap: Overlap
    # How many slots missed while no server ran are made up for, the newest.
    max_catchup: int
    queue: str | None
    # Only workers with this version of the workflow run it.
    version: str | None
    # 0 to 4, higher first.
    priority: int
    labels: Mapping[str, str] | None
    # Time limit of each run.
    timeout: Duration | None
    # How a whole run is tried again.
    retry: Retry | None


class ScheduleOptions(RunOptions, total=False):
    """The keyword arguments of `client.schedules.create`."""

    # It fires only once it is resumed.
    paused: bool


class ScheduleChanges(RunOptions, total=False):
    """The keyword arguments of `handle.update`: what is not given stays. None for `start_at`, `end_at`, `timeout`,
    `retry`, `input`, `max_runs`, `version` and `labels` means none from now on.
    """

    workflow: Workflow[Any, Any] | str
    input: Any
    # False pauses, True resumes.
    enabled: bool


class TriggerOptions(TypedDict, total=False):
    """The keyword arguments of `handle.trigger`."""

    # Instead of the schedule's own.
    input: Any
    # What happens this once while the previous run has not ended.
    overlap: Overlap | None
    # Made by the SDK unless given; triggering twice with one run id is one run.
    run_id: str | None


def create(
    namespace: str,
    id: str,
    workflow: Workflow[Any, Any] | str,
    input: Any,
    encode: Encode,
    **options: Unpack[ScheduleOptions],
) -> pb.CreateScheduleRequest:
    """The request that creates a schedule; ConfigError or PayloadError when it cannot be made."""
    declared = workflow if isinstance(workflow, Workflow) else None
    request = pb.CreateScheduleRequest(
        namespace=namespace, template_run_id=str(uuid_utils.uuid7()), paused=options.get("paused", False)
    )
    try:
        request.schedule_id = id
        request.workflow_type = declared.name if declared else workflow  # type: ignore[assignment]  # by protobuf
        request.task_queue = options.get("queue") or (declared.queue if declared else None) or ""
        request.version = options.get("version") or (declared.version if declared else "")
        request.labels.update(options.get("labels") or {})
        _put_numbers(request, options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"A schedule cannot be created with these options: {error}.") from None
    _put_timing(request, options, required=True)
    if options.get("timezone"):
        request.timezone = str(options["timezone"])
    timeout = options.get("timeout", declared.timeout if declared else None)
    retry = options.get("retry", declared.retry if declared else None)
    _put_limits(request, timeout, retry)
    if declared is not None and not declared.takes_input:
        if input is not None:
            raise ConfigError(f"Workflow {declared.name!r} takes no input, and was given {type(input).__name__}.")
    elif declared is not None or input is not None:
        request.input.CopyFrom(encode(declared, request.workflow_type, input))
    return request


def update(
    namespace: str, id: str, workflow_type: str, encode: Encode, **changes: Unpack[ScheduleChanges]
) -> pb.UpdateScheduleRequest:
    """The request that changes a schedule of this type; ConfigError or PayloadError when it cannot be made."""
    request = pb.UpdateScheduleRequest(namespace=namespace, schedule_id=id)
    workflow = changes.get("workflow")
    declared = workflow if isinstance(workflow, Workflow) else None
    try:
        if workflow is not None:
            request.workflow_type = declared.name if declared else workflow  # type: ignore[assignment]  # by protobuf
        if "queue" in changes:
            request.task_queue = changes["queue"] or ""
        if "version" in changes:
            request.version = changes["version"] or ""
        if "labels" in changes:
            request.labels.SetInParent()
            request.labels.labels.update(changes["labels"] or {})
        if "enabled" in changes:
            request.enabled = changes["enabled"]
        _put_numbers(request, changes)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"A schedule cannot be changed like this: {error}.") from None
    _put_timing(request, changes, required=False)
    if changes.get("timezone"):
        request.timezone = str(changes["timezone"])
    _put_limits(request, changes.get("timeout"), changes.get("retry"))
    if changes.get("input") is not None:
        request.input.CopyFrom(encode(declared, request.workflow_type or workflow_type, changes["input"]))
    request.clear.extend(
        field
        for name, field in _CLEARED.items()
        if name in changes and changes[name] is None  # type: ignore[literal-required]
    )
    return request


_CLEARED = {"start_at": "start_at", "end_at": "end_at", "timeout": "timeout_ms", "retry": "retry", "input": "input"}


def proposal(options: Times) -> pb.PreviewScheduleRequest.Proposal:
    """A schedule that need not exist."""
    made = pb.PreviewScheduleRequest.Proposal()
    _put_timing(made, options, required=True)
    made.timezone = options.get("timezone") or ""
    return made


def overlap(name: str) -> pb.ScheduleOverlap.ValueType:
    """A policy of the wire."""
    if name not in OVERLAPS:
        raise ConfigError(f"overlap={name!r} must be one of {', '.join(map(repr, OVERLAPS))}.")
    return OVERLAPS[name]


def moment(name: str, given: datetime) -> Timestamp:
    """A time of the wire."""
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError(f"{name}={given!r} is no time with a zone: give one, as datetime(..., tzinfo=UTC).")
    made = Timestamp()
    made.FromDatetime(given)
    return made


def _put_timing(
    request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest | pb.PreviewScheduleRequest.Proposal,
    options: Times,
    *,
    required: bool,
) -> None:
    given = [name for name in ("cron", "every", "text") if options.get(name) is not None]
    if len(given) > 1 or (required and not given):
        raise ConfigError(
            f"A schedule is due by cron=, every= or text=, one of them; given {' and '.join(given) or 'none'}."
        )
    if options.get("cron") is not None:
        request.timing.cron = str(options["cron"])
    elif options.get("text") is not None:
        request.timing.text = str(options["text"])
    every = options.get("every")
    if every is not None:
        length = duration.parse(every)
        if length < timedelta(seconds=1):
            raise ConfigError(f"every={every!r} is too short: schedules fire once a second at most.")
        request.timing.every_ms = duration.milliseconds(every)
    start_at, end_at = options.get("start_at"), options.get("end_at")
    if start_at is not None:
        request.start_at.CopyFrom(moment("start_at", start_at))
    if end_at is not None:
        request.end_at.CopyFrom(moment("end_at", end_at))


def _put_numbers(request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest, options: RunOptions) -> None:
    if "jitter" in options:
        request.jitter_ms = duration.milliseconds(options["jitter"])
    if "max_runs" in options:
        request.max_runs = options["max_runs"] or 0
    if "overlap" in options:
        request.overlap = overlap(options["overlap"])
    if "max_catchup" in options:
        request.max_catchup = options["max_catchup"]
    if "priority" in options:
        request.priority = options["priority"]


def _put_limits(
    request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest, timeout: Duration | None, retry: Retry | None
) -> None:
    if timeout is not None:
        request.timeout_ms = duration.milliseconds(timeout)
    if retry is not None:
        request.retry.CopyFrom(retry_policy(retry))
