"""What a schedule is told, as requests of the wire: when it is due, and what its runs get. What can be checked without
a server is checked here; whether a cron expression or a phrase says when, only the server knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, TypedDict, Unpack

import uuid_utils
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk import option
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
    check(options, ScheduleOptions)
    workflow_type, declared = option.workflow(workflow)
    request = pb.CreateScheduleRequest(
        namespace=namespace,
        schedule_id=option.name(id, "id"),
        template_run_id=str(uuid_utils.uuid7()),
        workflow_type=workflow_type,
        task_queue=option.name(options.get("queue"), "queue") or (declared.queue if declared else None) or "",
        version=option.version(options.get("version")) or (declared.version if declared else ""),
        labels=option.labels(options.get("labels")),
        paused=option.flag(options.get("paused", False), "paused"),
    )
    _put_numbers(request, options)
    _put_timing(request, options, required=True)
    if options.get("timezone"):
        request.timezone = str(options["timezone"])
    timeout = options.get("timeout", declared.timeout if declared else None)
    retry = options.get("retry", declared.retry if declared else None)
    _put_limits(request, timeout, retry)
    if declared is not None and not declared.takes_input:
        if input is not None:
            raise ConfigError(f"Workflow {declared.name!r} takes no input, and was given {type(input).__name__}.")
    elif input is not None if declared is None else not declared.leaves_out(input):
        request.input.CopyFrom(encode(declared, workflow_type, input))
    return request


def update(
    namespace: str, id: str, workflow_type: str, encode: Encode, **changes: Unpack[ScheduleChanges]
) -> pb.UpdateScheduleRequest:
    """The request that changes a schedule of this type; ConfigError or PayloadError when it cannot be made."""
    check(changes, ScheduleChanges)
    request = pb.UpdateScheduleRequest(namespace=namespace, schedule_id=id)
    declared = None
    if changes.get("workflow") is not None:
        request.workflow_type, declared = option.workflow(changes["workflow"])
    if "queue" in changes:
        request.task_queue = option.name(changes["queue"], "queue")
    if "version" in changes:
        request.version = option.version(changes["version"])
    if "labels" in changes:
        request.labels.SetInParent()
        request.labels.labels.update(option.labels(changes["labels"]))
    if "enabled" in changes:
        request.enabled = option.flag(changes["enabled"], "enabled")
    _put_numbers(request, changes)
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
    check(options, Times)
    made = pb.PreviewScheduleRequest.Proposal()
    _put_timing(made, options, required=True)
    made.timezone = options.get("timezone") or ""
    return made


def overlap(name: str, known: Mapping[str, pb.ScheduleOverlap.ValueType] = OVERLAPS) -> pb.ScheduleOverlap.ValueType:
    """A policy of the wire."""
    if name not in known:
        raise ConfigError(f"overlap={name!r} must be one of {', '.join(map(repr, known))}.")
    return known[name]


def moment(name: str, given: datetime) -> Timestamp:
    """A time of the wire."""
    made = Timestamp()
    made.FromDatetime(option.moment(given, name))
    return made


def check(given: Mapping[str, Any], known: type) -> None:
    """Refuses a slip of the pen, as a call with such a keyword would."""
    unknown = sorted(set(given) - set(known.__annotations__))
    if unknown:
        near = get_close_matches(unknown[0], known.__annotations__, n=1)
        meant = f": did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"schedules have no option {unknown[0]!r}{meant}")


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
        if option.length(every, "every") < timedelta(seconds=1):
            raise ConfigError(f"every={every!r} is too short: schedules fire once a second at most.")
        request.timing.every_ms = option.milliseconds(every, "every")
    start_at, end_at = options.get("start_at"), options.get("end_at")
    if start_at is not None:
        request.start_at.CopyFrom(moment("start_at", start_at))
    if end_at is not None:
        request.end_at.CopyFrom(moment("end_at", end_at))


def _put_numbers(request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest, options: RunOptions) -> None:
    if "jitter" in options:
        request.jitter_ms = option.milliseconds(options["jitter"], "jitter")
    if "max_runs" in options:
        request.max_runs = option.count(options["max_runs"] or 0, "max_runs")
    if "overlap" in options:
        request.overlap = overlap(options["overlap"])
    if "max_catchup" in options:
        request.max_catchup = option.count(options["max_catchup"], "max_catchup")
    if "priority" in options:
        request.priority = option.priority(options["priority"])


def _put_limits(
    request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest, timeout: Duration | None, retry: Retry | None
) -> None:
    if timeout is not None:
        request.timeout_ms = option.milliseconds(timeout, "timeout")
    policy = option.retry(retry)
    if policy is not None:
        request.retry.CopyFrom(retry_policy(policy))
