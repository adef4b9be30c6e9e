"""When something is due: a cron expression in a time zone, or an interval counted from an anchor.

A timetable is a value. It knows every fire there ever was and will be, and finds the ones asked for without walking
over the others. Where clocks change, a fixed hour and minute fires once: at the next valid instant when it was left
out, at its first occurrence when it comes twice; a wildcard or step in hour or minute follows elapsed time. It never
reads a clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kagzi.timetable import pattern, words, zone
from kagzi.timetable.errors import TimetableError, shown
from kagzi.timetable.pattern import Pattern
from kagzi.timetable.zone import Stretch

SHORTEST = timedelta(seconds=1)
# Longer ones are slips of the unit.
LONGEST = timedelta(days=36_525)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_SECOND = timedelta(seconds=1)
# No clock is so far from UTC, nor ever jumped so far: what is more than this away is worth a leap over the stretches.
_MARGIN = timedelta(days=3)


@dataclass(frozen=True, slots=True)
class Timetable:
    """Either `cron`, meant in `timezone`, or `every`, counted from `anchor` in both directions.

    Made by `read_cron`, `read_interval` and `read_text`, which check what they are given.
    """

    cron: str | None
    every: timedelta | None
    anchor: datetime | None
    timezone: str

    @property
    def words(self) -> str:
        """The timetable as people say it; `read_text` reads it back as one with the same fires."""
        if self.every is not None and self.anchor is not None:
            return words.interval(self.every, None if self.anchor == EPOCH else self.anchor)
        return f"{words.cron(self._pattern())} ({self.timezone})"

    def after(self, moment: datetime) -> datetime | None:
        """The first fire strictly after `moment`, in UTC; None when the calendar ends before it."""
        wanted = _utc(moment)
        try:
            found = self._interval(wanted, 1) if self.cron is None else self._first(wanted)
        except OverflowError:
            return None
        return None if found is None else found.replace(tzinfo=UTC)

    def fires(self, after: datetime) -> Iterator[datetime]:
        """Every fire strictly after that moment, in order."""
        found = self.after(after)
        while found is not None:
            yield found
            found = self.after(found)

    def missed(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
        """The newest `limit` fires after `after` and not after `until`, in order.

        They are looked for backwards from `until`, so the length of the gap costs nothing.
        """
        oldest, newest = _utc(after), _utc(until)
        found: list[datetime] = []
        while len(found) < limit:
            try:
                fire = self._interval(newest, 0) if self.cron is None else self._last(newest)
            except OverflowError:
                break
            if fire is None or fire <= oldest:
                break
            found.append(fire.replace(tzinfo=UTC))
            newest = fire - timedelta.resolution
        return found[::-1]

    def _pattern(self) -> Pattern:
        assert self.cron is not None, "asked only of a timetable with a cron expression"
        return pattern.read(self.cron)

    def _interval(self, moment: datetime, ahead: int) -> datetime:
        """The fire `ahead` places after the last one that is not after `moment`."""
        assert self.every is not None, "asked only of a timetable with an interval"
        assert self.anchor is not None, "asked only of a timetable with an interval"
        anchor = self.anchor.replace(tzinfo=None)
        return anchor + ((moment - anchor) // self.every + ahead) * self.every

    def _first(self, moment: datetime) -> datetime | None:
        """The first fire after `moment`."""
        wanted = self._pattern()
        earliest = moment.replace(microsecond=0) + _SECOND
        for stretch in zone.onwards(self.timezone, earliest):
            floor = _floor(wanted, stretch)
            if earliest > stretch.start:
                floor = max(floor, earliest + stretch.offset)
            match = wanted.first(floor)
            if match is None:
                return None
            # A match that the clocks left out lies before the stretch begins.
            fire = max(match - stretch.offset, stretch.start)
            if fire < stretch.end:
                return fire
            if match - stretch.end > _MARGIN:
                return self._first(match - _MARGIN)
        return None

    def _last(self, moment: datetime) -> datetime | None:
        """The last fire that is not after `moment`."""
        wanted = self._pattern()
        latest = moment.replace(microsecond=0)
        for stretch in zone.backwards(self.timezone, latest):
            match = wanted.last(min(latest, stretch.end - _SECOND) + stretch.offset)
            if match is None:
                return None
            if match >= _floor(wanted, stretch):
                return max(match - stretch.offset, stretch.start)
            if stretch.start - match > _MARGIN:
                return self._last(match + _MARGIN)
        return None


def read_cron(expression: str, timezone: str = "UTC") -> Timetable:
    """The timetable of a cron expression: 5 fields, 6 with seconds in front, or an alias as `@daily`."""
    zone.read(timezone)
    return Timetable(pattern.read(expression).text, None, None, timezone)


def read_interval(every: timedelta, anchor: datetime) -> Timetable:
    """The timetable of every moment that is a whole number of intervals away from `anchor`."""
    if not SHORTEST <= every <= LONGEST:
        raise TimetableError(
            "interval", f"{shown(str(every))} is no interval: it is one second at least, 100 years at most"
        )
    return Timetable(None, every, _utc(anchor).replace(tzinfo=UTC), "UTC")


def _floor(wanted: Pattern, stretch: Stretch) -> datetime:
    """The first time on the wall clock that the stretch answers for."""
    return stretch.start + stretch.offset if wanted.elapsed else stretch.resumes


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: give an aware datetime")
    return moment.astimezone(UTC).replace(tzinfo=None)
