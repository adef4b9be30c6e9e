"""What a client is told of schedules: plain facts, frozen when they were read. Times are aware; a fire is told in the
schedule's own time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, Payload
from kagzi.sdk.descriptions import Decode
from kagzi.sdk.retry import Retry

Overlap = Literal["allow", "skip", "queue_one", "cancel_previous"]
BackfillOverlap = Literal["allow", "skip", "queue_one", "cancel_previous", "queue_all"]

OVERLAPS: dict[str, pb.ScheduleOverlap.ValueType] = {
    "allow": pb.OVERLAP_ALLOW,
    "skip": pb.OVERLAP_SKIP,
    "queue_one": pb.OVERLAP_QUEUE_ONE,
    "cancel_previous": pb.OVERLAP_CANCEL_PREVIOUS,
}
BACKFILL_OVERLAPS = OVERLAPS | {"queue_all": pb.OVERLAP_QUEUE_ALL}
_OVERLAP_NAMES = {value: name for name, value in OVERLAPS.items()}
_PAUSES = {
    pb.SCHEDULE_PAUSE_ASKED: "asked",
    pb.SCHEDULE_PAUSE_FINISHED: "finished",
    pb.SCHEDULE_PAUSE_RUN_LIMIT: "run limit",
}


class ScheduleStatus(StrEnum):
    """Whether a schedule fires. Equal to its name as text."""

    SCHEDULED = "SCHEDULED"
    PAUSED = "PAUSED"


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """A schedule as it was when it was read."""

    namespace: str
    id: str
    # Its runs carry this; a schedule that is created anew has another.
    template_run_id: str
    status: ScheduleStatus
    # Why it is PAUSED: "asked" (with what was said then), "finished", "run limit".
    pause: str | None
    pause_reason: str
    # Why it cannot fire although it is SCHEDULED; what people should know although it can.
    error: str | None
    notice: str | None
    # One of the two; in words it is understood as `text`.
    cron: str | None
    every: timedelta | None
    words: str
    timezone: str
    start_at: datetime | None
    end_at: datetime | None
    jitter: timedelta
    # None: any number.
    max_runs: int | None
    runs_started: int
    overlap: str
    max_catchup: int
    # None while it is PAUSED. Jitter moves the second, never the first.
    next_slot: datetime | None
    next_fire_at: datetime | None
    last_slot: datetime | None
    type: str
    queue: str
    version: str
    priority: int
    timeout: timedelta | None
    retry: Retry | None
    labels: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    _input: Payload | None = field(repr=False, compare=False)
    _decode: Decode = field(repr=False, compare=False)

    @property
    def input(self) -> Any:
        """What its runs are started with; only from `get` and `handle.describe()`."""
        return self._decode(self._input)


@dataclass(frozen=True, slots=True)
class Preview:
    """When a schedule would fire, and how its times were understood."""

    fires: tuple[datetime, ...]
    cron: str | None
    every: timedelta | None
    words: str
    timezone: str


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill did, or in a dry run would do."""

    # Every slot of the range with its run; None for a slot that has none. Where only the newest fit, those alone.
    runs: Mapping[datetime, str | None]
    started: int
    already_existed: int
    dry_run: bool
    # Slots that the policy leaves out.
    skipped: tuple[datetime, ...] = ()


def schedule_info(schedule: pb.Schedule, decode: Decode) -> ScheduleInfo:
    """A schedule of the wire."""
    every = schedule.timing.WhichOneof("timing") == "every_ms"
    return ScheduleInfo(
        namespace=schedule.namespace,
        id=schedule.schedule_id,
        template_run_id=schedule.template_run_id,
        status=ScheduleStatus.PAUSED if schedule.status == PAUSED else ScheduleStatus.SCHEDULED,
        pause=_PAUSES.get(schedule.pause),
        pause_reason=schedule.pause_reason,
        error=schedule.error or None,
        notice=schedule.notice or None,
        cron=None if every else schedule.timing.cron,
        every=timedelta(milliseconds=schedule.timing.every_ms) if every else None,
        words=schedule.words,
        timezone=schedule.timezone,
        start_at=_moment(schedule, "start_at"),
        end_at=_moment(schedule, "end_at"),
        jitter=timedelta(milliseconds=schedule.jitter_ms),
        max_runs=schedule.max_runs or None,
        runs_started=schedule.runs_started,
        overlap=_OVERLAP_NAMES.get(schedule.overlap, "allow"),
        max_catchup=schedule.max_catchup,
        next_slot=_moment(schedule, "next_slot"),
        next_fire_at=_moment(schedule, "next_fire_at"),
        last_slot=_moment(schedule, "last_slot"),
        type=schedule.workflow_type,
        queue=schedule.task_queue,
        version=schedule.version,
        priority=schedule.priority,
        timeout=timedelta(milliseconds=schedule.timeout_ms) if schedule.HasField("timeout_ms") else None,
        retry=_retry(schedule) if schedule.HasField("retry") else None,
        labels=dict(schedule.labels),
        created_at=schedule.created_at.ToDatetime(UTC),
        updated_at=schedule.updated_at.ToDatetime(UTC),
        _input=schedule.input if schedule.HasField("input") else None,
        _decode=decode,
    )


def preview(answer: pb.PreviewScheduleResponse) -> Preview:
    """A preview of the wire."""
    every = answer.timing.WhichOneof("timing") == "every_ms"
    return Preview(
        fires=tuple(datetime.fromisoformat(fire.local) for fire in answer.fires),
        cron=None if every else answer.timing.cron,
        every=timedelta(milliseconds=answer.timing.every_ms) if every else None,
        words=answer.words,
        timezone=answer.timezone,
    )


def _retry(schedule: pb.Schedule) -> Retry:
    policy = schedule.retry
    return Retry(
        max_attempts=policy.maximum_attempts or 3,
        initial=timedelta(milliseconds=policy.initial_interval_ms or 1_000),
        backoff=policy.backoff_coefficient or 2.0,
        max_interval=timedelta(milliseconds=policy.maximum_interval_ms or 60_000),
    )


def _moment(schedule: pb.Schedule, name: str) -> datetime | None:
    # Protobuf names fields by text, and an absent time reads as 1970.
    if not schedule.HasField(name):  # type: ignore[arg-type]
        return None
    found: datetime = getattr(schedule, name).ToDatetime(UTC)
    return found
