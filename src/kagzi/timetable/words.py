"""A timetable in words that are understood when they are read back.

They say the same fires, so a pattern is looked at by what it matches, not by how it was written. What has no short
saying is shown as its expression, which is understood as well. Nothing is rounded or left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby, pairwise, product

from kagzi.timetable.fields import LAST
from kagzi.timetable.lexicon import MONTHS, ORDINALS, UNITS, WEEKDAYS
from kagzi.timetable.pattern import Pattern

# Longer lists would be read by nobody.
_MOST = 8

_ALL_MINUTES = tuple(range(60))
_ALL_HOURS = tuple(range(24))


@dataclass(frozen=True, slots=True)
class _Days:
    """The days of a pattern, of one kind; none of any kind are all days."""

    dates: tuple[int, ...] = ()
    weekdays: tuple[int, ...] = ()
    nth: tuple[tuple[int, int], ...] = ()
    months: tuple[int, ...] = ()


def cron(wanted: Pattern) -> str:
    """The words of a pattern, without its zone."""
    days = _days(wanted)
    if days is not None:
        if (frequency := _frequency(wanted, every_day=days == _Days())) is not None:
            return frequency + _on(days)
        if not wanted.elapsed and (times := _times(wanted)) is not None:
            return f"{_every(days)} at {times}"
    return f"cron {wanted.text}"


def interval(every: timedelta, anchor: datetime | None) -> str:
    """The words of an interval, with its anchor where it is not the epoch."""
    text = f"every {_length(every)}"
    if anchor is None:
        return text
    moment = anchor.isoformat(" ", "auto" if anchor.second or anchor.microsecond else "minutes")
    return f"{text}, counted from {moment.removesuffix('+00:00')} UTC"


def _length(every: timedelta) -> str:
    for unit in ("week", "day", "hour", "minute", "second"):
        count, rest = divmod(every, timedelta(seconds=UNITS[unit]))
        if not rest and (2 if unit == "week" else 1) <= count <= 120:
            return _count(count, unit)
    parts = []
    rest = every
    for unit in ("day", "hour", "minute"):
        count, rest = divmod(rest, timedelta(seconds=UNITS[unit]))
        parts += [_count(count, unit)] if count else []
    seconds = f"{rest.total_seconds():f}".rstrip("0").rstrip(".")
    return " ".join([*parts, _count(seconds, "second")] if rest else parts)


def _count(count: int | str, unit: str) -> str:
    return f"{count} {unit}" if str(count) == "1" else f"{count} {unit}s"


def _frequency(wanted: Pattern, *, every_day: bool) -> str | None:
    """How often, for what happens several times a day; None when that is not the way to say it."""
    seconds, minutes, hours = wanted.second.numbers, wanted.minute.numbers, wanted.hour.numbers
    if seconds != (0,):
        whole = wanted.elapsed and hours == _ALL_HOURS and minutes == _ALL_MINUTES
        return _within(seconds, "second", "minute") if whole else None
    if not wanted.elapsed:
        ends = _ends(hours, every_day=every_day)
        if len(minutes) > 1 or len(hours) < 4 or ends is None:
            return None
        return f"every hour {_window(ends[0], minutes[0], ends[1], minutes[0])}"
    if hours == _ALL_HOURS:
        return _within(minutes, "minute", "hour")
    if len(minutes) == 1:
        gap = _gap(hours)
        return f"every {gap} hours {_window(hours[0], minutes[0], hours[-1], minutes[0])}" if gap > 1 else None
    return _minutes_of_hours(minutes, hours, every_day=every_day)


def _within(numbers: tuple[int, ...], unit: str, larger: str) -> str | None:
    """Seconds of every minute, minutes of every hour."""
    if numbers == _ALL_MINUTES:
        return f"every {unit}"
    if numbers == (0,):
        return f"every {larger}"
    if (gap := _gap(numbers)) and numbers == tuple(range(0, 60, gap)):
        return f"every {gap} {unit}s of every {larger}"
    if len(numbers) > _MOST:
        return None
    return f"every {larger} at {unit}{'s' if len(numbers) > 1 else ''} {_list(numbers)}"


def _minutes_of_hours(minutes: tuple[int, ...], hours: tuple[int, ...], *, every_day: bool) -> str | None:
    """Minutes counted through hours that follow each other."""
    ends = _ends(hours, every_day=every_day)
    gap = _gap(minutes)
    if ends is None or minutes != tuple(range(0, 60, gap or 60)):
        return None
    often = "every minute" if gap == 1 else f"every {gap} minutes"
    return f"{often}{' of every hour' if 60 % gap else ''} {_window(ends[0], 0, ends[1], minutes[-1])}"


def _ends(hours: tuple[int, ...], *, every_day: bool) -> tuple[int, int] | None:
    """The first and last of hours that follow each other; through the night only where no day ends with it."""
    if hours == _ALL_HOURS:
        return 0, 23
    firsts = [hour for hour in hours if (hour - 1) % 24 not in hours]
    first, last = firsts[0], (firsts[0] + len(hours) - 1) % 24
    return (first, last) if len(firsts) == 1 and (first <= last or every_day) else None


def _window(first: int, minute: int, last: int, end: int) -> str:
    return f"from {first:02}:{minute:02} to {last:02}:{end:02}"


def _times(wanted: Pattern) -> str | None:
    seconds, minutes, hours = wanted.second.numbers, wanted.minute.numbers, wanted.hour.numbers
    if len(seconds) * len(minutes) * len(hours) > _MOST:
        return None
    return _list(
        f"{hour:02}:{minute:02}" if seconds == (0,) else f"{hour:02}:{minute:02}:{second:02}"
        for hour, minute, second in product(hours, minutes, seconds)
    )


def _days(wanted: Pattern) -> _Days | None:
    """The days, where they are of one kind."""
    day, weekday = wanted.day, wanted.weekday
    months = () if len(wanted.month.numbers) == 12 else wanted.month.numbers
    any_day, any_weekday = len(day.numbers) == 31, len(weekday.numbers) == 7
    either = not (day.star or weekday.star)
    if (any_day and any_weekday) or (either and (any_day or any_weekday)):
        return _Days(months=months)
    dates = (*day.numbers, LAST) if day.last else day.numbers
    if any_weekday and not either and len(dates) <= _MOST:
        return _Days(dates=dates, months=months)
    if any_day and not either and not (weekday.numbers and weekday.nth):
        return _Days(weekdays=weekday.numbers, nth=tuple(sorted(weekday.nth)), months=months)
    return None


def _every(days: _Days) -> str:
    """The days, before times of day."""
    if days.dates or days.nth:
        return _on(days).strip()
    if days.weekdays == (1, 2, 3, 4, 5):
        return f"every weekday{_in(days.months)}"
    return f"every {_names(days.weekdays) or 'day'}{_in(days.months)}"


def _on(days: _Days) -> str:
    """The days, behind how often."""
    whose = _list(MONTHS[month - 1] for month in days.months) or "the month"
    if days.dates:
        places = ("last day" if date == LAST else _nth(date) for date in days.dates)
        return f" on the {_list(places)} of {whose}"
    if days.nth:
        return f" on the {_list(_places(days.nth))} of {whose}"
    if days.weekdays == (1, 2, 3, 4, 5):
        return f" on weekdays{_in(days.months)}"
    return f"{' on ' if days.weekdays else ''}{_names(days.weekdays)}{_in(days.months)}"


def _places(nth: tuple[tuple[int, int], ...]) -> Iterable[str]:
    """`first and third Monday`, for each weekday; `last` comes behind the numbers."""
    for day, pairs in groupby(nth, key=lambda pair: pair[0]):
        places = sorted((place for _, place in pairs), key=lambda place: 6 if place == LAST else place)
        yield f"{_list('last' if place == LAST else ORDINALS[place - 1] for place in places)} {WEEKDAYS[day]}"


def _names(weekdays: tuple[int, ...]) -> str:
    """From Monday on, as people count."""
    return _list(WEEKDAYS[day] for day in sorted(weekdays, key=lambda day: (day - 1) % 7))


def _in(months: tuple[int, ...]) -> str:
    return f" in {_list(MONTHS[month - 1] for month in months)}" if months else ""


def _nth(number: int) -> str:
    ending = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _gap(numbers: tuple[int, ...]) -> int:
    """How far each is from the one before, 0 when they are not evenly spread or alone."""
    gaps = {after - before for before, after in pairwise(numbers)}
    return gaps.pop() if len(gaps) == 1 else 0


def _list(items: Iterable[object]) -> str:
    *most, last = [*map(str, items)] or [""]
    return f"{', '.join(most)} and {last}" if most else last
