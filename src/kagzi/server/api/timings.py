"""When a schedule of a request is due: cron, interval or words, in a time zone, within bounds. What cannot be read is
refused with the field that says it. Pure: the time is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.server.api import checks
from kagzi.store.errors import invalid
from kagzi.store.templates import Template
from kagzi.timetable import Timetable, TimetableError, read_cron, read_interval, read_text

_TEXT_BYTES = 1_000
_SHORTEST_MS = 1_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """No slot lies before `start`, or at or after `end`."""

    start: datetime | None
    end: datetime | None


def bounds(
    request: pb.CreateScheduleRequest | pb.UpdateScheduleRequest | pb.PreviewScheduleRequest.Proposal,
    before: Template | None = None,
    clear: Collection[str] = (),
    path: str = "",
) -> Bounds:
    """The bounds of a request; those of the schedule as it was where it gives none."""
    start = None if before is None or "start_at" in clear else before.starts_at
    end = None if before is None or "end_at" in clear else before.ends_at
    if request.HasField("start_at"):
        start = checks.timestamp(request.start_at, f"{path}start_at")
    if request.HasField("end_at"):
        end = checks.timestamp(request.end_at, f"{path}end_at")
    if start is not None and end is not None and end <= start:
        blamed = "end_at" if request.HasField("end_at") or before is None else "start_at"
        raise invalid(f"{path}{blamed}", f"end_at, {end}, must be later than start_at, {start}")
    return Bounds(start, end)


def anchor(given: Bounds, now: datetime) -> datetime:
    """What an interval counts from that says nothing of it: the first moment it may fire, else now."""
    # Whole seconds, so that its slots can be said in words.
    return given.start or now.replace(microsecond=0)


def read(timing: pb.ScheduleTiming, timezone: str, anchor: datetime, path: str = "") -> Timetable:
    """The timetable that a request asks for. An interval counts from the anchor, unless its words name another."""
    field = timing.WhichOneof("timing")
    if field is None:
        raise invalid(f"{path}timing", "timing is missing: give cron, every_ms or text")
    try:
        # An interval is in no zone, and words may name their own; one that does not exist is a mistake all the same.
        read_cron("@daily", timezone)
    except TimetableError as error:
        raise invalid(f"{path}timezone", str(error)) from None
    try:
        return _read(timing, timezone, anchor, path)
    except TimetableError as error:
        raise invalid(f"{path}timing.{field}", str(error)) from None


def _read(timing: pb.ScheduleTiming, timezone: str, anchor: datetime, path: str) -> Timetable:
    match timing.WhichOneof("timing"):
        case "cron":
            return read_cron(checks.name(timing.cron, f"{path}timing.cron"), timezone)
        case "every_ms":
            every = checks.duration_ms(timing.every_ms, f"{path}timing.every_ms", minimum=_SHORTEST_MS)
            return read_interval(timedelta(milliseconds=every), anchor)
        case _:
            return read_text(checks.name(timing.text, f"{path}timing.text", maximum=_TEXT_BYTES), timezone, anchor)
