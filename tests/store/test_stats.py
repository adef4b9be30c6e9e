"""Counts a minute: what servers put, what a chart reads, and how far a percentile may be off."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from asyncpg.connection import Connection

from kagzi.server.coordinator import merge_every
from kagzi.store import merges, stats
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
    [point], _ = await stats.points(connection, "default", since=NOON, until=NOON + MINUTE, minutes=1)
    assert (point.started, point.completed, point.failed, point.steps_completed) == (13, 2, 1, 7)
    assert point.leases_lost == 1
    [point], _ = await stats.points(
        connection, "default", since=NOON, until=NOON + MINUTE, minutes=1, workflow_type="order"
    )
    assert (point.started, point.failed, point.leases_lost) == (3, 0, 0)


async def test_points_have_no_gaps_and_cover_whole_stretches(connection: Connection) -> None:
    server = given.new_id()
    for minute in (0, 4, 5, 11):
        await stats.put(connection, "default", server, NOON + minute * MINUTE, {"": Tally(started=1)})
    found, _ = await stats.points(connection, "default", since=NOON, until=NOON + 12 * MINUTE, minutes=5)
    assert [point.started for point in found] == [2, 1, 1]
    assert [point.at.ToDatetime(UTC) for point in found] == [NOON + 5 * number * MINUTE for number in range(3)]


async def test_stretches_of_whole_hours_are_read_from_rows_of_hours(connection: Connection) -> None:
    server = given.new_id()
    await stats.put(connection, "default", server, NOON + 7 * MINUTE, {"order": Tally(started=5)}, stats.HOUR)
    await stats.put(connection, "default", server, NOON + 7 * MINUTE, {"order": Tally(started=2)})
    hours, _ = await stats.points(connection, "default", since=NOON, until=NOON + 120 * MINUTE, minutes=60)
    minutes, _ = await stats.points(connection, "default", since=NOON, until=NOON + 60 * MINUTE, minutes=30)
    assert ([point.started for point in hours], [point.started for point in minutes]) == ([5, 0], [2, 0])


async def test_a_gauge_is_the_last_count_of_a_stretch(connection: Connection) -> None:
    server = given.new_id()
    for due in (5, 3):
        await stats.gauge(connection, "default", server, pending_due=due, running=1, sleeping=2, oldest_due_ms=10)
    # Counting does not disturb what is standing there, and the other way round.
    now: datetime = await connection.fetchval("select date_trunc('minute', kagzi.now())")
    await stats.put(connection, "default", server, now, {"": Tally(started=1)})
    found, _ = await stats.points(connection, "default", since=now - MINUTE, until=now + MINUTE, minutes=2)
    assert [(point.pending_due, point.oldest_due_ms) for point in found] == [(3, 10)]


async def test_a_percentile_is_right_to_within_a_fifth(connection: Connection) -> None:
    times = sorted(random.Random(1).lognormvariate(5, 2) for _ in range(5_000))
    halves = [Tally(), Tally()]
    for number, time in enumerate(times):
        halves[number % 2].ended(time)
        halves[number % 2].picked_up(time)
    for half in halves:
        await stats.put(connection, "default", given.new_id(), NOON, {"order": half})
    [point], _ = await stats.points(connection, "default", since=NOON, until=NOON + MINUTE, minutes=1)
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


async def test_counts_of_several_servers_become_one_row_and_say_the_same(connection: Connection) -> None:
    await connection.execute("insert into kagzi.namespaces (namespace) values ('merged')")
    now: datetime = await connection.fetchval("select date_trunc('minute', kagzi.now())")
    over = now.replace(minute=0) - timedelta(hours=3)
    servers = [given.new_id() for _ in range(3)]
    for number, server in enumerate(servers, start=1):
        tally = Tally(started=number, completed=number, steps_failed=1)
        tally.picked_up(number)
        tally.ended(1_000 * number)
        for moment in (now, over, over + MINUTE):
            for span in (stats.MINUTE, stats.HOUR):
                await stats.put(connection, "merged", server, moment, {"order": tally}, span)
    await connection.execute(
        "update kagzi.stats set counted_at = minute + interval '1 s', running = 7 where server_id = $1"
        " and workflow_type = ''",
        servers[0],
    )

    async def charts() -> list[tuple[list[stats.Point], datetime | None]]:
        return [
            await stats.points(
                connection, "merged", since=over, until=now + MINUTE, minutes=minutes, workflow_type=workflow_type
            )
            for minutes in (1, 60)
            for workflow_type in ("", "order")
        ]

    async def rows() -> dict[int, int]:
        found = await connection.fetch("select span, count(*) from kagzi.stats where namespace = 'merged' group by 1")
        return dict(map(tuple, found))

    before = await charts()
    assert {("merged", 60)} <= set(await merges.scattered(connection)), "a minute so old is no longer looked for"
    for span in (stats.MINUTE, stats.HOUR):
        # Two types; those of `over` and the minute after it became one, those of now are left alone.
        assert await merges.merge(connection, "merged", span, stretches=300) == (4 if span == stats.MINUTE else 2)
        assert await merges.merge(connection, "merged", span, stretches=300) == 0
    assert await rows() == {stats.MINUTE: 6 + 4, stats.HOUR: 6 + 2}
    assert await charts() == before
    assert await merges.scattered(connection) == []
    # One who comes late is added to the rest.
    late = given.new_id()
    await stats.put(connection, "merged", late, over, {"order": Tally(started=100)})
    await merges.merge(connection, "merged", stats.MINUTE, stretches=300)
    assert (await rows())[stats.MINUTE] == 6 + 4
    [point], _ = await stats.points(connection, "merged", since=over, until=over + MINUTE, minutes=1)
    assert (point.started, point.duration.count, point.running) == (106, 3, 7)
    # Of what stood at a moment the later count is shown, whoever is merged last.
    for seconds, running, shown in ((0.5, 8, 7), (2, 9, 9)):
        later = given.new_id()
        await stats.put(connection, "merged", later, over, {"order": Tally()})
        await connection.execute(
            "update kagzi.stats set counted_at = minute + $2 * interval '1 s', running = $3 where server_id = $1"
            " and workflow_type = ''",
            later,
            seconds,
            running,
        )
        await merges.merge(connection, "merged", stats.MINUTE, stretches=300)
        assert (await rows())[stats.MINUTE] == 6 + 4
        [point], _ = await stats.points(connection, "merged", since=over, until=over + MINUTE, minutes=1)
        assert (point.started, point.running) == (106, shown)


@pytest.mark.parametrize("interval", [0.05, 5.0, 375.0, 3_600.0])
def test_a_minute_is_merged_before_it_is_no_longer_looked_for(interval: float) -> None:
    # A pass that comes just before it is time leaves it to the next.
    longest = timedelta(seconds=merge_every(interval) + interval)
    assert longest < (merges.STRETCHES - 1) * MINUTE - merges.SETTLED


async def test_a_chart_looks_at_the_oldest_counts_and_says_where_it_stopped(connection: Connection) -> None:
    for number in range(4):
        for _ in range(3):
            await stats.put(connection, "default", given.new_id(), NOON + number * MINUTE, {"order": Tally(started=1)})

    async def seen(look_at: int) -> tuple[list[int], datetime | None]:
        points, until = await stats.points(
            connection, "default", since=NOON, until=NOON + 4 * MINUTE, minutes=1, look_at=look_at
        )
        return [point.started for point in points], until

    assert await seen(0) == await seen(13) == ([3, 3, 3, 3], None)
    assert await seen(8) == ([3, 3, 0, 0], NOON + 2 * MINUTE)
    # What was read whole may have been cut off for all one knows.
    assert await seen(6) == ([3, 0, 0, 0], NOON + MINUTE)
    assert await seen(2) == ([0, 0, 0, 0], NOON)
