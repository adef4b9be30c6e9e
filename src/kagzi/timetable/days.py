"""The clauses that say on which days: weekdays, days of the month, the first Monday of it, and months."""

from kagzi.timetable.cursor import Cursor
from kagzi.timetable.fields import LAST
from kagzi.timetable.lexicon import Kind, Token
from kagzi.timetable.phrase import Misfit

# The months in which each period begins.
_PERIODS = {"month": range(1, 13), "quarter": range(1, 13, 3), "year": range(1, 2)}


def weekdays(cursor: Cursor) -> bool:
    """`monday`, `mon, wed and fri`, `monday to friday`, `weekdays`."""
    days = _weekdays(cursor)
    return bool(days) and cursor.say("weekdays", days)


def excluded(cursor: Cursor) -> bool:
    """`except friday`."""
    if not cursor.skip(Kind.EXCEPT):
        return False
    cursor.skip(Kind.FILLER)
    days = _weekdays(cursor)
    if not days:
        raise Misfit("only days of the week can be left out")
    return cursor.say("excluded", days)


def ordinals(cursor: Cursor) -> bool:
    """`first monday`, `1st and 15th`, `last day of the month`, `first monday and last friday`."""
    if not cursor.is_ordinal():
        return False
    nth: set[tuple[int, int]] = set()
    places: list[int] = []
    while cursor.is_ordinal():
        places = cursor.series(cursor.ordinal)
        noun = cursor.token()
        if noun.kind is not Kind.WEEKDAY or not isinstance(noun.value, int):
            if nth:
                raise Misfit("weekdays and days of the month do not mix")
            return _dates(cursor, places, noun)
        if any(place > 5 for place in places):
            raise Misfit(f"no month has so many of {noun.raw}")
        nth.update((noun.value, place) for place in places)
        cursor.at += 1
        behind = cursor.at
        if cursor.skip(Kind.AND, Kind.COMMA):
            cursor.skip(Kind.FILLER)
            cursor.at = cursor.at if cursor.is_ordinal() else behind
    cursor.say("nth", frozenset(nth))
    return _period(cursor, places[-1])


def date(cursor: Cursor) -> bool:
    """`day 15`, and `15 march`, whose month is a clause of its own."""
    if cursor.token().value == "day" and cursor.kind(1) is Kind.NUMBER:
        cursor.at += 1
        _say_dates(cursor, cursor.series(cursor.whole))
        return _period(cursor, 1)
    if cursor.kind() is Kind.NUMBER and cursor.kind(cursor.past(1, Kind.FILLER)) is Kind.MONTH:
        return _say_dates(cursor, cursor.series(cursor.whole))
    return False


def month(cursor: Cursor) -> bool:
    """`january`, `in june and july`, `june to august`, `march 15`."""
    start = cursor.at
    cursor.skip(Kind.IN, Kind.FILLER)
    # "From june" alone would be a start, which no timetable has.
    if cursor.kind(2) is Kind.TO:
        cursor.skip(Kind.FROM)
    months: frozenset[int] = frozenset().union(*cursor.series(lambda: _span(cursor, Kind.MONTH, Kind.TO, 12)))
    if not months:
        cursor.at = start
        return False
    cursor.say("months", months)
    if cursor.phrase.dates is None and cursor.phrase.nth is None:
        dates = cursor.series(
            lambda: None if cursor.kind(1) in (Kind.UNIT, Kind.WEEKDAY, Kind.TIMES) else cursor.whole()
        )
        return not dates or _say_dates(cursor, dates)
    return True


def _weekdays(cursor: Cursor) -> frozenset[int]:
    joint = {Kind.FROM: Kind.TO, Kind.BETWEEN: Kind.AND}.get(cursor.kind())
    if joint is not None and cursor.kind(1) is Kind.WEEKDAY and cursor.kind(2) is joint:
        cursor.at += 1
        return _span(cursor, Kind.WEEKDAY, joint, 7) or frozenset()
    return frozenset().union(*cursor.series(lambda: _span(cursor, Kind.WEEKDAY, Kind.TO, 7)))


def _span(cursor: Cursor, kind: Kind, joint: Kind, size: int) -> frozenset[int] | None:
    """One day or month, or all from one to another, around the end of the week or year if need be."""
    first, last = cursor.token().value, cursor.token(2).value
    if kind is Kind.WEEKDAY and cursor.kind() is Kind.WEEKDAYS and isinstance(first, frozenset):
        cursor.at += 1
        return first
    if cursor.kind() is not kind or not isinstance(first, int):
        return None
    cursor.at += 1
    if cursor.kind() is joint and cursor.kind(1) is kind and isinstance(last, int):
        cursor.at += 2
        least = 1 if kind is Kind.MONTH else 0
        return frozenset((first - least + step) % size + least for step in range((last - first) % size + 1))
    return frozenset({first})


def _dates(cursor: Cursor, places: list[int], noun: Token) -> bool:
    if noun.kind is Kind.WEEKDAYS:
        raise Misfit("working days of a month are not counted")
    if noun.value == "day":
        cursor.at += 1
    elif LAST in places:
        raise Misfit(f"'last' is followed by {noun.raw!r}" if noun.raw else "'last' is followed by nothing")
    _say_dates(cursor, places)
    return _period(cursor, places[-1])


def _say_dates(cursor: Cursor, dates: list[int]) -> bool:
    if wrong := [date for date in dates if date != LAST and not 1 <= date <= 31]:
        raise Misfit(f"no month has a day {wrong[0]}", "last day of the month")
    return cursor.say("dates", frozenset(dates))


def _period(cursor: Cursor, place: int) -> bool:
    """What the days were of: `of the month`, `of the year`. The name of a month is a clause of its own."""
    start = cursor.at
    period = _PERIODS.get(str(cursor.token().value)) if cursor.skip(Kind.FILLER, Kind.PER) else None
    if period is None:
        cursor.at = start
        return True
    cursor.at += 1
    if len(period) < 12:
        ends = [month + 12 // len(period) - 1 for month in period]
        cursor.say("months", frozenset(ends if place == LAST else period))
    return True
