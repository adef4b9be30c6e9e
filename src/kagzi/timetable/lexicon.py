"""The words people use to say when, each with its kind and value, and the cutting of a phrase into them.

Every spelling that is understood stands here. A word that stands nowhere is a token of the kind UNKNOWN, which nothing
accepts. What a word means beside others is none of this module's business.
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto

from kagzi.timetable.fields import LAST

UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
ORDINALS = ("first", "second", "third", "fourth", "fifth")


class Kind(Enum):
    """What a word can be."""

    EVERY = auto()
    OTHER = auto()
    HALF = auto()
    AND = auto()
    COMMA = auto()
    AT = auto()
    IN = auto()
    BETWEEN = auto()
    FROM = auto()
    TO = auto()
    PER = auto()
    TIMES = auto()
    EXCEPT = auto()
    FILLER = auto()
    NUMBER = auto()
    ORDINAL = auto()
    CLOCK = auto()
    PAST = auto()
    UNIT = auto()
    ADVERB = auto()
    WEEKDAY = auto()
    WEEKDAYS = auto()
    MONTH = auto()
    DAYPART = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day. `bare` when it was said as a number alone, `half` when am or pm was said with it."""

    hour: int
    minute: int = 0
    second: int = 0
    bare: bool = False
    half: bool = False


Value = int | str | Decimal | Clock | frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Token:
    """A word of the phrase as it was written, with its kind and value."""

    kind: Kind
    value: Value
    raw: str


_TENS = ("twenty", "thirty", "forty", "fifty")
_NUMBERS = (
    *("one", "two", "three", "four", "five", "six", "seven", "eight"),
    *("nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen"),
)
_ENTRIES: tuple[tuple[Kind, Value, str], ...] = (
    *((Kind.WEEKDAY, day, f"{name} {name}s {name[:3]}") for day, name in enumerate(map(str.lower, WEEKDAYS))),
    *((Kind.WEEKDAY, day, short) for day, short in ((2, "tues"), (3, "weds"), (4, "thur thurs"))),
    *((Kind.MONTH, month, f"{name} {name[:3]}") for month, name in enumerate(map(str.lower, MONTHS), 1)),
    (Kind.MONTH, 9, "sept"),
    (Kind.WEEKDAYS, frozenset(range(1, 6)), "weekday weekdays workday workdays"),
    (Kind.WEEKDAYS, frozenset({0, 6}), "weekend weekends"),
    *((Kind.UNIT, unit, f"{unit} {unit}s {unit[0]}") for unit in UNITS),
    *((Kind.UNIT, unit, f"{unit} {unit}s") for unit in ("month", "quarter", "year", "fortnight")),
    *((Kind.UNIT, unit, short) for unit, short in (("second", "sec secs"), ("minute", "min mins"), ("hour", "hr hrs"))),
    *((Kind.ADVERB, unit, f"{unit}ly") for unit in ("hour", "week", "month", "quarter", "year", "fortnight")),
    (Kind.ADVERB, "day", "daily everyday"),
    (Kind.ADVERB, "year", "annually"),
    # "second" stands as a unit; whoever reads it sees what follows.
    *((Kind.ORDINAL, place, name) for place, name in enumerate(ORDINALS, 1) if name != "second"),
    (Kind.ORDINAL, LAST, "last"),
    *((Kind.NUMBER, Decimal(number), name) for number, name in enumerate(_NUMBERS, 1)),
    *((Kind.NUMBER, Decimal(number), name) for number, name in zip((20, 30, 40, 50), _TENS, strict=True)),
    (Kind.NUMBER, Decimal(60), "sixty"),
    (Kind.NUMBER, Decimal(90), "ninety"),
    (Kind.CLOCK, Clock(12), "noon midday"),
    (Kind.CLOCK, Clock(0), "midnight"),
    (Kind.DAYPART, 0, "morning"),
    (Kind.DAYPART, 12, "afternoon evening"),
    (Kind.EVERY, None, "every each"),
    (Kind.OTHER, None, "other"),
    (Kind.HALF, None, "half"),
    (Kind.AND, None, "and &"),
    (Kind.COMMA, None, ","),
    (Kind.AT, None, "at @"),
    (Kind.IN, None, "in during"),
    (Kind.BETWEEN, None, "between"),
    (Kind.FROM, None, "from"),
    (Kind.TO, None, "to until till through thru -"),
    (Kind.PER, None, "a an per"),
    (Kind.TIMES, None, "times"),
    (Kind.TIMES, 1, "once"),
    (Kind.TIMES, 2, "twice"),
    (Kind.EXCEPT, None, "except excluding"),
    (Kind.FILLER, None, "the on of o'clock"),
)

SPELLINGS = {word: (kind, value) for kind, value, words in _ENTRIES for word in words.split()}

_COMPOUND = re.compile(rf"\b({'|'.join(_TENS)})[- ](one|two|three|four|five|six|seven|eight|nine)\b")
_WORKING_DAYS = re.compile(r"\b(?:business|working|work) days?\b")
_TOKEN = re.compile(
    r"""
      (?P<clock>   (?P<hour>\d{1,2}) (?: :(?P<minute>\d{2}) (?: :(?P<second>\d{2}) )? )?
                   \s*(?P<half>[ap]\.?m\b\.?)
                 | (?P<hour24>\d{1,2}) :(?P<minute24>\d{2}) (?: :(?P<second24>\d{2}) )? (?![\d:]) )
    | (?P<past>    :\d{2}\b )
    | (?P<ordinal> \d{1,2}(?:st|nd|rd|th)\b )
    | (?P<number>  \d+(?:\.\d+)? )
    | (?P<word>    [^\W\d_]+(?:'[a-z]+)? | [^\s\w] )
    | (?P<gap>     \s+ | _ )
    """,
    re.VERBOSE,
)


def cut(text: str) -> list[Token]:
    """The tokens of a phrase in small letters."""
    text = _COMPOUND.sub(_sum, _WORKING_DAYS.sub("weekdays", text)).strip().rstrip(".!")
    return [_token(found) for found in _TOKEN.finditer(text) if not found["gap"]]


def _token(found: re.Match[str]) -> Token:
    raw = found[0]
    if found["clock"]:
        clock = _clock(found)
        return Token(Kind.UNKNOWN if clock is None else Kind.CLOCK, clock, raw)
    if found["past"]:
        return Token(Kind.PAST, int(raw[1:]), raw)
    if found["ordinal"]:
        return Token(Kind.ORDINAL, int(raw[:-2]), raw)
    if found["number"]:
        return Token(Kind.NUMBER, Decimal(raw), raw)
    kind, value = SPELLINGS.get(raw, (Kind.UNKNOWN, None))
    return Token(kind, value, raw)


def _clock(found: re.Match[str]) -> Clock | None:
    """The time of day, or None when no clock shows it."""
    hour = int(found["hour"] or found["hour24"])
    minute = int(found["minute"] or found["minute24"] or 0)
    second = int(found["second"] or found["second24"] or 0)
    if found["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found["half"].startswith("p") else 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    return Clock(hour, minute, second, half=bool(found["half"]))


def _sum(found: re.Match[str]) -> str:
    return str(20 + 10 * _TENS.index(found[1]) + 1 + _NUMBERS.index(found[2]))
