"""Schedules as callers ask for them, checked and completed: a new one, a changed one, one that is paused or fires
again. A draft is a template that nobody has stored yet; what makes no sense is refused with the field to blame. Pure:
the time is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.server import planner
from kagzi.server.api import checks
from kagzi.server.api.timings import anchor, bounds, read
from kagzi.store import rows, templates
from kagzi.store.errors import Refused, invalid, precondition
from kagzi.store.runs import DEFAULT_PRIORITY
from kagzi.store.templates import ASKED, OVERLAP_NAME, RUN_LIMIT, Template
from kagzi.timetable import Timetable, TimetableError, read_interval

DEFAULT_QUEUE = "default"
SCHEDULE_BYTES = 200
REASON_BYTES = 2_000
_CATCHUP = 100
_MOST_CATCHUP = 10_000
_MOST_RUNS = 1_000_000_000
_MOST_JITTER_MS = 7 * 24 * 3_600_000
_CLEARABLE = ("start_at", "end_at", "timeout_ms", "retry", "input")

# For what is true at any time.
_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)

Request = pb.CreateScheduleRequest | pb.UpdateScheduleRequest


def new(request: pb.CreateScheduleRequest, namespace: str, run_id: str, zone: str, now: datetime) -> Template:
    """The schedule that a request asks for; it fires from its first slot after now."""
    given = bounds(request)
    timezone = checks.name(request.timezone, "timezone", default=zone)
    times = read(request.timing, timezone, anchor(given, now))
    made = Template(
        namespace=namespace,
        run_id=run_id,
        schedule_id=checks.name(request.schedule_id, "schedule_id", maximum=SCHEDULE_BYTES),
        workflow_type=checks.name(request.workflow_type, "workflow_type"),
        task_queue=checks.name(request.task_queue, "task_queue", default=DEFAULT_QUEUE),
        version=checks.name(request.version, "version", default=""),
        priority=_priority(request.priority) if request.HasField("priority") else DEFAULT_PRIORITY,
        timezone=timezone,
        cron=None,
        every=None,
        anchor=None,
        words="",
        overlap=overlap(request.overlap),
        max_catchup=_catchup(request.max_catchup) if request.HasField("max_catchup") else _CATCHUP,
        starts_at=given.start,
        ends_at=given.end,
        jitter=_jitter(request.jitter_ms),
        run_limit=_max_runs(request.max_runs),
        retry_policy=_retry(request),
        labels=rows.labels_text(checks.labels(request.labels, "labels")),
        timeout=_timeout(request.timeout_ms) if request.HasField("timeout_ms") else None,
    )
    armed = _armed(_timed(made, times), now)
    return paused(armed, "") if request.paused else armed


def proposed(request: pb.PreviewScheduleRequest, zone: str, now: datetime) -> Template:
    """A schedule that need not exist, for its times alone."""
    if request.WhichOneof("subject") is None:
        raise invalid("schedule_id", "schedule_id is missing: name a schedule, or propose one")
    proposal = request.proposal
    given = bounds(proposal, path="proposal.")
    timezone = checks.name(proposal.timezone, "proposal.timezone", default=zone)
    times = read(proposal.timing, timezone, anchor(given, now), "proposal.")
    made = Template(
        namespace="",
        run_id="",
        schedule_id="",
        workflow_type="",
        task_queue="",
        version="",
        priority=DEFAULT_PRIORITY,
        timezone=timezone,
        cron=None,
        every=None,
        anchor=None,
        words="",
        overlap="",
        max_catchup=0,
        starts_at=given.start,
        ends_at=given.end,
    )
    return _timed(made, times)


def check(request: pb.UpdateScheduleRequest) -> None:
    """Refuses a change that no schedule could be given."""
    _check_clear(request)
    _fields(request)
    given = bounds(request)
    timezone = checks.name(request.timezone, "timezone") if request.HasField("timezone") else "UTC"
    timing = request.timing if request.HasField("timing") else pb.ScheduleTiming(cron="@daily")
    read(timing, timezone, anchor(given, _SOME_TIME))


def changed(template: Template, request: pb.UpdateScheduleRequest, now: datetime) -> Template:
    """The schedule with what the request gives. What changes its times takes effect from now."""
    after = _retimed(replace(template, notice=None, **_fields(request)), request, now)
    if after.pause is None:
        if after.run_limit is not None and after.fired >= after.run_limit:
            after = _stopped(after, RUN_LIMIT, "")
        elif _times(after) != _times(template):
            after = _armed(after, now)
        elif after.error is not None:
            after = _mended(after, now)
        elif (after.jitter, after.ends_at) != (template.jitter, template.ends_at):
            after = _kept(after, now)
    elif after.ends_at is not None and after.ends_at != template.ends_at and after.ends_at <= now:
        raise invalid("end_at", f"end_at, {after.ends_at}, lies in the past: it could never fire again")
    if request.HasField("enabled"):
        after = resumed(after, now) if request.enabled else paused(after, "")
    return after


def paused(template: Template, reason: str) -> Template:
    """The schedule when it does not fire; one that does not already is left as it is."""
    return template if template.pause is not None else _stopped(template, ASKED, reason)


def resumed(template: Template, now: datetime) -> Template:
    """The schedule when it fires again, from its next slot."""
    if template.pause is None:
        return template if template.error is None else _mended(template, now)
    if template.run_limit is not None and template.fired >= template.run_limit:
        raise precondition(
            f"schedule {template.schedule_id!r} has started its {template.run_limit} runs: raise max_runs first",
            template.schedule_id,
        )
    try:
        return _armed(replace(template, pause=None, pause_reason=""), now)
    except Refused as refused:
        message = f"schedule {template.schedule_id!r} cannot fire: {refused.detail.message}"
        raise precondition(message, template.schedule_id) from None


def overlap(value: int, *, backfill: bool = False) -> str:
    """The policy of a request; unspecified is allow."""
    checks.enum(value, pb.ScheduleOverlap, "overlap")
    if value == pb.OVERLAP_QUEUE_ALL and not backfill:
        raise invalid("overlap", "OVERLAP_QUEUE_ALL is for backfills alone: OVERLAP_QUEUE_ONE lets one run wait")
    return OVERLAP_NAME[pb.ScheduleOverlap.ValueType(value or pb.OVERLAP_ALLOW)]


def readable(template: Template, look: Callable[[], Any]) -> Any:
    """What `look` answers of the schedule's slots; refused when they cannot be read any more."""
    try:
        return look()
    except (TimetableError, ZoneInfoNotFoundError) as error:
        message = f"schedule {template.schedule_id!r} cannot fire: {error}. Update it"
        raise precondition(message, template.schedule_id) from None


