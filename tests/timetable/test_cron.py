"""Cron expressions: what they mean, and why the others are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from kagzi.timetable import TimetableError, read_cron

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)

# A Thursday is the first of January 2026.
FIRES = {
    "0 9 * * *": ["01-01 09:00:00", "01-02 09:00:00", "01-03 09:00:00"],
    "*/20 * * * *": ["01-01 00:20:00", "01-01 00:40:00", "01-01 01:00:00"],
    "5/25 * * * *": ["01-01 00:05:00", "01-01 00:30:00", "01-01 00:55:00"],
    "10,40 8-9 * * *": ["01-01 08:10:00", "01-01 08:40:00", "01-01 09:10:00"],
    "0 9-17/4 * * *": ["01-01 09:00:00", "01-01 13:00:00", "01-01 17:00:00"],
    "*/30 15 7 * * *": ["01-01 07:15:00", "01-01 07:15:30", "01-02 07:15:00"],
    "0 0 * * MON": ["01-05 00:00:00", "01-12 00:00:00", "01-19 00:00:00"],
    "0 0 * * fri-sun": ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"],
    "0 0 * * 5-7": ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"],
    "0 0 * * 0": ["01-04 00:00:00", "01-11 00:00:00", "01-18 00:00:00"],
    "0 0 * * 7": ["01-04 00:00:00", "01-11 00:00:00", "01-18 00:00:00"],
    "0 0 ? * ?": ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"],
    "0 0 1 jan,Jul *": ["07-01 00:00:00", "01-01 00:00:00", "07-01 00:00:00"],
    "0 18 L * *": ["01-31 18:00:00", "02-28 18:00:00", "03-31 18:00:00"],
    "0 18 15,L * *": ["01-15 18:00:00", "01-31 18:00:00", "02-15 18:00:00"],
    "0 0 * * 5L": ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00"],
    "0 0 * * FRIL": ["01-30 00:00:00", "02-27 00:00:00", "03-27 00:00:00"],
    "0 0 * * MON#1": ["01-05 00:00:00", "02-02 00:00:00", "03-02 00:00:00"],
    "0 0 * * 1#1,1#3": ["01-05 00:00:00", "01-19 00:00:00", "02-02 00:00:00"],
    "0 0 * * SAT#5": ["01-31 00:00:00", "05-30 00:00:00", "08-29 00:00:00"],
    "0 0 13 * FRI": ["01-02 00:00:00", "01-09 00:00:00", "01-13 00:00:00"],
    "0 0 */2 * FRI": ["01-09 00:00:00", "01-23 00:00:00", "02-13 00:00:00"],
    "0 0 29 2 *": ["02-29 00:00:00", "02-29 00:00:00", "02-29 00:00:00"],
    "  0   0 1\t1 * ": ["01-01 00:00:00", "01-01 00:00:00", "01-01 00:00:00"],
    "@hourly": ["01-01 01:00:00", "01-01 02:00:00", "01-01 03:00:00"],
    "@daily": ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"],
    "@midnight": ["01-02 00:00:00", "01-03 00:00:00", "01-04 00:00:00"],
    "@Weekly": ["01-04 00:00:00", "01-11 00:00:00", "01-18 00:00:00"],
    "@monthly": ["02-01 00:00:00", "03-01 00:00:00", "04-01 00:00:00"],
    "@yearly": ["01-01 00:00:00", "01-01 00:00:00", "01-01 00:00:00"],
    "@annually": ["01-01 00:00:00", "01-01 00:00:00", "01-01 00:00:00"],
}

REFUSED = {
    "": "no cron expression",
    "* * * *": "5 fields",
    "* * * * * * *": "6 with seconds",
    "60 * * * *": "minute 60 is outside 0-59",
    "* 24 * * *": "hour 24 is outside 0-23",
    "* * 0 * *": "day of month 0 is outside 1-31",
    "* * * 13 *": "month 13 is outside 1-12",
    "* * * * 8": "day of week 8 is outside 0-7",
    "61 * * * * *": "second 61 is outside 0-59",
    "-5 * * * *": "minute cannot be '-5'",
    "five * * * *": "minute cannot be 'FIVE'",
    "1,,2 * * * *": "minute cannot be ''",
    "* * * * MONDAY": "day of week cannot be 'MONDAY'",
    "* JAN * * *": "hour cannot be 'JAN'",
    "? * * * *": "minute cannot be '?'",
    "*/0 * * * *": "no step",
    "*/ * * * *": "no step",
    "*/-2 * * * *": "no step",
    "*/90 * * * *": "interval",
    "0 22-6 * * *": "22-23,0-6",
    "0 0 * * L": "day of week cannot be 'L'",
    "0 0 L-3 * *": "day of month cannot be 'L'",
    "0 0 15W * *": "W",
    "0 0 * * MON#6": "1 to 5",
    "0 0 * * MON#0": "1 to 5",
    "0 0 * * #1": "day of week cannot be",
    "0 0 30 2 *": "Feb never has a day 30",
    "0 0 31 4,6,9,11 *": "Apr and Jun and Sep and Nov never have a day 31",
    "0 0 */30 * FRI#2": "no date matches both",
    "@reboot": "none of @hourly",
    "@every 5m": "interval",
    "٣ * * * *": "minute cannot be",
    "0 " * 2000: "no cron expression",
}


@pytest.mark.parametrize("expression", FIRES)
def test_an_expression_fires_when_it_says(expression: str) -> None:
    fires = islice(read_cron(expression).fires(NEW_YEAR), 3)
    assert [f"{fire:%m-%d %H:%M:%S}" for fire in fires] == FIRES[expression]


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_says_nothing_is_refused_with_its_field_and_the_reason(expression: str) -> None:
    with pytest.raises(TimetableError) as refused:
        read_cron(expression)
    assert refused.value.field == "cron"
    assert REFUSED[expression] in str(refused.value)
