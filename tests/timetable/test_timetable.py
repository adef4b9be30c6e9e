"""The timetable as a value: intervals, what was missed, and the edges of the calendar."""

from __future__ import annotations

import doctest
import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi import timetable as room
from kagzi.timetable import TimetableError, read_cron, read_interval

ANCHOR = datetime(2026, 3, 1, 9, 30, 15, 250_000, tzinfo=UTC)
YEAR = timedelta(days=365)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_an_interval_counts_from_its_anchor_in_both_directions() -> None:
    timetable = read_interval(timedelta(minutes=90), ANCHOR)
    assert timetable.after(ANCHOR) == ANCHOR + timedelta(minutes=90)
    assert timetable.after(ANCHOR - timedelta(microseconds=1)) == ANCHOR
    assert timetable.after(ANCHOR - timedelta(minutes=91)) == ANCHOR - timedelta(minutes=90)
    assert timetable.missed(ANCHOR - timedelta(hours=3), ANCHOR, 9) == [ANCHOR - timedelta(minutes=90), ANCHOR]


def test_an_anchor_may_be_given_in_any_zone() -> None:
    anchor = ANCHOR.astimezone(ZoneInfo("Asia/Tokyo"))
    assert read_interval(timedelta(hours=1), anchor) == read_interval(timedelta(hours=1), ANCHOR)
    assert read_interval(timedelta(hours=1), anchor).anchor == ANCHOR


@pytest.mark.parametrize(
    "every", [timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=999), timedelta(days=36_526)]
)
def test_an_interval_of_less_than_a_second_or_a_hundred_years_is_refused(every: timedelta) -> None:
    with pytest.raises(TimetableError, match="one second at least") as refused:
        read_interval(every, ANCHOR)
    assert refused.value.field == "interval"


def test_a_moment_without_a_zone_is_refused() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(ValueError, match="aware"):
        read_cron("@daily").after(naive)
    with pytest.raises(ValueError, match="aware"):
        read_interval(timedelta(hours=1), naive)


def test_fires_are_in_utc_and_strictly_after_whatever_zone_is_asked_in() -> None:
    daily = read_cron("0 9 * * *", "Europe/Berlin")
    fire = daily.after(datetime(2026, 1, 1, 9, tzinfo=ZoneInfo("Europe/Berlin")))
    assert fire == datetime(2026, 1, 2, 8, tzinfo=UTC)
    assert fire.tzinfo is UTC


def test_a_fire_is_never_early_by_a_fraction_of_a_second() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    daily = read_cron("0 12 * * *")
    assert daily.after(noon - timedelta(microseconds=1)) == noon
    assert daily.after(noon + timedelta(microseconds=1)) == noon + timedelta(days=1)
    assert daily.missed(noon - YEAR, noon - timedelta(microseconds=1), 1) == [noon - timedelta(days=1)]
    assert daily.missed(noon - YEAR, noon, 1) == [noon]
    assert daily.missed(noon, noon + timedelta(hours=1), 5) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_none_finds_none(limit: int) -> None:
    assert read_cron("* * * * *").missed(ANCHOR - YEAR, ANCHOR, limit) == []


def test_what_was_missed_in_years_of_seconds_is_found_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from kagzi.timetable.pattern import Pattern

    steps: list[datetime] = []
    last = Pattern.last

    def counted(pattern: Pattern, at: datetime) -> datetime | None:
        steps.append(at)
        return last(pattern, at)

    monkeypatch.setattr(Pattern, "last", counted)
    missed = read_cron("* * * * * *", "Europe/Berlin").missed(ANCHOR - 5 * YEAR, ANCHOR, 100)
    newest = ANCHOR.replace(microsecond=0)
    assert missed == [newest - timedelta(seconds=99 - place) for place in range(100)]
    assert len(steps) == 100


EXPRESSIONS = st.sampled_from(
    ["30 2 * * *", "*/20 1-3 * * *", "0 0 1 * *", "15 */5 * * 1,5", "0 9 * * MON#1", "0 18 L * *", "7 7 7 7 *"]
)
ZONES = st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"])


@given(EXPRESSIONS, ZONES, MOMENTS, st.timedeltas(timedelta(0), timedelta(days=200)), st.integers(1, 9))
def test_what_was_missed_is_the_end_of_what_would_have_fired(
    expression: str, zone: str, after: datetime, gap: timedelta, limit: int
) -> None:
    timetable = read_cron(expression, zone)
    fires = list(takewhile(lambda fire: fire <= after + gap, islice(timetable.fires(after), 3000)))
    if len(fires) < 3000:
        assert timetable.missed(after, after + gap, limit) == fires[-limit:]
    assert all(before < later for before, later in pairwise(fires))


def test_rare_dates_are_found_decades_away() -> None:
    fifth_friday_of_february = read_cron("0 0 * 2 FRI#5", "Europe/Berlin")
    moment = datetime(2010, 1, 1, tzinfo=UTC)
    assert fifth_friday_of_february.after(moment) == datetime(2036, 2, 28, 23, tzinfo=UTC)
    assert fifth_friday_of_february.missed(datetime(1900, 1, 1, tzinfo=UTC), moment, 1) == [
        datetime(2008, 2, 28, 23, tzinfo=UTC)
    ]


def test_the_calendar_ends_without_an_error() -> None:
    end, begin = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    for timetable in (read_cron("@yearly", "Asia/Tokyo"), read_interval(timedelta(days=1), ANCHOR)):
        assert timetable.after(end) is None
        assert timetable.after(begin) is not None
        assert timetable.missed(begin, begin + timedelta(hours=1), 3) in ([], [begin + timedelta(minutes=570.25)])
    assert read_cron("@yearly").missed(begin, end, 2)[-1].year > 9990


def test_timetables_are_values() -> None:
    one, same, other = (read_cron(text, "Europe/Berlin") for text in ("@daily", "0  0 * * *", "@hourly"))
    assert one == same != other
    assert len({one, same, other}) == 2
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        one.cron = "* * * * *"  # type: ignore[misc]


def test_an_error_survives_the_way_to_another_process() -> None:
    error = TimetableError("timezone", "it is none", "Europe/Berlin")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (copy.field, copy.reason, copy.suggestion, str(copy)) == (
        "timezone",
        "it is none",
        "Europe/Berlin",
        "it is none; try 'Europe/Berlin'",
    )


def test_the_examples_of_the_room_are_true() -> None:
    done = doctest.testmod(room)
    assert done.attempted > 10
    assert done.failed == 0


def test_zones_are_there_where_the_system_has_none() -> None:
    program = (
        "import zoneinfo; assert zoneinfo.TZPATH == ();"
        "from kagzi.timetable import read_cron; print(read_cron('@daily', 'Europe/Berlin').words)"
    )
    environment = {**os.environ, "PYTHONTZPATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "every day at 00:00 (Europe/Berlin)\n"