def _stopped(template: Template, pause: str, reason: str) -> Template:
    return replace(template, pause=pause, pause_reason=reason, slot=None, available_at=None, error=None)


def _armed(template: Template, now: datetime) -> Template:
    """The schedule with its next slot; refused when it has none."""
    try:
        slot = planner.first(template, now)
    except TimetableError as error:
        raise invalid(error.field, str(error)) from None
    if slot is None:
        bound = template.ends_at is not None
        when = f"before end_at, {template.ends_at}" if bound else "any more"
        raise invalid("end_at" if bound else "timing", f"it would never fire: no slot lies after now and {when}")
    return replace(template, slot=slot, available_at=planner.fires_at(template, slot), error=None)


def _kept(template: Template, now: datetime) -> Template:
    """The schedule with another jitter or end, and the slot it had: one that has come is not lost."""
    if template.slot is None or (template.ends_at is not None and template.slot >= template.ends_at):
        return _armed(template, now)
    if template.available_at is not None and template.available_at <= now:
        return template
    return replace(template, available_at=max(now, planner.fires_at(template, template.slot)))


def _mended(template: Template, now: datetime) -> Template:
    """A broken schedule after somebody touched it: it fires again if it can."""
    try:
        return _armed(template, now)
    except Refused:
        return template


def _times(template: Template) -> tuple[Any, ...]:
    return (
        template.cron,
        template.every,
        template.anchor,
        # Another zone moves no slot of an interval.
        template.timezone if template.every is None else None,
        template.starts_at,
    )


