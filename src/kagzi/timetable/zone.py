"""Time zones as stretches of constant offset, so that wall clocks can be searched without walking over them.

The stretches of a year are found once, by looking at every day and narrowing down where the offset changes, and kept.
Zones come from the system's database or from the package tzdata. Nothing here knows what is searched for.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from kagzi.timetable.errors import TimetableError, shown

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
# They depend on the machine, count leap seconds, or stand for no place.
_NO_PLACES = ("localtime", "posixrules", "Factory", "right/", "posix/")


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `start` until before `end`, in UTC, the wall clock is UTC plus `offset`.

    `resumes` is what the wall clock showed at the end of the stretch before: earlier than it does at `start` when
    clocks went forward, later when they went back.
    """

    start: datetime
    end: datetime
    offset: timedelta
    resumes: datetime


@lru_cache(maxsize=1024)
def read(name: str) -> ZoneInfo:
    """The zone of that name; TimetableError with the nearest name there is."""
    if name and not name.startswith(_NO_PLACES):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass
    names = _names()
    near = get_close_matches(name[:64].strip().lower().replace(" ", "_"), names, n=1, cutoff=0.75)
    nearest = names[near[0]] if near else None
    raise TimetableError("timezone", f"{shown(name)} is no IANA time zone, as Europe/Berlin or UTC", nearest)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """The zones by their names and by their cities, in small letters."""
    zones = sorted(zone for zone in available_timezones() if not zone.startswith(_NO_PLACES))
    cities = {zone.rpartition("/")[2].lower(): zone for zone in zones}
    return cities | {zone.lower(): zone for zone in zones}


def onwards(name: str, moment: datetime) -> Iterator[Stretch]:
    """The stretch that holds `moment`, in UTC without saying so, and those after it."""
    for year in range(max(moment.year, MINYEAR + 1), MAXYEAR):
        found = _stretches(name, year)
        yield from found[_place(found, moment) :] if year == moment.year else found


def backwards(name: str, moment: datetime) -> Iterator[Stretch]:
    """The stretch that holds `moment`, and those before it, newest first."""
    for year in range(min(moment.year, MAXYEAR - 1), MINYEAR, -1):
        found = _stretches(name, year)
        yield from reversed(found[: _place(found, moment) + 1] if year == moment.year else found)


def _place(found: tuple[Stretch, ...], moment: datetime) -> int:
    return bisect_right(found, moment, key=lambda stretch: stretch.start) - 1


@lru_cache(maxsize=4096)
def _stretches(name: str, year: int) -> tuple[Stretch, ...]:
    """What the year is made of; it ends with the year even where the offset goes on."""
    zone = read(name)
    start, end = datetime(year, 1, 1), datetime(year + 1, 1, 1)  # noqa: DTZ001 - UTC throughout
    before, offset = _offset(zone, start - _SECOND), _offset(zone, start)
    found = []
    day = start
    while day < end:
        day += _DAY
        if day < end and (changed := _offset(zone, day)) != offset:
            change = _narrow(zone, day - _DAY, day)
            found.append(Stretch(start, change, offset, start + before))
            start, before, offset = change, offset, changed
    found.append(Stretch(start, end, offset, start + before))
    return tuple(found)


def _narrow(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The second at which the offset of `high` begins."""
    after = _offset(zone, high)
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(zone, middle) == after:
            high = middle
        else:
            low = middle
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    offset = moment.replace(tzinfo=UTC).astimezone(zone).utcoffset()
    assert offset is not None, "a ZoneInfo has an offset for every moment"
    return offset
