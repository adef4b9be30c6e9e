"""When a producer is due: the timetable behind the store's schedules. A timetable is read once and kept, because every
commit of a producer asks for its next slot. It reads no clock.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache

from kagzi.store.rules import Schedule
from kagzi.timetable import Timetable, TimetableError, read_cron, read_interval


@lru_cache(maxsize=4_096)
def timetable(schedule: Schedule) -> Timetable:
    """The timetable of a schedule; TimetableError when it says nothing."""
    if schedule.kind == "cron":
        return read_cron(schedule.value, schedule.timezone)
    return read_interval(timedelta(milliseconds=int(schedule.value)), schedule.anchor)


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """The first slot after a moment; None when there is none, or none can be told any more."""
    try:
        return timetable(schedule).after(after)
    except (TimetableError, ValueError):
        # It was read when it was deployed; a rule that has changed since must not keep a run from ending.
        return None