def _timed(template: Template, times: Timetable) -> Template:
    """The schedule with these times. An interval has no zone of its own, and keeps the one it is shown in."""
    return replace(
        template,
        cron=times.cron,
        every=times.every,
        anchor=times.anchor,
        timezone=times.timezone if times.cron is not None else template.timezone,
        words=times.words,
    )


def _retimed(template: Template, request: pb.UpdateScheduleRequest, now: datetime) -> Template:
    """The schedule with the times of the request."""
    given = bounds(request, template, request.clear)
    # A first moment that is taken away moves no slot.
    begins = given.start is not None and given.start != template.starts_at
    timezone = checks.name(request.timezone, "timezone") if request.HasField("timezone") else template.timezone
    retimed = replace(template, starts_at=given.start, ends_at=given.end, timezone=timezone)
    if not begins and timezone == template.timezone and not request.HasField("timing"):
        return retimed
    if request.HasField("timing") or template.every is None:
        timing = request.timing if request.HasField("timing") else templates.timing(template.cron, None)
        times = read(timing, timezone, anchor(given, now))
        if not begins and times.every is not None and times.every == template.every:
            # An interval of the same length goes on from where it began, unless it is told to count from elsewhere.
            times = read(timing, timezone, template.anchor or now)
        return _timed(retimed, times)
    # As it was stored: the wire has whole milliseconds, and words may have said less.
    begun = anchor(given, now) if begins else template.anchor or now
    return _timed(retimed, read_interval(template.every, begun))


def _fields(request: pb.UpdateScheduleRequest) -> dict[str, Any]:
    """What the request gives that is not about when the schedule is due."""
    has = request.HasField
    values: dict[str, Any] = {}
    if has("jitter_ms"):
        values["jitter"] = _jitter(request.jitter_ms)
    if has("max_runs"):
        values["run_limit"] = _max_runs(request.max_runs)
    if has("overlap"):
        values["overlap"] = overlap(request.overlap)
    if has("max_catchup"):
        values["max_catchup"] = _catchup(request.max_catchup)
    if has("workflow_type"):
        values["workflow_type"] = checks.name(request.workflow_type, "workflow_type")
    if has("task_queue"):
        values["task_queue"] = checks.name(request.task_queue, "task_queue", default=DEFAULT_QUEUE)
    if has("version"):
        values["version"] = checks.name(request.version, "version", default="")
    if has("priority"):
        values["priority"] = _priority(request.priority)
    if has("timeout_ms") or "timeout_ms" in request.clear:
        values["timeout"] = _timeout(request.timeout_ms) if has("timeout_ms") else None
    if has("retry") or "retry" in request.clear:
        values["retry_policy"] = _retry(request)
    if has("labels"):
        values["labels"] = rows.labels_text(checks.labels(request.labels.labels, "labels.labels"))
    return values


def _check_clear(request: pb.UpdateScheduleRequest) -> None:
    for name in request.clear:
        if name not in _CLEARABLE:
            raise invalid("clear", f"{name[:40]!r} cannot be cleared, only {', '.join(_CLEARABLE)}")
        if request.HasField(name):  # type: ignore[arg-type]  # one of the names above
            raise invalid("clear", f"{name} is both given and cleared: leave one of them out")


def _priority(value: int) -> int:
    if not 0 <= value <= 4:
        raise invalid("priority", f"must be 0 to 4, got {value}")
    return value


def _catchup(value: int) -> int:
    if not 0 <= value <= _MOST_CATCHUP:
        raise invalid("max_catchup", f"max_catchup is {value}, and must be from 0 to {_MOST_CATCHUP}")
    return value


def _max_runs(value: int) -> int | None:
    if not 0 <= value <= _MOST_RUNS:
        raise invalid("max_runs", f"max_runs is {value}, and must be from 0, for any number, to {_MOST_RUNS}")
    return value or None


def _jitter(value: int) -> timedelta:
    return timedelta(milliseconds=checks.duration_ms(value, "jitter_ms", maximum=_MOST_JITTER_MS))


def _timeout(value: int) -> timedelta:
    return timedelta(milliseconds=checks.duration_ms(value, "timeout_ms", minimum=1))


def _retry(request: Request) -> str | None:
    return rows.retry_policy_text(checks.retry(request.retry, "retry")) if request.HasField("retry") else None
