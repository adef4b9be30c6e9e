"""The fields of a cron expression: what may stand in each, and the numbers it means.

A field is a list of `*`, numbers, names, ranges and steps; the days also know `?`, `L` and `#`. What Kagzi cannot
hold to is refused rather than bent: a range that runs backwards, a step longer than its field, a `W`. Nothing here
knows how fields work together: that is `pattern`.
"""

import re
from dataclasses import dataclass

from kagzi.timetable.errors import TimetableError, shown

DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
LAST = -1

_ITEM = re.compile(r"(?P<low>\w+)(?:-(?P<high>\w+))?")
_NTH = re.compile(r"(?P<day>\w+)#(?P<nth>\w+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the six places of an expression."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    offers: str = ""


SECOND = Kind("second", 0, 59)
MINUTE = Kind("minute", 0, 59)
HOUR = Kind("hour", 0, 23)
DAY = Kind("day of month", 1, 31, offers=" or L")
MONTH = Kind("month", 1, 12, ("", *MONTHS), " or JAN-DEC")
WEEKDAY = Kind("day of week", 0, 7, DAYS, " or SUN-SAT")


@dataclass(frozen=True, slots=True)
class Field:
    """The numbers of one field, ascending. `star` when it begins with `*` or `?`, `step` when it has a `/`.

    `last` is the `L` of a day of month, `nth` are pairs of weekday and place in the month, LAST for the last.
    """

    numbers: tuple[int, ...]
    star: bool = False
    step: bool = False
    last: bool = False
    nth: frozenset[tuple[int, int]] = frozenset()


def read(kind: Kind, text: str) -> Field:
    """The meaning of one field; TimetableError says what is wrong with it."""
    numbers: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last = False
    for item in text.split(","):
        if kind is DAY and item == "L":
            last = True
        elif kind is WEEKDAY and (found := _NTH.fullmatch(item)):
            nth.add((_number(kind, found["day"]) % 7, _place(found["nth"], item)))
        elif kind is WEEKDAY and len(item) > 1 and item.endswith("L"):
            nth.add((_number(kind, item[:-1]) % 7, LAST))
        else:
            numbers.update(_range(kind, item))
    if kind is WEEKDAY:
        numbers = {number % 7 for number in numbers}
    return Field(tuple(sorted(numbers)), text.startswith(("*", "?")), "/" in text, last, frozenset(nth))


def _range(kind: Kind, item: str) -> range:
    span, slash, step = item.partition("/")
    if span == "*" or (span == "?" and kind in (DAY, WEEKDAY)):
        low, high = kind.low, kind.high - (kind is WEEKDAY)
    elif found := _ITEM.fullmatch(span):
        low = _number(kind, found["low"])
        high = _number(kind, found["high"]) if found["high"] else kind.high - (kind is WEEKDAY) if slash else low
        # Sunday is 0 and 7: at the end of a range it is the end of the week.
        if kind is WEEKDAY and found["high"] and high == 0 < low:
            high = 7
    else:
        raise _refusal(kind, item)
    if low > high:
        raise TimetableError(
            "cron", f"{kind.name} {item} runs backwards: write it as two ranges, {low}-{kind.high},{kind.low}-{high}"
        )
    return range(low, high + 1, _step(kind, item, step) if slash else 1)


def _step(kind: Kind, item: str, text: str) -> int:
    if not _is_number(text) or int(text) == 0:
        raise TimetableError("cron", f"{kind.name} {item} has no step: a whole number of at least 1 follows the /")
    step = int(text)
    if step > kind.high - kind.low:
        raise TimetableError(
            "cron",
            f"{kind.name} {item} steps over the whole field ({kind.low}-{kind.high}) and would not mean every {step}: "
            "such a length of time is an interval",
        )
    return step


def _place(text: str, item: str) -> int:
    if text not in {"1", "2", "3", "4", "5"}:
        raise TimetableError("cron", f"day of week {item}: the place after # is 1 to 5, and L is the last (5L, FRIL)")
    return int(text)


def _number(kind: Kind, text: str) -> int:
    if text and text in kind.names:
        return kind.names.index(text)
    if not _is_number(text):
        raise _refusal(kind, text)
    number = int(text)
    if not kind.low <= number <= kind.high:
        raise TimetableError("cron", f"{kind.name} {number} is outside {kind.low}-{kind.high}")
    return number


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _refusal(kind: Kind, item: str) -> TimetableError:
    if kind in (DAY, WEEKDAY) and "W" in item and item.strip("0123456789LW") == "":
        return TimetableError("cron", f"{kind.name} {item}: the nearest working day (W) is not supported")
    return TimetableError(
        "cron",
        f"{kind.name} cannot be {shown(item)}: {kind.low}-{kind.high}{kind.offers}, and of those "
        "lists (1,2), ranges (1-5) and steps (*/2)",
    )
