"""Schedules in the environment that users test with: the virtual clock drives them, slot by slot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from kagzi import Context, step, workflow
from kagzi.testing import Environments


@step
async def note(slot: datetime) -> str:
    return slot.isoformat()


@workflow
async def nightly(ctx: Context, name: str) -> str:
    assert ctx.scheduled_for is not None
    await ctx.sleep("rest", "10m")
    return await ctx.step("note", note, ctx.scheduled_for)


@workflow
async def daily(ctx: Context) -> str:
    assert ctx.scheduled_for is not None
    return ctx.scheduled_for.isoformat()


@workflow
async def slow(ctx: Context) -> None:
    await ctx.sleep("work", "90m")


async def test_a_skip_goes_from_slot_to_slot(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[nightly])
    schedule = await env.client.schedules.create("nightly", nightly, "x", cron="0 2 * * *", timezone="Europe/Berlin")
    expected = await schedule.next_fires(3)
    await env.skip(expected[2] - env.now() + timedelta(minutes=11))
    runs = [run async for run in schedule.history()]
    assert [run.scheduled_for for run in reversed(runs)] == expected
    for run in runs:
        assert run.scheduled_for is not None
        described = await env.client.handle(run.run_id).describe()
        assert (described.schedule, described.schedule_run_id) == (
            "nightly",
            (await schedule.describe()).template_run_id,
        )
        assert described.output == run.scheduled_for.isoformat()
        # At its slot, and not at the end of what was skipped.
        assert run.created_at - run.scheduled_for < timedelta(minutes=30)


async def test_a_year_of_a_daily_schedule_takes_seconds(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[daily])
    schedule = await env.client.schedules.create("daily", daily, text="every day at 09:00")
    await env.skip("365d")
    runs = [run async for run in schedule.history()]
    assert len(runs) == 365
    assert {run.status for run in runs} == {"COMPLETED"}
    slots = sorted(run.scheduled_for for run in runs if run.scheduled_for is not None)
    assert all(slot.astimezone(UTC).hour == 9 for slot in slots)
    assert {second - first for first, second in pairwise(slots)} == {timedelta(days=1)}


async def test_a_slow_run_is_waited_for_in_skipped_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[slow])
    schedule = await env.client.schedules.create("slow", slow, every="1h", overlap="queue_one")
    first = (await schedule.next_fires(1))[0]
    await env.skip(first - env.now() + timedelta(hours=5))
    runs = [run async for run in schedule.history()]
    begun = sorted(run.started_at for run in runs if run.started_at is not None)
    gaps = [second - first for first, second in pairwise(begun)]
    assert len(begun) == 4
    assert all(abs(gap - timedelta(minutes=90)) < timedelta(minutes=1) for gap in gaps)


async def test_a_paused_schedule_does_not_hold_the_clock(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[daily])
    schedule = await env.client.schedules.create("daily", daily, cron="@daily")
    await schedule.pause("holiday")
    await env.skip("30d")
    assert [run async for run in schedule.history()] == []
    assert (await schedule.resume()).next_slot is not None
    await env.skip("1d")
    assert len([run async for run in schedule.history()]) == 1
