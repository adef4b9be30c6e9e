"""Durations: what is accepted, what is refused, and how they are shown."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.sdk import duration
from kagzi.sdk.errors import ConfigError, KagziError


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (0, timedelta(0)),
        (30, timedelta(seconds=30)),
        (0.5, timedelta(milliseconds=500)),
        (timedelta(hours=1), timedelta(hours=1)),
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("24h", timedelta(days=1)),
        ("3d", timedelta(days=3)),
        ("2w", timedelta(weeks=2)),
        ("1 day", timedelta(days=1)),
        ("2 weeks", timedelta(weeks=2)),
        ("90 minutes", timedelta(minutes=90)),
        ("1 millisecond", timedelta(milliseconds=1)),
        ("2 Hours 15 Mins", timedelta(hours=2, minutes=15)),
        ("  1h  30m  ", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        ("1w2d3h4m5s6ms", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        ("100 days", timedelta(days=100)),
        (duration.LONGEST, duration.LONGEST),
    ],
)
def test_every_documented_form_is_understood(given_value: duration.Duration, expected: timedelta) -> None:
    assert duration.parse(given_value) == expected


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        timedelta(microseconds=-1),
        "-5s",
        "",
        "   ",
        "soon",
        "30",
        "s",
        "5 parsecs",
        "1M",
        "1h 1h",
        "30m 1h",
        "1e3s",
        "1h,30m",
        "٣s",
        "NaNs",
        "1" * 500 + "s",
        "9" * 150 + "w",
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        10**400,
        timedelta.max,
        "101 years",
        "36526d",
        True,
        False,
        None,
        Decimal(1),
        b"1s",
        [1],
    ],
    ids=repr,
)
def test_everything_else_is_refused_with_the_value_and_what_is_accepted(value: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        duration.parse(value)
    message = str(refused.value)
    assert repr(value)[:70] in message
    assert "'1h30m'" in message
    assert len(message) < 500


def test_a_refused_duration_is_a_value_error_as_well_as_kagzis_own() -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration.parse("soon")
    with pytest.raises(KagziError):
        duration.parse("soon")


@pytest.mark.parametrize(
    ("value", "expected"), [("1s", 1000), (0, 0), (0.0001, 1), (timedelta(microseconds=1001), 2), ("1.5ms", 2)]
)
def test_milliseconds_are_rounded_up_so_that_no_timer_is_early(value: duration.Duration, expected: int) -> None:
    assert duration.milliseconds(value) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0s"), (5400, "1h30m"), ("2 weeks", "14d"), (0.5, "500ms"), (0.0015, "1.5ms"), (90061, "1d1h1m1s")],
)
def test_durations_are_shown_short(value: duration.Duration, text: str) -> None:
    assert duration.format(value) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=duration.LONGEST))
def test_what_is_shown_is_read_back_as_the_same_length(length: timedelta) -> None:
    assert duration.parse(duration.format(length)) == length
