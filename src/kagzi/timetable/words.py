"""A timetable in words that are understood when they are read back.

What has no short saying is shown as its expression, which is understood as well. Nothing is rounded or left out.
"""

from datetime import datetime, timedelta

from kagzi.timetable.pattern import Pattern


def cron(wanted: Pattern) -> str:
    return f"cron {wanted.text}"


def interval(every: timedelta, anchor: datetime | None) -> str:
    text = f"every {every.total_seconds():g} seconds"
    return text if anchor is None else f"{text}, counted from {anchor:%Y-%m-%d %H:%M:%S} UTC"
