"""The clauses that say how often: `every 90 minutes`, `hourly`, `twice a day`, `every other week`."""

from datetime import timedelta
from decimal import Decimal

from kagzi.timetable.cursor import Cursor
from kagzi.timetable.fields import LAST
from kagzi.timetable.lexicon import UNITS, Kind
from kagzi.timetable.phrase import MIXED, Misfit

# A hundred years, in seconds.
_LONGEST = 36_525 * 86_400


def rate(cursor: Cursor) -> bool:
    """`twice a day`, `3 times per hour`, `once daily`."""
    counted = cursor.kind() is Kind.NUMBER and cursor.kind(1) is Kind.TIMES
    if not counted and cursor.kind() is not Kind.TIMES:
        return False
    times = cursor.whole() if counted else cursor.token().value
    said = cursor.take()
    if not isinstance(times, int) or times < 1:
        raise Misfit(f"{said.raw!r} lacks how many")
    cursor.skip(Kind.PER, Kind.EVERY)
    if cursor.kind() not in (Kind.UNIT, Kind.ADVERB):
        raise Misfit(f"{said.raw!r} lacks of what: a day, an hour")
    cursor.say("rate", times)
    return _cadence(cursor, None)


def every(cursor: Cursor) -> bool:
    """`every …` up to what is counted, and adverbs. Before a day or a month "every" says nothing more."""
    if cursor.kind() is Kind.ADVERB:
        return _cadence(cursor, None)
    if not cursor.skip(Kind.EVERY):
        return False
    following = cursor.token()
    if cursor.skip(Kind.OTHER):
        if cursor.kind() is not Kind.UNIT:
            raise Misfit("weeks are not numbered, so a weekday has no every other")
        return _cadence(cursor, 2)
    if following.kind is Kind.HALF or (following.value == "quarter" and _of_an_hour(cursor)):
        return _part_of_an_hour(cursor)
    if following.kind is Kind.NUMBER and duration(cursor):
        return True
    if cursor.is_ordinal():
        return _every_nth(cursor)
    if following.kind is Kind.UNIT:
        return _cadence(cursor, None)
    if cursor.kind(cursor.past(0, Kind.FILLER)) in (Kind.WEEKDAY, Kind.WEEKDAYS, Kind.MONTH, Kind.ORDINAL):
        return True
    raise Misfit(f"'every' is followed by {following.raw!r}" if following.raw else "'every' is followed by nothing")


def _every_nth(cursor: Cursor) -> bool:
    """`every third hour` counts hours; `every second tuesday of the month` counts nothing."""
    following = cursor.token(cursor.past(2, Kind.FILLER, Kind.PER, Kind.EVERY))
    of_a_month = following.kind is Kind.MONTH or following.value in ("month", "quarter", "year")
    if cursor.kind(1) is Kind.UNIT and not (of_a_month and cursor.token(1).value == "day"):
        return _cadence(cursor, cursor.ordinal())
    if cursor.kind(1) is Kind.WEEKDAY and not of_a_month and cursor.token().value not in (1, LAST):
        raise Misfit(f"every {cursor.token().raw} one may be of the month or of all")
    return True


def duration(cursor: Cursor) -> bool:
    """`90 minutes`, `1h30m`, `1 hour and 30 minutes`, `3 months`."""
    if cursor.kind() is not Kind.NUMBER or cursor.kind(1) is not Kind.UNIT:
        return False
    parts = cursor.series(lambda: _part(cursor))
    while more := cursor.series(lambda: _part(cursor)):
        parts += more
    if len(parts) == 1 and parts[0][0] == int(parts[0][0]):
        cursor.at -= 1
        return _cadence(cursor, int(parts[0][0]))
    order = [list(UNITS).index(unit) if unit in UNITS else -1 for _, unit in parts]
    if -1 in order or any(order[place] <= order[place + 1] for place in range(len(order) - 1)):
        raise Misfit("a length of time has weeks, days, hours, minutes and seconds, in this order")
    return _say(cursor, MIXED, None, sum((_length(count, unit) for count, unit in parts), timedelta(0)))


def _part(cursor: Cursor) -> tuple[Decimal, str] | None:
    if cursor.kind() is not Kind.NUMBER or cursor.kind(1) is not Kind.UNIT:
        return None
    count = cursor.number()
    return count, str(cursor.take().value)


def _cadence(cursor: Cursor, count: int | None) -> bool:
    """The unit at the cursor, so many times."""
    unit = str(cursor.take().value)
    if unit == "fortnight":
        unit, count = "week", 2 * (1 if count is None else count)
    if unit == "quarter":
        unit, count = "month", 3 * (1 if count is None else count)
    if count is not None and count < 1:
        raise Misfit("that is no length of time", f"every {unit}")
    if count is None and (cursor.phrase.unit, unit) in (("minute", "hour"), ("second", "minute")):
        return cursor.say("within", unit)
    if (cursor.kind(), cursor.kind(1), cursor.kind(2)) == (Kind.AND, Kind.PER, Kind.HALF) and unit in UNITS:
        cursor.at += 3
        return _say(cursor, MIXED, None, _length(Decimal("1.5"), unit))
    if count is None or unit not in UNITS:
        return _say(cursor, unit, count, None)
    return _say(cursor, unit, count, _length(Decimal(count), unit))


def _say(cursor: Cursor, unit: str, count: int | None, length: timedelta | None) -> bool:
    """The unit goes first: where it was said before, the others must not be said either."""
    return cursor.say("unit", unit) and cursor.say("count", count) and cursor.say("length", length)


def _length(count: Decimal, unit: str) -> timedelta:
    if count * UNITS[unit] > _LONGEST:
        raise Misfit("it is longer than 100 years", f"every {unit}")
    return timedelta(microseconds=int(count * UNITS[unit] * 1_000_000))


def _of_an_hour(cursor: Cursor) -> bool:
    return cursor.token(cursor.past(1, Kind.FILLER, Kind.PER)).value == "hour"


def _part_of_an_hour(cursor: Cursor) -> bool:
    """`every half hour`, `every quarter of an hour`."""
    minutes = 30 if cursor.take().kind is Kind.HALF else 15
    cursor.skip(Kind.FILLER, Kind.PER)
    if cursor.take().value != "hour":
        raise Misfit("a half is understood of an hour alone")
    return _say(cursor, "minute", minutes, timedelta(minutes=minutes))
