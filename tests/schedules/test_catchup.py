"""Slots that passed while nobody could fire: the newest fire, as many as the schedule makes up for, each as itself."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kagzi.store import firing
from tests.schedules.calendar import NOON, Calendar, every


async def test_up_to_a_hundred_missed_slots_are_made_up_for_unless_told_otherwise(calendar: Calendar) -> None:
    await calendar.create(timing=every(seconds=1))
    await calendar.skip(seconds=130)
    await calendar.fire()
    made_up = [row["scheduled_for"] for row in await calendar.runs()]
    assert made_up == [NOON + timedelta(seconds=second) for second in range(31, 131)]


@pytest.mark.parametrize(
    ("most", "fired"),
    [(2, ["16:00:00", "17:00:00"]), (0, []), (5, ["13:00:00", "14:00:00", "15:00:00", "16:00:00", "17:00:00"])],
)
async def test_the_newest_missed_slots_fire_each_with_its_own_slot(
    calendar: Calendar, most: int, fired: list[str]
) -> None:
    await calendar.create(max_catchup=most)
    await calendar.skip(hours=5, minutes=30)
    await calendar.fire()
    assert await calendar.slots() == fired
    await calendar.go(hours=1)
    assert await calendar.slots() == [*fired, "18:00:00"]


@pytest.mark.parametrize(("late", "fires"), [(5.0, True), (5.001, False)])
async def test_a_single_slot_up_to_five_seconds_late_was_not_missed(
    calendar: Calendar, late: float, fires: bool
) -> None:
    await calendar.create(max_catchup=0)
    await calendar.skip(hours=1, seconds=late)
    await calendar.fire()
    assert await calendar.slots() == (["13:00:00"] if fires else [])
    await calendar.go(hours=1)
    assert "14:00:00" in await calendar.slots()


async def test_a_year_without_a_server_is_made_up_for_at_once(calendar: Calendar) -> None:
    await calendar.create(timing=every(seconds=1), max_catchup=3)
    await calendar.skip(days=365)
    await calendar.fire()
    assert await calendar.slots() == [f"2027-06-01 {time}" for time in ("11:59:58", "11:59:59", "12:00:00")]


async def test_what_was_missed_counts_towards_the_limit_of_runs(calendar: Calendar) -> None:
    await calendar.create(max_runs=2)
    await calendar.skip(hours=5)
    await calendar.fire()
    assert await calendar.slots() == ["16:00:00", "17:00:00"]


async def test_what_was_missed_ends_with_the_last_slot(calendar: Calendar) -> None:
    request = calendar.request(max_catchup=2)
    request.end_at.FromDatetime(NOON + timedelta(hours=4))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    await calendar.skip(days=2)
    await calendar.fire()
    assert await calendar.slots() == ["14:00:00", "15:00:00"]


async def test_more_than_fits_one_transaction_is_made_up_for_in_several(
    calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "MOST_RUNS", 7)
    for name in ("a", "b", "c"):
        await calendar.create(name, timing=every(seconds=1), max_catchup=10)
    await calendar.skip(seconds=30)
    await calendar.fire()
    expected = [f"12:00:{second}" for second in range(21, 31)]
    assert [await calendar.slots(name) for name in ("a", "b", "c")] == [expected] * 3
    assert (await calendar.get("a")).runs_started == 10
