"""Counts a minute: what servers put, what a chart reads, and how far a percentile may be off."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from asyncpg.connection import Connection

from kagzi.store import stats
from kagzi.store.stats import Tally
from tests.store import given

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def test_servers_add_up_and_a_repeated_put_counts_nothing_twice(connection: Connection) -> None:
    one, two = given.new_id(), given.new_id()
    order = Tally(started=3, completed=2, steps_completed=7)
    for _ in range(2):
        await stats.put(connection, "default", one, NOON, {"order": order, "": Tally(leases_lost=1)})
    await stats.put(connection, "default", two, NOON + timedelta(seconds=59), {"ship": Tally(started=10, failed=1)})
    await stats.put(connection, "another", two, NOON, {"order": Tally(started=99)})
    [point] = await stats.points(connection, "default", since=NOON, until=NOON + MINUTE, minutes=1)
    assert (point.started, point.completed, point.failed, point.steps_completed) == (13, 2, 1, 7)
    assert point.leases_lost == 1
    [point] = await stats.points(
        connection, "default", since=NOON, until=NOON + MINUTE, minutes=1, workflow_type="order"
    )
    assert (point.started, point.failed, point.leases_lost) == (3, 0, 0)


async def test_points_have_no_gaps_and_cover_whole_stretches(connection: Connection) -> None:
    server = given.new_id()
    for minute in (0, 4, 5, 11):
        await stats.put(connection, "default", server, NOON + minute * MINUTE, {"": Tally(started=1)})
    found = await stats.points(connection, "default", since=NOON, until=NOON + 12 * MINUTE, minutes=5)
    assert [point.started for point in found] == [2, 1, 1]
    assert [point.at.ToDatetime(UTC) for point in found] == [NOON + 5 * number * MINUTE for number in range(3)]


async def test_stretches_of_whole_hours_are_read_from_rows_of_hours(connection: Connection) -> None:
    server = given.new_id()
    await stats.put(connection, "default", server, NOON + 7 * MINUTE, {"order": Tally(started=5)}, stats.HOUR)
    await stats.put(connection, "default", server, NOON + 7 * MINUTE, {"order": Tally(started=2)})
    hours = await stats.points(connection, "default", since=NOON, until=NOON + 120 * MINUTE, minutes=60)
    minutes = await stats.points(connection, "default", since=NOON, until=NOON + 60 * MINUTE, minutes=30)
    assert ([point.started for point in hours], [point.started for point in minutes]) == ([5, 0], [2, 0])


async def test_a_gauge_is_the_last_count_of_a_stretch(connection: Connection) -> None:
    server = given.new_id()
    for due in (5, 3):
        await stats.gauge(connection, "default", server, pending_due=due, running=1, sleeping=2, oldest_due_ms=10)
    # Counting does not disturb what is standing there, and the other way round.
    now: datetime = await connection.fetchval("select date_trunc('minute', kagzi.now())")
    await stats.put(connection, "default", server, now, {"": Tally(started=1)})
    found = await stats.points(connection, "default", since=now - MINUTE, until=now + MINUTE, minutes=2)
    assert [(point.pending_due, point.oldest_due_ms) for point in found] == [(3, 10)]


async def test_a_percentile_is_right_to_within_a_fifth(connection: Connection) -> None:
    times = sorted(random.Random(1).lognormvariate(5, 2) for _ in range(5_000))
    halves = [Tally(), Tally()]
    for number, time in enumerate(times):
        halves[number % 2].ended(time)
        halves[number % 2].picked_up(time)
    for half in halves:
        await stats.put(connection, "default", given.new_id(), NOON, {"order": half})
    [point] = await stats.points(connection, "default", since=NOON, until=NOON + MINUTE, minutes=1)
    assert point.pickup == point.duration
    assert point.duration.count == 5_000
    assert point.duration.p50_ms == pytest.approx(times[2_500], rel=0.2)
    assert point.duration.p95_ms == pytest.approx(times[4_750], rel=0.2)
    assert point.duration.p99_ms == pytest.approx(times[4_950], rel=0.2)


def test_times_of_any_length_fall_into_a_bucket() -> None:
    tally = Tally()
    for time in (0, 0.2, 1, 86_400_000, 1e15):
        tally.ended(time)
    measured = stats.latency(tally.duration)
    assert measured is not None
    assert measured.count == 5
    assert stats.latency(Tally().duration) is None
