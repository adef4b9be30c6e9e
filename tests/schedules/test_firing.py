"""Firing: a slot becomes a run that carries all its schedule says, at its time and never before, once, and moves the
schedule on in the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import pytest

from kagzi.protocol.v1.common_pb2 import PAUSED, SCHEDULED, RetryPolicy
from kagzi.protocol.v1.schedule_pb2 import SCHEDULE_PAUSE_FINISHED, SCHEDULE_PAUSE_RUN_LIMIT
from kagzi.server import firing
from kagzi.store import firing as store
from kagzi.store.errors import Refused
from kagzi.store.firing import Plan
from tests.laws import operations
from tests.schedules.calendar import NOON, Calendar, cron, every, payload, times


async def test_a_slot_becomes_a_run_that_carries_what_the_schedule_says(calendar: Calendar) -> None:
    made = await calendar.create(
        input=payload("7"),
        version="2",
        priority=4,
        labels={"team": "a"},
        timeout_ms=60_000,
        retry=RetryPolicy(maximum_attempts=3),
    )
    await calendar.skip(hours=1)
    await calendar.fire()
    [run] = await calendar.runs()
    at_one = NOON + timedelta(hours=1)
    assert str(run["schedule_id"]) == made.template_run_id
    assert (run["external_id"], run["scheduled_for"]) == ("nightly@2026-06-01T13:00:00Z", at_one)
    assert (run["status"], run["available_at"], run["created_at"]) == ("PENDING", at_one, at_one)
    assert (run["version"], run["priority"], run["deadline_at"]) == ("2", 4, at_one + timedelta(minutes=1))
    assert (run["labels"], '"maximum_attempts": 3' in run["retry_policy"]) == ('{"team": "a"}', True)
    stored = await calendar.connection.fetchval(
        "select input from kagzi.workflow_payloads where run_id = $1", run["run_id"]
    )
    assert stored == b"7"
    after = await calendar.get()
    assert times(after.next_slot, after.next_fire_at, after.last_slot) == ["14:00:00", "14:00:00", "13:00:00"]
    assert after.runs_started == 1
    assert after.updated_at == made.updated_at


async def test_a_worker_is_told_the_slot_of_its_run(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=1)
    [delivery] = await calendar.deliveries()
    assert times(delivery.scheduled_for) == ["13:00:00"]
    assert calendar.announcer.outcomes[-1].due == {"default"}


async def test_nothing_fires_before_its_time(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.skip(minutes=59, seconds=59.999999)
    pause = await calendar.firing.fire_due()
    assert await calendar.slots() == []
    assert 0 <= pause < 0.01


async def test_a_loop_sleeps_until_the_earliest_is_due_and_no_longer_than_its_interval(calendar: Calendar) -> None:
    assert await calendar.firing.fire_due() == 5
    await calendar.create("hourly")
    assert await calendar.firing.fire_due() == 5
    await calendar.create("soon", timing=every(seconds=2))
    assert 0 < await calendar.firing.fire_due() < 2.01
    assert calendar.announcer.clocks == 2


async def test_what_becomes_due_behind_a_long_queue_does_not_wait_for_all_of_it(
    calendar: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "_FRESH", 1)
    for number in range(9):
        await calendar.create(f"s{number}")
    await calendar.create("late", timing=cron("1 13 * * *"))
    await calendar.skip(hours=1, minutes=1)
    await calendar.server(coordinator_batch_size=3).fire_due()
    # Their ids are made in the order they fire: it goes beside the first batch, a little before or after it.
    order = await calendar.connection.fetch(
        "select external_id from kagzi.workflow_runs where schedule_id is not null order by run_id"
    )
    assert len(order) == 10
    assert [row["external_id"].partition("@")[0] for row in order].index("late") <= 3


async def test_any_number_of_servers_fire_a_slot_once(calendar: Calendar) -> None:
    servers = [calendar.server(coordinator_batch_size=3) for _ in range(4)]
    for number in range(10):
        await calendar.create(f"s{number}", timing=every(seconds=1))
    for _ in range(5):
        await calendar.skip(seconds=1)
        await asyncio.gather(*(server.fire_due() for server in servers))
        await calendar.fire()
    for number in range(10):
        assert await calendar.slots(f"s{number}") == [f"12:00:0{second}" for second in range(1, 6)]


async def test_a_slot_that_was_fired_since_it_was_found_is_left_alone(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.skip(hours=1)
    found = await calendar.connection.fetchval("select run_id from kagzi.workflow_runs where status = 'SCHEDULED'")
    await calendar.fire()
    assert await calendar.firing._fire("default", [str(found)]) == 0
    assert await calendar.slots() == ["13:00:00"]


async def test_a_run_that_is_due_is_no_schedule(calendar: Calendar) -> None:
    run_id = await calendar.start()
    before = await calendar.contents()
    assert await calendar.firing._fire("default", [run_id]) == 0
    plan = Plan([calendar.now], calendar.now, calendar.now)
    fired = await calendar.database.transact(lambda c: store.fire(c, "default", [run_id], lambda *_: plan))
    assert fired.outcome.started == []
    assert await calendar.contents() == before


async def test_a_schedule_that_somebody_changes_at_this_moment_is_left_for_later(calendar: Calendar) -> None:
    made = await calendar.create()
    await calendar.skip(hours=1)
    async with calendar.held(made.template_run_id):
        pause = await asyncio.wait_for(calendar.firing.fire_due(), 5)
    assert 0 < pause < 0.1
    assert await calendar.slots() == []
    await calendar.fire()
    assert await calendar.slots() == ["13:00:00"]


async def test_the_run_and_the_next_slot_are_stored_together_or_not_at_all(calendar: Calendar) -> None:
    made = await calendar.create()
    await calendar.skip(hours=1)
    await calendar.connection.execute(
        "create function kagzi.no_move() returns trigger language plpgsql as $$ begin"
        " if new.status = 'SCHEDULED' and new.schedule_error is null then raise exception 'no'; end if;"
        " return new; end $$;"
        " create trigger no_move before update on kagzi.workflow_runs for each row execute function kagzi.no_move()"
    )
    try:
        await calendar.fire()
    finally:
        await calendar.connection.execute("drop trigger no_move on kagzi.workflow_runs; drop function kagzi.no_move()")
    assert await calendar.slots() == []
    assert (await calendar.get()).next_slot == made.next_slot


async def test_a_schedule_past_its_last_slot_is_finished(calendar: Calendar) -> None:
    request = calendar.request()
    request.end_at.FromDatetime(NOON + timedelta(hours=3))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    await calendar.go(hours=6)
    assert await calendar.slots() == ["13:00:00", "14:00:00"]
    after = await calendar.get()
    assert (after.status, after.pause) == (PAUSED, SCHEDULE_PAUSE_FINISHED)
    assert not after.HasField("next_slot")


async def test_a_schedule_begins_at_its_first_moment(calendar: Calendar) -> None:
    request = calendar.request(timing=every(minutes=10))
    request.start_at.FromDatetime(NOON + timedelta(hours=1, seconds=30))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    await calendar.go(hours=1, minutes=21)
    assert await calendar.slots() == ["13:00:30", "13:10:30", "13:20:30"]


async def test_a_schedule_starts_no_more_runs_than_it_may(calendar: Calendar) -> None:
    await calendar.create(max_runs=3)
    await calendar.go(hours=2)
    await calendar.trigger()
    await calendar.go(hours=3)
    assert await calendar.slots() == ["13:00:00", "14:00:00", "15:00:00", "-"]
    after = await calendar.get()
    assert (after.status, after.pause, after.runs_started) == (PAUSED, SCHEDULE_PAUSE_RUN_LIMIT, 3)


async def test_jitter_delays_each_slot_by_its_own_amount_and_never_hastens_one(calendar: Calendar) -> None:
    await calendar.create(jitter_ms=600_000)
    before = await calendar.get()
    assert before.next_fire_at.ToDatetime() > before.next_slot.ToDatetime()
    await calendar.go(hours=20)
    runs = await calendar.runs()
    late = [run["created_at"] - run["scheduled_for"] for run in runs]
    assert len(runs) in (19, 20)
    assert all(timedelta() <= one <= timedelta(minutes=10) for one in late)
    assert len(set(late)) == len(late)


async def test_jitter_longer_than_the_interval_loses_no_slot_and_keeps_their_order(calendar: Calendar) -> None:
    await calendar.create(timing=every(seconds=10), jitter_ms=60_000, max_catchup=0)
    await calendar.go(minutes=10)
    runs = await calendar.runs()
    late = [run["created_at"] - run["scheduled_for"] for run in runs]
    assert [run["scheduled_for"] for run in runs] == [NOON + timedelta(seconds=10 * n + 10) for n in range(len(runs))]
    assert len(runs) >= 53
    assert all(timedelta() <= one <= timedelta(seconds=60) for one in late)


async def test_an_interval_does_not_drift_with_the_time_it_fires_at(calendar: Calendar) -> None:
    await calendar.create(timing=every(minutes=5))
    for seconds in (2.5, 4.9, 0.001):
        await calendar.skip(minutes=5, seconds=seconds)
        await calendar.fire()
    assert await calendar.slots() == ["12:05:00", "12:10:00", "12:15:00"]


async def test_a_slot_whose_id_a_foreign_run_has_fires_without_one_and_is_told_of(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.create("other")
    foreign = await calendar.start(external_id="nightly@2026-06-01T13:00:00Z")
    await calendar.go(hours=1)
    [run] = await calendar.runs()
    assert run["external_id"] is None
    assert "nightly@2026-06-01T13:00:00Z" in (await calendar.get()).notice
    assert (await calendar.get("other")).notice == ""
    assert (await calendar.row(foreign))["schedule_id"] is None
    await calendar.go(hours=1)
    assert await calendar.slots() == ["13:00:00", "14:00:00"]


async def test_a_slot_whose_id_a_run_has_for_ever_fires_without_one(calendar: Calendar) -> None:
    await calendar.create()
    foreign = await calendar.running(external_id="nightly@2026-06-01T13:00:00Z", dedupe=2)
    await calendar.end(foreign)
    await calendar.go(hours=1)
    [run] = await calendar.runs()
    assert run["external_id"] is None


async def test_nothing_fires_in_a_disabled_namespace_and_it_delays_no_other(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.connection.execute("update kagzi.namespaces set enabled = false")
    await calendar.skip(hours=1)
    assert await calendar.firing.fire_due() == 5
    assert await calendar.slots() == []
    await calendar.connection.execute("update kagzi.namespaces set enabled = true")
    await calendar.fire()
    assert await calendar.slots() == ["13:00:00"]


async def test_a_broken_schedule_is_marked_and_delays_no_other(calendar: Calendar) -> None:
    for name in ("a", "b", "c"):
        await calendar.create(name)
    await calendar.connection.execute(
        "update kagzi.workflow_runs set timezone = 'Mars/Olympus' where external_id = 'b'"
    )
    await calendar.go(hours=1)
    assert [len(await calendar.runs(name)) for name in ("a", "b", "c")] == [1, 0, 1]
    broken = await calendar.get("b")
    assert broken.status == SCHEDULED
    assert "Mars/Olympus" in broken.error
    assert not broken.HasField("next_fire_at")
    assert [one.schedule_id for one in (await calendar.listed(broken=True)).schedules] == ["b"]
    await calendar.go(hours=1)
    assert [len(await calendar.runs(name)) for name in ("a", "b", "c")] == [2, 0, 2]


async def test_a_broken_schedule_fires_again_once_it_can(calendar: Calendar) -> None:
    await calendar.create(max_catchup=1)
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'Mars/Olympus'")
    await calendar.go(hours=1)
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'UTC' where status = 'SCHEDULED'")
    await calendar.go(hours=1)
    assert await calendar.slots() == ["13:00:00", "14:00:00"]
    assert (await calendar.get()).error == ""


async def test_what_an_interval_will_do_in_a_zone_that_is_gone_is_refused_by_its_name(calendar: Calendar) -> None:
    await calendar.create(timing=every(hours=1))
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'Mars/Olympus'")
    with pytest.raises(Refused, match=r"nightly.*Mars/Olympus"):
        await calendar.preview(schedule_id="nightly")


async def test_a_broken_schedule_that_makes_up_for_nothing_skips_what_it_missed(calendar: Calendar) -> None:
    await calendar.create(max_catchup=0)
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'Mars/Olympus'")
    await calendar.go(minutes=61)
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'UTC' where status = 'SCHEDULED'")
    await calendar.go(hours=1)
    assert await calendar.slots() == ["14:00:00"]


async def test_a_batch_of_locked_schedules_keeps_nobody_behind_it(calendar: Calendar) -> None:
    made = [await calendar.create(name) for name in ("a", "b", "c")]
    calendar.firing._batch = 2
    await calendar.skip(hours=1)
    async with calendar.held(made[0].template_run_id), calendar.held(made[1].template_run_id):
        await asyncio.wait_for(calendar.firing.fire_due(), 60)
        assert [await calendar.slots(name) for name in ("a", "b", "c")] == [[], [], ["13:00:00"]]
    await calendar.fire()
    assert [await calendar.slots(name) for name in ("a", "b")] == [["13:00:00"], ["13:00:00"]]


async def test_a_broken_schedule_is_mended_by_an_update(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.connection.execute("update kagzi.workflow_runs set timezone = 'Mars/Olympus'")
    await calendar.go(hours=1)
    still = await calendar.update(priority=3)
    assert "Mars/Olympus" in still.error
    mended = await calendar.update(timezone="Europe/Berlin", timing=cron("0 16 * * *"))
    assert (mended.error, times(mended.next_fire_at)) == ("", ["14:00:00"])


async def test_a_run_that_cannot_be_stored_marks_its_schedule_alone(calendar: Calendar) -> None:
    for name in ("a", "b", "c"):
        await calendar.create(name, workflow_type=operations.TYPE if name != "b" else "impossible")
    await calendar.connection.execute(
        "create function kagzi.no_run() returns trigger language plpgsql as $$ begin"
        " if new.workflow_type = 'impossible' then raise exception 'no'; end if; return new; end $$;"
        " create trigger no_run before insert on kagzi.workflow_runs for each row execute function kagzi.no_run()"
    )
    try:
        await calendar.go(hours=1)
    finally:
        await calendar.connection.execute("drop trigger no_run on kagzi.workflow_runs; drop function kagzi.no_run()")
    assert [len(await calendar.runs(name)) for name in ("a", "b", "c")] == [1, 0, 1]
    assert "RaiseError" in (await calendar.get("b")).error


async def test_a_backfilled_slot_whose_id_a_foreign_run_has_is_told_of(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.pause()
    await calendar.start(external_id="nightly@2026-06-01T13:00:00Z")
    await calendar.skip(hours=1, minutes=1)
    made = await calendar.backfill(NOON + timedelta(minutes=1))
    assert made.started == 1
    assert "nightly@2026-06-01T13:00:00Z" in (await calendar.get()).notice


async def _until(calendar: Calendar, name: str, runs: int) -> None:
    """Waits until a schedule has started so many."""
    async with asyncio.timeout(60):
        while len(await calendar.slots(name)) < runs:  # noqa: ASYNC110 - a database tells nobody
            await asyncio.sleep(0.01)


async def _fired(calendar: Calendar, name: str, runs: int) -> None:
    """Fires what is due, as the loop does, until a schedule has started so many."""
    async with asyncio.timeout(60):
        while len(await calendar.slots(name)) < runs:
            await calendar.firing.fire_due()
            await asyncio.sleep(0.05)


async def test_what_becomes_due_while_a_batch_is_stuck_fires_beside_it(calendar: Calendar) -> None:
    slow = await calendar.create("slow")
    await calendar.create("other", timing=cron("1 13 * * *"))
    await calendar.skip(hours=1)
    fire = calendar.firing._fire

    async def stuck(namespace: str, template_ids: Sequence[str]) -> int:
        if slow.template_run_id in template_ids:
            await calendar.skip(minutes=1)
            await _until(calendar, "other", 1)
        return await fire(namespace, template_ids)

    calendar.firing._fire = stuck  # type: ignore[method-assign]
    await asyncio.wait_for(calendar.firing.fire_due(), 90)
    assert await calendar.slots("slow") == ["13:00:00"]


async def test_a_loop_that_was_stopped_fires_nothing_more(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.skip(hours=1)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stuck(namespace: str, template_ids: Sequence[str]) -> int:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            ended.set()
        raise AssertionError(namespace, template_ids)

    calendar.firing._fire = stuck  # type: ignore[method-assign]
    calendar.firing.start()
    await asyncio.wait_for(begun.wait(), 60)
    await calendar.firing.stop()
    assert ended.is_set()


async def _tried(calendar: Calendar) -> list[Sequence[str]]:
    """Fires what is due; answers which templates were tried together."""
    tried: list[Sequence[str]] = []
    fire = calendar.firing._fire

    async def noted(namespace: str, template_ids: Sequence[str]) -> int:
        tried.append(template_ids)
        return await fire(namespace, template_ids)

    calendar.firing._fire = noted  # type: ignore[method-assign]
    await asyncio.wait_for(calendar.firing.fire_due(), 60)
    calendar.firing._fire = fire  # type: ignore[method-assign]
    return tried


async def test_an_open_transaction_over_the_id_of_a_slot_delays_that_slot_alone(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.create("other")
    await calendar.skip(hours=1)
    stranger = await asyncpg.connect(calendar.url)
    transaction = stranger.transaction()
    await transaction.start()
    await stranger.execute("select kagzi.start_workflow('order', external_id => 'nightly@2026-06-01T13:00:00Z')")
    await _fired(calendar, "other", 1)
    # It is not waited for again together with others, and not looked for before one of them is due.
    await calendar.skip(hours=1)
    tried = await _tried(calendar)
    assert (await calendar.slots(), await calendar.slots("other")) == ([], ["13:00:00", "14:00:00"])
    assert {len(several) for several in tried} == {1}
    assert await calendar.firing.fire_due() == 5
    await transaction.rollback()
    await stranger.close()
    await _fired(calendar, "nightly", 2)
    assert await calendar.slots() == ["13:00:00", "14:00:00"]
