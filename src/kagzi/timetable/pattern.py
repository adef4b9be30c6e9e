"""A cron expression as a pattern on the wall clock: the first match from a time on, and the last one up to it.

Both ways cost a few look-ups whatever lies between, never a walk. A pattern knows the calendar and no time zone:
times are naive, of whole seconds. An expression that no date can ever match is refused when it is read.
"""

from bisect import bisect_left, bisect_right
from calendar import monthrange
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, datetime
from functools import lru_cache

from kagzi.timetable import fields
from kagzi.timetable.errors import TimetableError, shown
from kagzi.timetable.fields import LAST, Field

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

# The calendar with its weekdays repeats after exactly so many years.
CYCLE = 400
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_KINDS = (fields.SECOND, fields.MINUTE, fields.HOUR, fields.DAY, fields.MONTH, fields.WEEKDAY)

_month = lru_cache(maxsize=2048)(monthrange)


@dataclass(frozen=True, slots=True)
class Pattern:
    """What an expression means. `text` is the expression, tidied, with an alias spelt out."""

    text: str
    second: Field
    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field
    # The days of a month, by its length and the weekday it begins with; there are 28 such months.
    shapes: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def elapsed(self) -> bool:
        """Whether it follows elapsed time when clocks change: a wildcard or a step in hour or minute."""
        return self.minute.star or self.hour.star or self.minute.step or self.hour.step

    def first(self, at: datetime) -> datetime | None:
        """The first match at or after `at`."""
        if at.day in self._days(at.year, at.month):
            hours, minutes, seconds = self.hour.numbers, self.minute.numbers, self.second.numbers
            if at.hour in hours:
                if at.minute in minutes and (place := bisect_left(seconds, at.second)) < len(seconds):
                    return at.replace(second=seconds[place])
                if (place := bisect_right(minutes, at.minute)) < len(minutes):
                    return at.replace(minute=minutes[place], second=seconds[0])
            if (place := bisect_right(hours, at.hour)) < len(hours):
                return at.replace(hour=hours[place], minute=minutes[0], second=seconds[0])
        return self._first_day(at)

    def last(self, at: datetime) -> datetime | None:
        """The last match at or before `at`."""
        if at.day in self._days(at.year, at.month):
            hours, minutes, seconds = self.hour.numbers, self.minute.numbers, self.second.numbers
            if at.hour in hours:
                if at.minute in minutes and (place := bisect_right(seconds, at.second)) > 0:
                    return at.replace(second=seconds[place - 1])
                if (place := bisect_left(minutes, at.minute)) > 0:
                    return at.replace(minute=minutes[place - 1], second=seconds[-1])
            if (place := bisect_left(hours, at.hour)) > 0:
                return at.replace(hour=hours[place - 1], minute=minutes[-1], second=seconds[-1])
        return self._last_day(at)

    def _first_day(self, at: datetime) -> datetime | None:
        """The first match on a day after that of `at`."""
        year, month = at.year, at.month
        days, place = self._days(year, month), bisect_right(self._days(year, month), at.day)
        months = self.month.numbers
        while place == len(days):
            if (index := bisect_right(months, month)) < len(months):
                month = months[index]
            elif year - at.year < CYCLE and year < MAXYEAR:
                year, month = year + 1, months[0]
            else:
                return None
            days, place = self._days(year, month), 0
        return datetime(  # noqa: DTZ001 - the wall clock
            year, month, days[place], self.hour.numbers[0], self.minute.numbers[0], self.second.numbers[0]
        )

    def _last_day(self, at: datetime) -> datetime | None:
        """The last match on a day before that of `at`."""
        year, month = at.year, at.month
        days, place = self._days(year, month), bisect_left(self._days(year, month), at.day)
        months = self.month.numbers
        while place == 0:
            if (index := bisect_left(months, month)) > 0:
                month = months[index - 1]
            elif at.year - year < CYCLE and year > MINYEAR:
                year, month = year - 1, months[-1]
            else:
                return None
            days = self._days(year, month)
            place = len(days)
        return datetime(  # noqa: DTZ001 - the wall clock
            year, month, days[place - 1], self.hour.numbers[-1], self.minute.numbers[-1], self.second.numbers[-1]
        )

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.month.numbers:
            return ()
        begins, length = _month(year, month)
        days = self.shapes.get((begins, length))
        if days is None:
            days = tuple(day for day in range(1, length + 1) if self._matches(day, (begins + day) % 7, length))
            self.shapes[begins, length] = days
        return days

    def _matches(self, day: int, weekday: int, length: int) -> bool:
        """As every cron has it: two restricted fields of days are joined by "or", otherwise both must hold."""
        by_day = day in self.day.numbers or (self.day.last and day == length)
        place = (day + 6) // 7
        by_weekday = (
            weekday in self.weekday.numbers
            or (weekday, place) in self.weekday.nth
            or (day > length - 7 and (weekday, LAST) in self.weekday.nth)
        )
        if self.day.star or self.weekday.star:
            return by_day and by_weekday
        return by_day or by_weekday


@lru_cache(maxsize=4096)
def read(expression: str) -> Pattern:
    """The pattern of an expression; TimetableError with the field and the reason."""
    text = " ".join(expression.split()) if len(expression) <= 1000 else ""
    if text.startswith("@"):
        text = _alias(text)
    parts = text.upper().split()
    if len(parts) not in (5, 6):
        raise TimetableError(
            "cron",
            f"{shown(expression)} is no cron expression: 5 fields (minute, hour, day of month, month, day of week), "
            f"6 with seconds in front, or one of {', '.join(ALIASES)}",
        )
    parts = ["0", *parts] if len(parts) == 5 else parts
    second, minute, hour, day, month, weekday = (fields.read(*pair) for pair in zip(_KINDS, parts, strict=True))
    pattern = Pattern(text, second, minute, hour, day, month, weekday)
    if pattern.first(datetime(2000, 1, 1)) is None:  # noqa: DTZ001 - the wall clock
        raise TimetableError("cron", f"{shown(expression)} never happens: {_why_never(pattern)}")
    return pattern


def _alias(text: str) -> str:
    if text.lower() == "@every" or text.lower().startswith("@every "):
        raise TimetableError("cron", f"{shown(text)} is a length of time: give it as an interval")
    if text.lower() not in ALIASES:
        raise TimetableError("cron", f"{shown(text)} is none of {', '.join(ALIASES)}")
    return ALIASES[text.lower()]


def _why_never(pattern: Pattern) -> str:
    months = pattern.month.numbers
    if pattern.day.numbers and pattern.day.numbers[0] > max(_LONGEST[month - 1] for month in months):
        names = " and ".join(fields.MONTHS[month - 1].capitalize() for month in months)
        has = "has" if len(months) == 1 else "have"
        return f"{names} never {has} a day {pattern.day.numbers[0]}"
    return "no date matches both its day of month and its day of week"
