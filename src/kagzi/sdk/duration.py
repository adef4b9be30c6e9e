"""Lengths of time as users write them: seconds, a timedelta, or text such as `1h30m`.

Every duration of the public API passes through here, so all of them accept the same forms and refuse the same
mistakes with one message. Nothing is guessed: a number without a unit inside text, a negative or endless
length, a bool and anything beyond a hundred years are refused. Milliseconds round up, so that no timer is
early.
"""

import math
import re
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal
from typing import NoReturn

Duration = int | float | str | timedelta

# Longer ones are slips of the unit, such as milliseconds passed as seconds.
LONGEST = timedelta(days=36_525)

_MICROSECOND = timedelta(microseconds=1)
_UNITS: dict[str, int] = {
    name: microseconds
    for names, microseconds in (
        ("ms msec msecs millisecond milliseconds", 1_000),
        ("s sec secs second seconds", 1_000_000),
        ("m min mins minute minutes", 60_000_000),
        ("h hr hrs hour hours", 3_600_000_000),
        ("d day days", 86_400_000_000),
        ("w week weeks", 604_800_000_000),
    )
    for name in names.split()
}
_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")
_ACCEPTED = (
    "Accepted are seconds (30, 0.5), a timedelta, or text of numbers with units ms, s, m, h, d, w from the "
    "largest to the smallest ('500ms', '30s', '1h30m', '1 day', '2 weeks'), from zero to 100 years"
)


def parse(value: Duration) -> timedelta:
    """The length of time that `value` means. ConfigError if it means none."""
    if isinstance(value, timedelta):
        length = value
    elif isinstance(value, str):
        length = _parse_text(value)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(value, f"it is a {type(value).__name__}")
    elif isinstance(value, float) and not math.isfinite(value):
        _refuse(value, "it is not a finite number")
    elif value > LONGEST.total_seconds():
        _refuse(value, "it is longer than 100 years")
    elif value < 0:
        _refuse(value, "it is negative")
    else:
        length = timedelta(seconds=value)
    if length < timedelta(0):
        _refuse(value, "it is negative")
    if length > LONGEST:
        _refuse(value, "it is longer than 100 years")
    return length


def named(value: Duration, option: str) -> timedelta:
    """`parse` for an option, which the error names."""
    try:
        return parse(value)
    except ValueError as error:
        # It begins with what was given.
        raise type(error)(f"{option}={error}") from None


def milliseconds(value: Duration) -> int:
    """`value` in whole milliseconds, rounded up so that nothing wakes early and no wait becomes none."""
    return -(-parse(value) // timedelta(milliseconds=1))


def format(value: Duration) -> str:  # noqa: A001 - it is called as `duration.format`
    """The shortest text that `parse` reads back as the same length: `1h30m`, `1.5ms`, `0s`."""
    rest = parse(value) // _MICROSECOND
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    if rest:
        text += f"{Decimal(rest) / 1000:f}ms"
    return text or "0s"


def _parse_text(text: str) -> timedelta:
    if len(text) > 200:
        _refuse(text, f"it is {len(text)} characters long")
    total = Decimal(0)
    position, last = 0, math.inf
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            negative = text.lstrip().startswith("-")
            _refuse(text, "it is negative" if negative else "it is not a number followed by a unit")
        number, word = part.groups()
        # A lone capital is left alone: 1M reads as a month to some and a minute to others.
        unit = _UNITS.get(word if len(word) == 1 else word.lower())
        if unit is None:
            _refuse(text, f"{word!r} is no unit")
        if unit >= last:
            _refuse(text, f"{word!r} repeats or enlarges the unit before it")
        total += Decimal(number) * unit
        position, last = part.end(), unit
    if last == math.inf:
        _refuse(text, "it is empty")
    if total > LONGEST // _MICROSECOND:
        _refuse(text, "it is longer than 100 years")
    return timedelta(microseconds=int(total.to_integral_value(ROUND_CEILING)))


def _refuse(value: object, reason: str) -> NoReturn:
    from kagzi.sdk.errors import ConfigError  # noqa: PLC0415 - `errors` itself needs durations for RetryAfter

    shown = repr(value)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    raise ConfigError(f"{shown} is not a duration: {reason}. {_ACCEPTED}.")
