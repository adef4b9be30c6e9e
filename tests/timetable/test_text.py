"""Human language: a table of what people write, a table of what is refused with a better phrase, and words."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kagzi.timetable import Timetable, TimetableError, named_zone, read_cron, read_interval, read_text
from kagzi.timetable.lexicon import SPELLINGS

HERE = Path(__file__).parent
BERLIN = "Europe/Berlin"
NOON = datetime(2026, 3, 26, 12, tzinfo=ZoneInfo(BERLIN))
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def table(name: str) -> list[list[str]]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [[part.strip() for part in line.split(" | ")] for line in lines if line and not line.startswith("#")]


PHRASES, REFUSALS = table("phrases.txt"), table("refusals.txt")


@pytest.mark.parametrize(("phrase", "meaning", "fires"), PHRASES, ids=[row[0] for row in PHRASES])
def test_a_phrase_means_what_people_mean_by_it(phrase: str, meaning: str, fires: str) -> None:
    timetable = read_text(phrase, BERLIN, NEW_YEAR)
    assert (timetable.cron or str(timetable.every)) == meaning
    seen = [fire.astimezone(NOON.tzinfo) for fire in islice(timetable.fires(NOON), 3)]
    shape = "%a %Y-%m-%d %H:%M:%S" if any(fire.second for fire in seen) else "%a %Y-%m-%d %H:%M"
    assert ", ".join(fire.strftime(shape) for fire in seen) == fires


@pytest.mark.parametrize("phrase", [row[0] for row in PHRASES])
def test_the_words_of_a_phrase_read_back_as_the_same_fires(phrase: str) -> None:
    timetable = read_text(phrase, BERLIN, NEW_YEAR)
    again = read_text(timetable.words)
    assert list(islice(again.fires(NOON), 50)) == list(islice(timetable.fires(NOON), 50))
    assert again.words == timetable.words


@pytest.mark.parametrize(("phrase", "suggestion", "reason"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_a_phrase_that_cannot_be_is_refused_with_the_nearest_one_that_can(
    phrase: str, suggestion: str, reason: str
) -> None:
    with pytest.raises(TimetableError) as refused:
        read_text(phrase, BERLIN)
    assert refused.value.field == "text"
    assert refused.value.suggestion == suggestion
    assert reason in refused.value.reason
    assert suggestion in str(refused.value)
    assert read_text(suggestion).words.startswith(suggestion)


def test_the_tables_are_as_long_as_was_promised() -> None:
    assert len(PHRASES) >= 60
    assert len(REFUSALS) >= 20


def test_a_zone_in_the_phrase_goes_before_the_one_that_is_given() -> None:
    assert read_text("every day at 9:00 (Asia/Tokyo)", BERLIN).timezone == "Asia/Tokyo"
    assert read_text("every day at 9:00 Asia/Tokyo time", BERLIN).timezone == "Asia/Tokyo"
    assert read_text("every day at 9:00", BERLIN).words == "every day at 09:00 (Europe/Berlin)"


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("every day at 9:00", None),
        ("every day at 9:00 (UTC)", "UTC"),
        ("every day at 9:00 in Asia/Tokyo", "Asia/Tokyo"),
        ("cron 0 9 * * 1-5 (Asia/Tokyo)", "Asia/Tokyo"),
        ("0 9 * * MON/2", None),
        ("every 90 minutes (Asia/Tokyo), counted from 2026-03-01", "Asia/Tokyo"),
    ],
)
def test_the_zone_that_a_phrase_names_can_be_asked_for(text: str, zone: str | None) -> None:
    assert named_zone(text) == zone
    assert read_text(text).words


def test_what_follows_the_calendar_counts_from_nowhere() -> None:
    with pytest.raises(TimetableError, match="counts from nowhere") as refused:
        read_text("every friday, counted from 2026-03-01", BERLIN)
    assert refused.value.suggestion == "every Friday at 00:00 (Europe/Berlin)"


def test_a_suggestion_keeps_the_zone_of_the_phrase() -> None:
    with pytest.raises(TimetableError) as refused:
        read_text("evry day at 9:00 (Asia/Tokyo)", BERLIN)
    assert refused.value.suggestion == "every day at 09:00 (Asia/Tokyo)"


@pytest.mark.parametrize("phrase", ["every day at 9:00 (Berlin)", "every 5 minutes (Mars/Olympus)", "daily ()"])
def test_a_zone_that_is_none_is_refused_as_the_zone(phrase: str) -> None:
    with pytest.raises(TimetableError) as refused:
        read_text(phrase)
    assert refused.value.field == "timezone"


def test_an_interval_says_where_it_counts_from_unless_that_is_the_epoch() -> None:
    assert read_text("every 90 minutes").words == "every 90 minutes"
    counted = read_text("every 90 minutes", anchor=datetime(2026, 3, 1, 9, 30, tzinfo=UTC))
    assert counted.words == "every 90 minutes, counted from 2026-03-01 09:30 UTC"
    assert read_text(counted.words) == counted


def test_an_anchor_that_is_no_moment_is_refused() -> None:
    with pytest.raises(TimetableError, match="2026-02-30") as refused:
        read_text("every 5 minutes, counted from 2026-02-30")
    assert refused.value.field == "text"


@pytest.mark.parametrize("text", ["friday " * 40, "x" * 100_000, "cron " + "0,0," * 400 + "0 * * * *", " " * 5000])
def test_a_text_of_any_length_is_refused_at_once(text: str) -> None:
    with pytest.raises(TimetableError, match=r"too long|when|two timetables") as refused:
        read_text(text)
    assert refused.value.field == "text"
    assert len(str(refused.value)) < 300


def test_a_bad_expression_in_a_text_is_blamed_on_the_text() -> None:
    with pytest.raises(TimetableError, match="minute 61 is outside 0-59") as refused:
        read_text("cron 61 * * * *")
    assert refused.value.field == "text"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 17 * * FRI", "every Friday at 17:00"),
        ("0 10 * * 0,6", "every Saturday and Sunday at 10:00"),
        ("0,30 9,17 * * *", "every day at 09:00, 09:30, 17:00 and 17:30"),
        ("30 * * * *", "every hour at minute 30"),
        ("5/15 * * * *", "every hour at minutes 5, 20, 35 and 50"),
        ("*/15 9-16 * * MON-FRI", "every 15 minutes from 09:00 to 16:45 on weekdays"),
        ("0 */6 * * *", "every 6 hours from 00:00 to 18:00"),
        ("15 3 15,L * *", "on the 15th and last day of the month at 03:15"),
        ("0 9 * 1,7 MON#1,MON#3,FRIL", "on the first and third Monday and last Friday of January and July at 09:00"),
        ("* * 1 * *", "every minute on the 1st of the month"),
        ("0 0 13 * FRI", "cron 0 0 13 * FRI"),
        ("*/20 1,5,9 * * *", "cron */20 1,5,9 * * *"),
    ],
)
def test_a_schedule_is_shown_in_words(expression: str, words: str) -> None:
    assert read_cron(expression).words == f"{words} (UTC)"


def attempt(read: Callable[[], Timetable]) -> Timetable | TimetableError:
    try:
        return read()
    except TimetableError as error:
        return error


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    step = st.integers(1, (high - low) // 2)
    span = st.tuples(number, number).map(sorted)
    return st.one_of(
        st.just("*"),
        number.map(str),
        step.map(lambda by: f"*/{by}"),
        span.map(lambda ends: f"{ends[0]}-{ends[1]}"),
        st.tuples(span, step).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
        st.lists(number, min_size=2, max_size=4).map(lambda some: ",".join(map(str, some))),
    )


EXPRESSIONS = st.tuples(
    st.one_of(st.just(""), st.just(""), field(0, 59)),
    st.one_of(st.just("0"), field(0, 59)),
    field(0, 23),
    st.one_of(st.just("*"), st.sampled_from(["L", "1,15", "10,L", "?"]), field(1, 28)),
    st.one_of(st.just("*"), field(1, 12)),
    st.one_of(st.just("*"), st.sampled_from(["1-5", "MON#1", "5L", "2#2,4#3,4L", "SAT,SUN"]), field(0, 6)),
).map(" ".join)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"])
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(EXPRESSIONS, ZONES, MOMENTS)
def test_the_words_of_any_expression_read_back_as_the_same_fires(expression: str, zone: str, moment: datetime) -> None:
    timetable = attempt(lambda: read_cron(expression, zone))
    if isinstance(timetable, TimetableError):
        assert "never happens" in timetable.reason
        return
    again = read_text(timetable.words)
    assert again.timezone == zone
    assert list(islice(again.fires(moment), 8)) == list(islice(timetable.fires(moment), 8))
    past = moment - timedelta(days=400)
    assert again.missed(past, moment, 8) == timetable.missed(past, moment, 8)


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=36_525)), MOMENTS)
def test_the_words_of_any_interval_read_back_as_the_same(every: timedelta, anchor: datetime) -> None:
    timetable = read_interval(every, anchor)
    assert read_text(timetable.words) == timetable


SAID = st.sampled_from([*SPELLINGS, "9", "17", "5pm", "9:30", "15th", "2", "90", ":30", "zork", "2026", "24:00", "("])


@given(st.one_of(st.lists(SAID, max_size=9).map(" ".join), st.text(max_size=40)), MOMENTS)
def test_whatever_is_written_is_understood_or_refused_with_something_that_works(text: str, moment: datetime) -> None:
    timetable = attempt(lambda: read_text(text))
    if isinstance(timetable, TimetableError):
        assert timetable.field in {"text", "timezone"}
        assert timetable.field == "timezone" or not timetable.suggestion or read_text(timetable.suggestion).words
        return
    assert read_text(timetable.words).after(moment) == timetable.after(moment)
