"""Reads timetables written by people."""

import re
from datetime import datetime, timedelta

from kagzi.timetable.errors import TimetableError, shown
from kagzi.timetable.timetable import EPOCH, Timetable, read_cron, read_interval

_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_EVERY = re.compile(r"every (\d{1,9}) (second|minute|hour|day|week)s?")


def read_text(text: str, timezone: str = "UTC", anchor: datetime | None = None) -> Timetable:
    """The timetable that a phrase means; TimetableError with the nearest phrase that works."""
    if text.startswith("cron "):
        return read_cron(text.removeprefix("cron "), timezone)
    if found := _EVERY.fullmatch(text):
        return read_interval(int(found[1]) * timedelta(seconds=_UNITS[found[2]]), anchor or EPOCH)
    raise TimetableError("text", f"{shown(text)} does not say when", "every day at 09:00")
