"""The clauses that say at what time of day: times, minutes of the hour, and windows such as `between 9 and 17`."""

from dataclasses import replace

from kagzi.timetable.cursor import Cursor
from kagzi.timetable.lexicon import Clock, Kind
from kagzi.timetable.phrase import Misfit


def window(cursor: Cursor) -> bool:
    """`between 9 and 17`, `from 9:00 to 17:00`, `9am-5pm`."""
    start = cursor.at
    opened = cursor.skip(Kind.BETWEEN, Kind.FROM)
    first = _clock(cursor)
    if first is None or not cursor.skip(Kind.TO, *((Kind.AND,) if opened else ())):
        cursor.at = start
        return False
    last = _clock(cursor)
    if last is None:
        raise Misfit("a window of time ends with a time of day")
    return cursor.say("window", _agreeing(cursor, first, last))


def minutes(cursor: Cursor) -> bool:
    """`at minute 30`, `at :15 and :45`, `at second 10`."""
    start = cursor.at
    cursor.skip(Kind.AT)
    said = cursor.token()
    if said.kind is Kind.PAST:
        return _say_numbers(cursor, "minute", cursor.series(lambda: _past(cursor)))
    if said.kind is Kind.UNIT and said.value in ("minute", "second") and cursor.kind(1) is Kind.NUMBER:
        cursor.at += 1
        return _say_numbers(cursor, str(said.value), cursor.series(cursor.whole))
    cursor.at = start
    return False


def times(cursor: Cursor) -> bool:
    """`at 9`, `at 9:30 and 17:30`, `5pm`, `noon`, `at 5 in the afternoon`."""
    if not cursor.skip(Kind.AT) and cursor.kind() is not Kind.CLOCK:
        return False
    clocks = cursor.series(lambda: _clock(cursor))
    if not clocks:
        wrong = cursor.token().raw
        raise Misfit(f"{wrong!r} is no time of day" if wrong else "'at' is followed by nothing")
    cursor.skip(Kind.FILLER)
    if (cursor.kind(), cursor.kind(1), cursor.kind(2)) == (Kind.IN, Kind.FILLER, Kind.DAYPART):
        shift = cursor.token(2).value
        assert isinstance(shift, int), "a part of the day is its first hour"
        cursor.at += 3
        if any(clock.hour > 12 for clock in clocks):
            raise Misfit("a time of 24 hours has no morning or afternoon")
        clocks = [replace(clock, hour=clock.hour % 12 + shift, bare=False, half=True) for clock in clocks]
    return cursor.say("times", _agreeing(cursor, *clocks))


def _clock(cursor: Cursor) -> Clock | None:
    said = cursor.token()
    if said.kind is Kind.CLOCK and isinstance(said.value, Clock):
        cursor.at += 1
        return said.value
    if said.kind is not Kind.NUMBER or cursor.kind(1) in (Kind.UNIT, Kind.MONTH, Kind.TIMES):
        return None
    hour = cursor.whole()
    if hour is None or hour > 23:
        raise Misfit(f"{said.raw!r} is no hour of the day, 0 to 23")
    return Clock(hour, bare=True)


def _past(cursor: Cursor) -> int | None:
    value = cursor.take().value if cursor.kind() is Kind.PAST else None
    return value if isinstance(value, int) else None


def _say_numbers(cursor: Cursor, unit: str, numbers: list[int]) -> bool:
    if not numbers or not all(0 <= number < 60 for number in numbers):
        raise Misfit(f"a {unit} is 0 to 59")
    return cursor.say(f"{unit}s", frozenset(numbers))


def _agreeing(cursor: Cursor, *clocks: Clock) -> tuple[Clock, ...]:
    """Refuses `1 and 5pm`: nobody knows which half of the day the first is in."""
    unsure = [clock.hour for clock in clocks if clock.bare]
    if unsure and any(clock.half for clock in clocks) and not cursor.lenient:
        raise Misfit(f"beside a time with am or pm, {unsure[0]} may be in either half of the day")
    return clocks
