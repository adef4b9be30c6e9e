"""The retry policy as users write it."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from kagzi.sdk.errors import ConfigError
from kagzi.sdk.retry import Retry


def test_the_default_is_three_attempts_from_one_second_doubling_to_a_minute() -> None:
    retry = Retry()
    assert (retry.max_attempts, retry.initial_ms, retry.backoff, retry.max_interval_ms) == (3, 1_000, 2.0, 60_000)


def test_the_delay_grows_by_the_backoff_and_stops_at_the_maximum() -> None:
    retry = Retry(max_attempts=10, initial="1s", backoff=2.0, max_interval="10s")
    assert [retry.delay_ms(failed) for failed in range(1, 7)] == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    assert retry.delay(2) == timedelta(seconds=2)


def test_the_delay_after_very_many_attempts_is_still_the_maximum() -> None:
    assert Retry(max_attempts=10_000, backoff=1000.0).delay_ms(9_999) == 60_000


def test_no_initial_delay_means_no_delay_at_all() -> None:
    retry = Retry(initial=0, backoff=10)
    assert [retry.delay_ms(failed) for failed in (1, 2, 5_000)] == [0, 0, 0]


def test_two_spellings_of_one_policy_are_equal() -> None:
    assert Retry(initial="90s", max_interval="1h", backoff=2) == Retry(initial=90, max_interval=timedelta(hours=1))
    assert hash(Retry()) == hash(Retry(initial=1))


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Retry().max_attempts = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_attempts": -1}, "max_attempts=-1"),
        ({"max_attempts": True}, "max_attempts=True"),
        ({"max_attempts": 2.5}, "max_attempts=2.5"),
        ({"max_attempts": 1_000_001}, "max_attempts=1000001"),
        ({"max_attempts": None}, "max_attempts=None"),
        ({"backoff": 0.5}, "backoff=0.5"),
        ({"backoff": float("nan")}, "backoff=nan"),
        ({"backoff": float("inf")}, "backoff=inf"),
        ({"backoff": "2"}, "backoff='2'"),
        ({"initial": "soon"}, "initial="),
        ({"initial": -1}, "initial="),
        ({"max_interval": float("inf")}, "max_interval="),
        ({"initial": "2m"}, "max_interval='1m'"),
    ],
    ids=repr,
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Retry(**options)
    assert named in str(refused.value)


def test_there_is_no_delay_before_the_first_attempt() -> None:
    with pytest.raises(ConfigError, match="counted from 1"):
        Retry().delay_ms(0)
