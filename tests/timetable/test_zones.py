"""Time zones, and what becomes of a timetable where clocks change, against a walk over every minute of five years."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile, zip_longest

import pytest

from kagzi.timetable import Timetable, TimetableError, read_cron
from tests.timetable.oracle import BEGIN, END, MINUTE, Rule, Walk

WEEK = timedelta(days=7)

# Clocks change at night, at midnight, by half an hour, in the south, from an offset of 45 minutes, and never.
ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Asia/Kolkata",
]


def some(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


def by(step: int, low: int = 0, high: int = 59) -> frozenset[int]:
    return frozenset(range(low, high + 1, step))


RULES = {
    "0 0 * * *": Rule(some(0), some(0)),
    "30 0 * * *": Rule(some(30), some(0)),
    "45 1 * * *": Rule(some(45), some(1)),
    "0 2 * * *": Rule(some(0), some(2)),
    "15 2 * * *": Rule(some(15), some(2)),
    "30 2 * * *": Rule(some(30), some(2)),
    "0,20,50 2 * * *": Rule(some(0, 20, 50), some(2)),
    "45 2,3 * * *": Rule(some(45), some(2, 3)),
    "0 3 * * *": Rule(some(0), some(3)),
    "0 0-4 * * *": Rule(some(0), by(1, 0, 4)),
    "30 23 * * *": Rule(some(30), some(23)),
    "0 12 1 * *": Rule(some(0), some(12), days=some(1)),
    "30 2 * * SUN": Rule(some(30), some(2), weekdays=some(0)),
    "0 0 13 * FRI": Rule(some(0), some(0), days=some(13), weekdays=some(5)),
    "30 1 * 3,4,9-11 0,6": Rule(some(30), some(1), months=some(3, 4, 9, 10, 11), weekdays=some(0, 6)),
    "0 2 29 2 *": Rule(some(0), some(2), days=some(29), months=some(2)),
    "0-59 2 * * *": Rule(by(1), some(2)),
    "* 2 * * *": Rule(by(1), some(2), elapsed=True),
    "*/20 2 * * *": Rule(by(20), some(2), elapsed=True),
    "10-50/20 1-3 * * *": Rule(by(20, 10, 50), by(1, 1, 3), elapsed=True),
    "30 * * * *": Rule(some(30), elapsed=True),
    "0 */2 * * *": Rule(some(0), by(2, 0, 23), elapsed=True),
    "0 1-23/2 * * *": Rule(some(0), by(2, 1, 23), elapsed=True),
    "*/15 * * * *": Rule(by(15), elapsed=True),
    "* * * * *": Rule(elapsed=True),
}


@pytest.fixture(scope="module", params=ZONES)
def walk(request: pytest.FixtureRequest) -> Walk:
    """One zone at a time; pytest runs all that ask for it before the next."""
    return Walk(request.param)


def between(timetable: Timetable, after: datetime, until: datetime, expected: int = 10) -> list[datetime]:
    """The fires of that time, and no more than one too many: a fault may be without end."""
    return list(takewhile(lambda fire: fire <= until, islice(timetable.fires(after), expected + 1)))


def difference(fires: list[datetime], right: list[datetime]) -> list[tuple[datetime | None, datetime | None]]:
    """The first places where they differ; comparing thousands in full would take minutes to show."""
    pairs = zip_longest(fires, right)
    return list(islice((pair for pair in pairs if pair[0] != pair[1]), 3))


def test_every_fire_of_five_years_is_where_a_walk_by_the_minute_finds_it(walk: Walk) -> None:
    for expression, rule in RULES.items():
        timetable, expected = read_cron(expression, walk.zone.key), walk.fires(rule)
        # Those that fire often are looked at where clocks change, and on some days besides.
        often = expected.marks.count(1) > 2000
        for after, until in walk.windows() if often else [(BEGIN - MINUTE, END - MINUTE)]:
            right = expected.between(after, until)
            assert difference(between(timetable, after, until, len(right)), right) == [], expression
            assert timetable.missed(after, until, 20) == right[-20:], expression


def test_from_any_second_the_fires_on_both_sides_are_the_nearest(walk: Walk) -> None:
    for expression in ("30 2 * * *", "*/20 2 * * *"):
        timetable, expected = read_cron(expression, walk.zone.key), walk.fires(RULES[expression])
        for after, _ in walk.windows():
            for seconds in range(0, 10 * 3600, 1237):
                moment = after + timedelta(seconds=seconds, microseconds=seconds)
                assert timetable.after(moment) == expected.between(moment, moment + WEEK)[0]
                assert timetable.missed(BEGIN, moment, 1) == expected.between(moment - WEEK, moment)[-1:]


def test_the_walk_itself_sees_both_changes_of_every_year(walk: Walk) -> None:
    name = walk.zone.key
    assert len(walk.changes) == (0 if name == "Asia/Kolkata" else 10)
    left_out = 30 if name == "Australia/Lord_Howe" else 60
    assert sorted(len(change.left_out) for change in walk.changes)[5:] == [left_out] * 5 * bool(walk.changes)


def test_a_time_that_the_clocks_leave_out_fires_at_the_next_valid_instant() -> None:
    nightly = read_cron("30 2 * * *", "Europe/Berlin")
    change = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert nightly.after(change - timedelta(hours=12)) == change
    assert nightly.after(change - timedelta(microseconds=1)) == change
    assert nightly.after(change) == datetime(2026, 3, 30, 0, 30, tzinfo=UTC)


def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    nightly = read_cron("30 2 * * *", "Europe/Berlin")
    assert between(nightly, datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 26, tzinfo=UTC)) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    ]


def test_seconds_that_the_clocks_leave_out_fire_once_together() -> None:
    timetable = read_cron("*/10 30 2 * * *", "Europe/Berlin")
    assert between(timetable, datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 3, 29, 12, tzinfo=UTC)) == [
        datetime(2026, 3, 29, 1, tzinfo=UTC)
    ]


def test_a_day_that_never_was_fires_once_when_the_next_begins() -> None:
    daily = read_cron("0 9 * * *", "Pacific/Apia")
    fires = between(daily, datetime(2011, 12, 29, tzinfo=UTC), datetime(2011, 12, 31, tzinfo=UTC))
    assert [fire.isoformat() for fire in fires] == [
        "2011-12-29T19:00:00+00:00",
        "2011-12-30T10:00:00+00:00",
        "2011-12-30T19:00:00+00:00",
    ]
    assert daily.missed(datetime(2011, 12, 29, tzinfo=UTC), datetime(2011, 12, 31, tzinfo=UTC), 5) == fires


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Belrin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("new york", "America/New_York"),
        ("utc", "UTC"),
        ("Europe", None),
        ("", None),
        ("localtime", None),
        ("right/Europe/Berlin", "Europe/Berlin"),
        ("../../etc/passwd", None),
        ("/etc/localtime", None),
        ("Europe/Berlin\0", "Europe/Berlin"),
        ("+02:00", None),
        ("\ud800", None),
        ("x" * 5000, None),
    ],
)
def test_a_zone_that_is_none_is_refused_with_the_nearest_one(name: str, nearest: str | None) -> None:
    with pytest.raises(TimetableError) as refused:
        read_cron("@daily", name)
    assert refused.value.field == "timezone"
    assert refused.value.suggestion == nearest
