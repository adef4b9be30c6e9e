"""Templates: a schedule as a row, and as the message of the contract. A template is the row of kagzi.workflow_runs that
says what a schedule starts and when; it is no run, and nothing that deals with runs sees it. Pure: it reads no
database and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.store import rows
from kagzi.store.rows import Row

# What `template` reads: columns of kagzi.workflow_runs, with available_at as nullif(available_at, 'infinity').
COLUMNS = (
    "namespace",
    "run_id",
    "external_id",
    "status",
    "task_queue",
    "workflow_type",
    "version",
    "priority",
    "retry_policy",
    "labels",
    "run_timeout",
    "cron_expr",
    "interval",
    "anchor_at",
    "timezone",
    "starts_at",
    "ends_at",
    "jitter",
    "run_limit",
    "fired",
    "overlap",
    "max_catchup",
    "schedule_text",
    "scheduled_for",
    "available_at",
    "last_slot",
    "pause",
    "paused_reason",
    "schedule_error",
    "schedule_notice",
    "created_at",
    "updated_at",
)

ALLOW, SKIP, QUEUE_ONE, CANCEL_PREVIOUS, QUEUE_ALL = "allow", "skip", "queue_one", "cancel_previous", "queue_all"
OVERLAP = {
    ALLOW: pb.OVERLAP_ALLOW,
    SKIP: pb.OVERLAP_SKIP,
    QUEUE_ONE: pb.OVERLAP_QUEUE_ONE,
    CANCEL_PREVIOUS: pb.OVERLAP_CANCEL_PREVIOUS,
    QUEUE_ALL: pb.OVERLAP_QUEUE_ALL,
}
OVERLAP_NAME = {value: name for name, value in OVERLAP.items()}
ASKED, FINISHED, RUN_LIMIT = "ASKED", "FINISHED", "RUN_LIMIT"
_PAUSE = {
    ASKED: pb.SCHEDULE_PAUSE_ASKED,
    FINISHED: pb.SCHEDULE_PAUSE_FINISHED,
    RUN_LIMIT: pb.SCHEDULE_PAUSE_RUN_LIMIT,
}
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Template:
    """One schedule, as stored. Retry policy and labels stay the text they are stored as."""

    namespace: str
    run_id: str
    schedule_id: str
    workflow_type: str
    task_queue: str
    version: str
    priority: int
    timezone: str
    # One of the two says when it is due; an interval counts from its anchor.
    cron: str | None
    every: timedelta | None
    anchor: datetime | None
    words: str
    overlap: str
    max_catchup: int
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    jitter: timedelta = timedelta()
    run_limit: int | None = None
    retry_policy: str | None = None
    labels: str | None = None
    timeout: timedelta | None = None
    # Where it stands. The next slot and when it fires for that; None while it is paused.
    slot: datetime | None = None
    available_at: datetime | None = None
    pause: str | None = None
    pause_reason: str = ""
    error: str | None = None
    notice: str | None = None
    fired: int = 0
    last_slot: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None

    @property
    def status(self) -> str:
        return "SCHEDULED" if self.pause is None else "PAUSED"


def template(row: Row) -> Template:
    """The template in a row of COLUMNS."""
    return Template(
        namespace=row["namespace"],
        run_id=str(row["run_id"]),
        schedule_id=row["external_id"] or "",
        workflow_type=row["workflow_type"],
        task_queue=row["task_queue"],
        version=row["version"],
        priority=row["priority"],
        timezone=row["timezone"] or "UTC",
        cron=row["cron_expr"],
        every=row["interval"],
        anchor=row["anchor_at"],
        words=row["schedule_text"] or "",
        overlap=row["overlap"] or ALLOW,
        max_catchup=row["max_catchup"] or 0,
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        jitter=row["jitter"] or timedelta(),
        run_limit=row["run_limit"],
        retry_policy=row["retry_policy"],
        labels=row["labels"],
        timeout=row["run_timeout"],
        slot=row["scheduled_for"],
        available_at=row["available_at"],
        pause=(row["pause"] or ASKED) if row["status"] == "PAUSED" else None,
        pause_reason=row["paused_reason"] or "",
        error=row["schedule_error"],
        notice=row["schedule_notice"],
        fired=row["fired"] or 0,
        last_slot=row["last_slot"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def message(template: Template, given: Payload | None = None) -> pb.Schedule:
    """The schedule of the contract, with its input if that was read."""
    return pb.Schedule(
        namespace=template.namespace,
        schedule_id=template.schedule_id,
        template_run_id=template.run_id,
        status=rows.RUN_STATUS[template.status],
        pause=_PAUSE[template.pause] if template.pause else pb.SCHEDULE_PAUSE_UNSPECIFIED,
        pause_reason=template.pause_reason,
        error=template.error or "",
        notice=template.notice or "",
        timing=timing(template.cron, template.every),
        words=template.words,
        timezone=template.timezone,
        start_at=rows.timestamp(template.starts_at),
        end_at=rows.timestamp(template.ends_at),
        jitter_ms=template.jitter // _MILLISECOND,
        max_runs=template.run_limit or 0,
        runs_started=template.fired,
        overlap=OVERLAP[template.overlap],
        max_catchup=template.max_catchup,
        next_slot=rows.timestamp(template.slot),
        next_fire_at=None if template.error else rows.timestamp(template.available_at),
        last_slot=rows.timestamp(template.last_slot),
        workflow_type=template.workflow_type,
        task_queue=template.task_queue,
        version=template.version,
        priority=template.priority,
        timeout_ms=None if template.timeout is None else template.timeout // _MILLISECOND,
        retry=rows.retry_policy(template.retry_policy),
        labels=rows.labels(template.labels),
        input=given,
        created_at=rows.timestamp(template.created_at),
        updated_at=rows.timestamp(template.updated_at),
    )


def timing(cron: str | None, every: timedelta | None) -> pb.ScheduleTiming:
    """When a schedule is due, as the contract says it."""
    if every is not None:
        return pb.ScheduleTiming(every_ms=every // _MILLISECOND)
    return pb.ScheduleTiming(cron=cron or "")
