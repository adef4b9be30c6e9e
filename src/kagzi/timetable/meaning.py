"""What the parts of a phrase amount to: a cron expression, or the length of an interval.

A length of time and nothing else is an interval. Everything else is an expression, or a Misfit: where cron cannot say
what was said (every 7 minutes on Mondays, a time at :00 and another at :30) nothing near it is taken silently.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from kagzi.timetable.fields import LAST
from kagzi.timetable.lexicon import UNITS, Clock
from kagzi.timetable.phrase import MIXED, Misfit, Phrase

_MIDNIGHT = (Clock(0),)
_FEWER = {
    "week": "every monday and thursday",
    "month": "1st and 15th of the month",
    "year": "1st of january and july",
}


def find(phrase: Phrase) -> str | timedelta:
    """The expression or the length; Misfit says why there is none."""
    phrase = _evenly(phrase)
    if phrase.length is not None and phrase == Phrase(length=phrase.length, unit=phrase.unit, count=phrase.count):
        if phrase.length < timedelta(seconds=1):
            raise Misfit("an interval is one second at least", "every second")
        return phrase.length
    often = phrase.unit in ("second", "minute", "hour", MIXED)
    second, minute, hour = _frequency(phrase) if often else _clock(phrase)
    day, month, weekday = _days(phrase if often else _calendar(phrase))
    seconds = "" if second == "0" else f"{second} "
    return f"{seconds}{minute} {hour} {day} {month} {weekday}"


def _evenly(phrase: Phrase) -> Phrase:
    """`twice a day` as its times, `4 times an hour` as its minutes; `once a day` is every day."""
    rate, unit = phrase.rate, phrase.unit
    if rate is None:
        return phrase
    rest = replace(phrase, rate=None)
    if rate == 1 or (unit == "day" and phrase.times is not None and len(phrase.times) == rate):
        return rest
    size = {"day": 24, "hour": 60}.get(str(unit))
    if size is None or phrase.times is not None or phrase.minutes is not None:
        raise Misfit(f"{rate} times does not say when", _FEWER.get(str(unit)))
    if size % rate:
        near = min((n for n in range(1, size + 1) if size % n == 0), key=lambda n: abs(n - rate))
        raise Misfit(f"{rate} times do not divide the {unit} evenly", replace(phrase, rate=near))
    steps = range(0, size, size // rate)
    if unit == "day":
        return replace(rest, times=tuple(Clock(hour) for hour in steps))
    return replace(rest, minutes=frozenset(steps))


def _frequency(phrase: Phrase) -> tuple[str, str, str]:
    """Second, minute and hour of something that happens several times a day."""
    unit, count = phrase.unit, phrase.count or 1
    if phrase.times is not None:
        raise Misfit("it says both how often and at what time", _once_or_from(phrase))
    if unit == MIXED or (unit != "hour" and count >= 60 and phrase.within is None):
        return _frequency(_in_larger_units(phrase))
    if phrase.minutes is not None and unit != "hour":
        raise Misfit("minutes go with every hour", Phrase(unit="hour", minutes=phrase.minutes))
    if phrase.seconds is not None and (unit != "minute" or phrase.count is not None):
        raise Misfit("seconds go with every minute", Phrase(unit="minute", seconds=phrase.seconds))
    if unit == "hour":
        return "0", *_hours(phrase, count)
    step = _step(phrase, count)
    hour = "*" if phrase.window is None else _whole_hours(phrase, count if unit == "minute" else 1)
    if unit == "second":
        return step, "*", hour
    return _numbers(phrase.seconds or {0}), step, hour


def _step(phrase: Phrase, count: int) -> str:
    if count == 1:
        return "*"
    if (60 % count and phrase.within is None) or count > 59:
        near = min((n for n in range(1, 31) if 60 % n == 0), key=lambda n: abs(n - count))
        unit = "hour" if phrase.unit == "minute" else "minute"
        raise Misfit(f"{count} {phrase.unit}s do not divide an {unit} evenly", _counted(phrase, near, str(phrase.unit)))
    return f"*/{count}"


def _hours(phrase: Phrase, count: int) -> tuple[str, str]:
    """Minute and hour of every so many hours."""
    if phrase.window is None:
        if 24 % count or count > 12:
            near = min((1, 2, 3, 4, 6, 8, 12), key=lambda n: abs(n - count))
            raise Misfit(f"{count} hours do not divide a day evenly", _counted(phrase, near, "hour"))
        return _numbers(phrase.minutes or {0}), "*" if count == 1 else f"*/{count}"
    if phrase.minutes is not None:
        raise Misfit("the window says the minute already", replace(phrase, minutes=None))
    first, last = _window(phrase)
    end = last.hour - (last.minute < first.minute)
    if end >= first.hour:
        end -= (end - first.hour) % count
        step = f"/{count}" if count > 1 and end > first.hour else ""
        return str(first.minute), f"{first.hour}-{end}{step}" if end > first.hour else str(first.hour)
    if last.hour == first.hour:
        raise Misfit("its window is empty", replace(phrase, window=None))
    return str(first.minute), _numbers({hour % 24 for hour in range(first.hour, end + 25, count)})


def _whole_hours(phrase: Phrase, step: int) -> str:
    """The hours of a window that minutes or seconds are counted in: whole ones, as cron has no others."""
    first, last = _window(phrase, until_midnight=True)
    whole = 60 - (60 % step or step) if last.minute else 60
    end = last.hour - 1 if last.minute == 0 else last.hour
    if first.minute or (last.minute and last.minute < whole):
        near = Clock(end, 59 if step == 1 else 60 - (60 % step or step))
        raise Misfit(
            "a window of minutes begins with an hour and ends with one",
            replace(phrase, window=(Clock(first.hour), near)),
        )
    if end % 24 == (first.hour - 1) % 24:
        raise Misfit("its window is the whole day or empty", replace(phrase, window=None))
    hours = range(first.hour, end + 1 if end >= first.hour else end + 25)
    return _numbers({hour % 24 for hour in hours})


def _window(phrase: Phrase, *, until_midnight: bool = False) -> tuple[Clock, Clock]:
    assert phrase.window is not None, "asked only of a phrase with a window"
    first, last = phrase.window
    if first.second or last.second:
        minutes = (replace(first, second=0), replace(last, second=0))
        raise Misfit("a window is given in hours and minutes", replace(phrase, window=minutes))
    if last.hour < first.hour and not (until_midnight and last == Clock(0)):
        if last.bare and first.bare and first.hour < last.hour + 12:
            later = Clock(last.hour + 12)
            raise Misfit(
                f"{first.hour} to {last.hour} goes through the night",
                replace(phrase, window=(Clock(first.hour), later)),
            )
        if phrase.on_days:
            raise Misfit(
                "a window through the night belongs to two days",
                replace(phrase, window=(first, Clock(23, first.minute))),
            )
    return first, last


def _counted(phrase: Phrase, count: int, unit: str) -> Phrase:
    """The phrase with another length of time."""
    length = timedelta(seconds=count * UNITS[unit])
    return replace(phrase, count=count if count > 1 else None, unit=unit, length=length if count > 1 else None)


def _in_larger_units(phrase: Phrase) -> Phrase:
    """`every 120 minutes between …` is every 2 hours; what is no whole number of a larger unit is a Misfit."""
    assert phrase.length is not None, "a count comes with its length"
    for unit in ("hour", "minute", "second"):
        count, rest = divmod(phrase.length, timedelta(seconds=UNITS[unit]))
        if not rest and 1 <= count < 60:
            return _counted(phrase, count, unit)
    hours = max(1, min(12, round(phrase.length / timedelta(hours=1))))
    raise Misfit("that length of time divides neither an hour nor a day", _counted(phrase, hours, "hour"))


def _once_or_from(phrase: Phrase) -> Phrase:
    assert phrase.times is not None, "asked only of a phrase with times"
    if phrase.unit == "hour" and phrase.count is not None:
        return replace(phrase, times=None, window=(phrase.times[0], Clock(23, phrase.times[0].minute)))
    return replace(phrase, unit=None, count=None, length=None, within=None, minutes=None, seconds=None, window=None)


def _clock(phrase: Phrase) -> tuple[str, str, str]:
    """Second, minute and hour of something that happens at times of day."""
    if phrase.window is not None:
        raise Misfit("a window lacks how often", replace(phrase, unit="hour", count=None, length=None, times=None))
    if phrase.minutes is not None or phrase.seconds is not None:
        unit = "minute" if phrase.minutes is None else "hour"
        raise Misfit(f"it lacks 'every {unit}'", replace(phrase, unit=unit, count=None, length=None, times=None))
    times = phrase.times or _MIDNIGHT
    hours, minutes, seconds = ({getattr(time, part) for time in times} for part in ("hour", "minute", "second"))
    if len(hours) * len(minutes) * len(seconds) != len({(time.hour, time.minute, time.second) for time in times}):
        same = tuple(Clock(time.hour, times[0].minute, times[0].second) for time in times)
        raise Misfit("times with different minutes are two timetables", replace(phrase, times=same))
    return _numbers(seconds), _numbers(minutes), _numbers(hours)


def _calendar(phrase: Phrase) -> Phrase:
    """The phrase with what its unit leaves to be understood: the first of a month, the Sunday of a week."""
    unit, count = phrase.unit, phrase.count
    rest = replace(phrase, unit=None, count=None, length=None)
    dated = phrase.dates is not None or phrase.nth is not None
    if count is not None and unit == "year":
        raise Misfit("years are not counted", replace(phrase, count=None))
    if count is not None and unit != "month":
        raise Misfit(f"every {count} {unit}s is a length of time, which has no dates or times of day", rest)
    if unit == "day" and dated:
        raise Misfit("every day is more than the days it names", rest)
    if unit == "week":
        if dated or phrase.months is not None:
            raise Misfit("a week has weekdays alone", replace(rest, dates=None, nth=None, months=None))
        return rest if phrase.weekdays is not None else replace(rest, weekdays=frozenset({0}))
    if unit == "month":
        return _monthly(rest, count or 1, dated=dated)
    if unit == "year":
        if phrase.weekdays is not None or (dated and phrase.months is None):
            raise Misfit("a year has dates with months", replace(rest, months=frozenset({1}), weekdays=None))
        return replace(rest, months=phrase.months or frozenset({1}), dates=phrase.dates if dated else frozenset({1}))
    if unit is None and rest == Phrase(months=phrase.months):
        reason = "it does not say when" if phrase.months is None else "a month lacks which days"
        raise Misfit(reason, None if phrase.months is None else replace(phrase, unit="day"))
    return rest


def _monthly(phrase: Phrase, count: int, *, dated: bool) -> Phrase:
    if phrase.weekdays is not None:
        first = frozenset((day, 1) for day in phrase.weekdays)
        raise Misfit("a month has several of each weekday", replace(phrase, weekdays=None, nth=first))
    if 12 % count:
        near = min((1, 2, 3, 4, 6), key=lambda n: abs(n - count))
        raise Misfit(f"{count} months do not divide a year evenly", replace(phrase, unit="month", count=near))
    if count > 1 and phrase.months is not None:
        raise Misfit("it says the months twice", phrase)
    months = frozenset(range(1, 13, count)) if count > 1 else phrase.months
    return replace(phrase, months=months, dates=phrase.dates if dated else frozenset({1}))


def _days(phrase: Phrase) -> tuple[str, str, str]:
    """Day, month and weekday of the expression."""
    weekdays, nth, dates = phrase.weekdays, phrase.nth, phrase.dates
    if (weekdays is not None or phrase.excluded is not None) and (nth is not None or dates is not None):
        raise Misfit("weekdays and days of the month are two timetables", replace(phrase, weekdays=None, excluded=None))
    if nth is not None and dates is not None:
        raise Misfit("weekdays and days of the month are two timetables", replace(phrase, nth=None))
    if phrase.excluded is not None:
        whole = frozenset(range(7)) if weekdays is None else weekdays
        weekdays = whole - phrase.excluded
        if not weekdays or not phrase.excluded <= whole:
            raise Misfit("what is left out is none or all of the days", replace(phrase, excluded=None))
    day, month, weekday = "*", "*", "*"
    if dates is not None:
        day = ",".join(filter(None, (_numbers(dates - {LAST}), "L" if LAST in dates else "")))
    if phrase.months is not None:
        month = _numbers(phrase.months)
    if nth is not None:
        weekday = ",".join(f"{which}L" if place == LAST else f"{which}#{place}" for which, place in sorted(nth))
    elif weekdays is not None and len(weekdays) < 7:
        weekday = _numbers(weekdays)
    return day, month, weekday


def _numbers(numbers: Iterable[int]) -> str:
    """A field of these numbers, three and more in a row as a range."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
