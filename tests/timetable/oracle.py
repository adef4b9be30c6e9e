"""Another way to know when a cron expression fires: walk over UTC minute by minute and look at the clock on the wall.

It shares nothing with what it judges: the expression is given as sets of numbers, the zone is asked through
`zoneinfo`, and every minute of five years has its place in a few arrays. An hour whose first and last minute have one
offset is filled in one go; any other is walked by the minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
END = datetime(2029, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOURS = (END - BEGIN) // timedelta(hours=1)


@dataclass(frozen=True)
class Rule:
    """A cron expression taken apart by hand; no numbers mean any. Days of week count from Sunday, 0."""

    minutes: frozenset[int] = frozenset(range(60))
    hours: frozenset[int] = frozenset(range(24))
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset(range(1, 13))
    weekdays: frozenset[int] = frozenset()
    # Follows elapsed time.
    elapsed: bool = False

    def on(self, day: datetime) -> bool:
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.days and self.weekdays:
            chosen = by_day or by_weekday
        else:
            chosen = (by_day or not self.days) and (by_weekday or not self.weekdays)
        return chosen and day.month in self.months

    def at(self, wall: datetime) -> bool:
        return self.on(wall) and wall.hour in self.hours and wall.minute in self.minutes


class Change(NamedTuple):
    """The minute at which clocks change, and the times on the wall that it leaves out."""

    minute: int
    left_out: list[datetime]


class Fires:
    """The fires of one rule: a mark for every minute of the five years."""

    def __init__(self, marks: bytearray) -> None:
        self.marks = marks

    def between(self, after: datetime, until: datetime) -> list[datetime]:
        """Those after the one moment and not after the other."""
        found = []
        start, stop = (moment - BEGIN for moment in (after, until))
        place = self.marks.find(1, max(start // MINUTE + 1, 0))
        while 0 <= place <= stop // MINUTE:
            found.append(BEGIN + place * MINUTE)
            place = self.marks.find(1, place + 1)
        return found


class Walk:
    """Five years of one zone: for each minute of UTC what the wall clock shows, and whether it showed it before."""

    def __init__(self, name: str) -> None:
        self.zone = ZoneInfo(name)
        self.minutes = bytearray()
        self.hours = bytearray()
        self.repeated = bytearray()
        self.masks: dict[tuple[str, frozenset[int]], int] = {}
        self.dates: list[tuple[datetime, int]] = []
        self.changes: list[Change] = []
        before = self._wall(BEGIN - MINUTE)
        for hour in range(HOURS):
            start = BEGIN + timedelta(hours=hour)
            first, last = self._wall(start), self._wall(start + 59 * MINUTE)
            if first == before + MINUTE and last == first + 59 * MINUTE and not first.fold and not last.fold:
                self._add(first, 60)
            else:
                self._walk(start, before)
            before = last

    def _walk(self, start: datetime, before: datetime) -> None:
        for minute in range(60):
            wall = self._wall(start + minute * MINUTE)
            if wall != before + MINUTE:
                gap = max((wall - before) // MINUTE - 1, 0)
                self.changes.append(Change(len(self.minutes), [before + (k + 1) * MINUTE for k in range(gap)]))
            self._add(wall.replace(fold=0), 1, wall.fold)
            before = wall.replace(fold=0)

    def _wall(self, moment: datetime) -> datetime:
        return moment.astimezone(self.zone).replace(tzinfo=None)

    def _add(self, wall: datetime, count: int, repeated: int = 0) -> None:
        self.repeated += bytes([repeated]) * count
        while count:
            part = min(count, 60 - wall.minute)
            self.minutes += bytes(range(wall.minute, wall.minute + part))
            self.hours += bytes([wall.hour]) * part
            self._add_date(wall, part)
            wall, count = wall + part * MINUTE, count - part

    def _add_date(self, wall: datetime, count: int) -> None:
        day = wall.replace(hour=0, minute=0)
        if self.dates and self.dates[-1][0] == day:
            self.dates[-1] = (day, self.dates[-1][1] + count)
        else:
            self.dates.append((day, count))

    def fires(self, rule: Rule) -> Fires:
        """Every fire of the five years."""
        both = self._mask("minutes", rule.minutes) & self._mask("hours", rule.hours)
        if rule.days or rule.weekdays or len(rule.months) < 12:
            days = b"".join((b"\1" if rule.on(day) else b"\0") * count for day, count in self.dates)
            both &= int.from_bytes(days, "big")
        if not rule.elapsed:
            both &= self._mask("repeated", frozenset({0}))
        marks = bytearray(both.to_bytes(len(self.minutes), "big"))
        for change in self.changes:
            if not rule.elapsed and any(rule.at(wall) for wall in change.left_out):
                marks[change.minute] = 1
        return Fires(marks)

    def _mask(self, what: str, numbers: frozenset[int]) -> int:
        """A byte for each minute, 1 where it shows one of the numbers."""
        if (what, numbers) not in self.masks:
            table = bytes(number in numbers for number in range(256))
            self.masks[what, numbers] = int.from_bytes(getattr(self, what).translate(table), "big")
        return self.masks[what, numbers]

    def windows(self) -> list[tuple[datetime, datetime]]:
        """Ten hours around every change, and as many of some ordinary days."""
        half = timedelta(hours=5)
        around = [BEGIN + change.minute * MINUTE for change in self.changes]
        ordinary = [BEGIN + timedelta(days=day, hours=7) for day in range(60, (END - BEGIN).days, 151)]
        return [(moment - half, moment + half) for moment in around + ordinary]
