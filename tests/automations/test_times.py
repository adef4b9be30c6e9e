"""When handlers run by time: producers by schedules of their own, consumers at the time they asked to be woken at. All
of it is columns, so that a restart has nothing to recover.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.automations.stage import MAIL, Held, Stage, consumer, event, producer

DAY = 86_400.0


async def _prepared(stage: Stage, held: Held, **by: float) -> float | None:
    """Commits an empty `prepare` that wants to be woken so far from now; gives when it will be, in seconds from now."""
    await stage.prepare(held, wake_at=await stage.now() + timedelta(**by) if by else None)
    wakes_in: float | None = (await stage.handler(held.task.handler))["wakes_in"]
    return wakes_in


@pytest.mark.parametrize(
    ("asked", "given"),
    [({"seconds": 1}, 30), ({"days": -400}, 30), ({"hours": 2}, 7_200), ({"days": 3}, DAY), ({"days": 3_000}, DAY)],
)
async def test_wake_at_is_moved_into_its_bounds_at_both_ends(
    stage: Stage, asked: dict[str, float], given: float
) -> None:
    await stage.deploy(consumer())
    wakes_in = await _prepared(stage, await stage.claim(), **asked)
    assert wakes_in == pytest.approx(given, abs=2)


async def test_the_answer_says_when_it_will_be_woken(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    answer = await stage.prepare(held, wake_at=await stage.now())
    told = answer.wake_at.ToDatetime(UTC)
    assert told == (await stage.handler("add"))["wake_at"]


async def test_wake_at_is_cleared_when_it_is_omitted(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    assert await _prepared(stage, held, hours=1) is not None
    await stage.commit(held)
    await stage.publish(event("m1"))
    held = await stage.claim()
    assert await _prepared(stage, held) is None
    await stage.commit(held)
    await stage.move(hours=2)
    assert await stage.ring() == 0


async def test_an_empty_prepare_with_wake_at_runs_again_then_and_not_before(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await _prepared(stage, held, minutes=5)
    await stage.commit(held)
    await stage.idle()
    await stage.move(minutes=4)
    assert await stage.ring() == 0
    await stage.move(minutes=6)
    assert await stage.ring() == 1
    held = await stage.claim()
    assert held.trigger == "wake"
    # Declined without another time, it waits for an event and does not spin.
    await stage.consume(held)
    await stage.move(days=2)
    assert await stage.ring() == 0
    await stage.publish(event("m1"))
    assert (await stage.claim()).trigger == "event"


async def test_an_empty_prepare_without_wake_at_waits_for_an_event(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.consume(await stage.claim())
    await stage.publish(event("m1"))
    # It is seen and declined.
    await stage.consume(await stage.claim())
    assert not (await stage.handler("add"))["dirty"]
    await stage.idle()
    assert await stage.ring() == 0


async def test_two_consumers_wake_each_at_its_own_time(stage: Stage) -> None:
    await stage.deploy(consumer("digest"), consumer("timeout"))
    for name, hours in (("digest", 9), ("timeout", 2)):
        held = await stage.claim(expect=name)
        await _prepared(stage, held, hours=hours)
        await stage.commit(held)
    await stage.move(hours=3)
    assert await stage.ring() == 1
    held = await stage.claim(expect="timeout")
    assert held.trigger == "wake"
    await stage.consume(held)
    assert await stage.ring() == 0
    await stage.move(hours=10)
    assert await stage.ring() == 1
    assert (await stage.claim(expect="digest")).trigger == "wake"


async def test_a_new_event_wakes_a_consumer_before_its_time(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await _prepared(stage, held, hours=9)
    await stage.commit(held)
    await stage.publish(event("m1"))
    assert (await stage.claim()).trigger == "event"


async def test_a_time_that_has_come_is_told_also_with_an_event_and_until_a_prepare_has_heard_it(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await _prepared(stage, held, hours=1)
    await stage.commit(held)
    await stage.move(hours=2)
    await stage.publish(event("m1"))
    held = await stage.claim()
    assert held.trigger == "wake"
    await stage.fail(held)
    await stage.move(hours=3)
    assert await stage.ring() == 1
    held = await stage.claim()
    assert held.trigger == "wake"
    await stage.consume(held)
    await stage.publish(event("m2"))
    assert (await stage.claim()).trigger == "event"


async def test_a_time_that_comes_while_the_automation_is_busy_is_not_forgotten(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("other"))
    held = await stage.claim(expect="add")
    await _prepared(stage, held, minutes=1)
    await stage.commit(held)
    other = await stage.claim(expect="other")
    await stage.move(minutes=2)
    assert await stage.ring() == 0
    await stage.consume(other)
    assert (await stage.claim(expect="add")).trigger == "wake"


async def test_a_run_that_fails_before_its_prepare_keeps_the_time_it_was_woken_at(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await _prepared(stage, held, minutes=1)
    await stage.commit(held)
    await stage.move(minutes=2)
    await stage.ring()
    before = (await stage.handler("add"))["wake_at"]
    await stage.fail(await stage.claim())
    assert (await stage.handler("add"))["wake_at"] == before


async def test_two_producers_never_touch_each_others_times(stage: Stage) -> None:
    await stage.deploy(producer("often", "300000"), producer("seldom", "3600000"))
    for _ in range(2):
        await stage.commit(await stage.claim())
    often, seldom = await stage.handler("often"), await stage.handler("seldom")
    assert often["runs_in"] == pytest.approx(300, abs=2)
    assert seldom["runs_in"] == pytest.approx(3_600, abs=2)
    ran = {"often": 0, "seldom": 0}
    for minutes in range(5, 61, 5):
        await stage.move(minutes=minutes, seconds=5)
        await stage.ring()
        while held := await stage.claim_all():
            assert held[0].trigger == "schedule"
            ran[held[0].task.handler] += 1
            await stage.commit(held[0])
        if minutes < 60:
            assert (await stage.handler("seldom"))["next_run_at"] == seldom["next_run_at"]
    assert ran == {"often": 12, "seldom": 1}


async def test_a_producer_due_while_the_automation_is_busy_runs_once_afterwards(stage: Stage) -> None:
    await stage.deploy(producer(), consumer())
    await stage.consume(await stage.claim(expect="add"))
    await stage.commit(await stage.claim(expect="poll"))
    await stage.publish(event("m1"))
    add = await stage.claim(expect="add")
    # Three slots pass meanwhile.
    await stage.move(minutes=16)
    assert await stage.ring() == 0
    await stage.consume(add)
    poll = await stage.claim(expect="poll")
    assert poll.trigger == "schedule"
    await stage.commit(poll)
    assert (await stage.handler("poll"))["runs_in"] == pytest.approx(4 * 60, abs=3)
    assert await stage.ring() == 0


async def test_a_producer_runs_once_after_a_long_downtime_and_then_at_its_next_slot(stage: Stage) -> None:
    await stage.deploy(producer())
    await stage.commit(await stage.claim())
    await stage.move(days=30, seconds=10)
    assert await stage.ring() == 1
    await stage.commit(await stage.claim())
    # Anchored to the moment it was deployed, however late it ran.
    assert (await stage.handler("poll"))["runs_in"] == pytest.approx(290, abs=3)
    assert await stage.ring() == 0


async def test_a_cron_producer_follows_its_time_zone(stage: Stage) -> None:
    await stage.deploy(producer(every="0 9 * * *", schedule_type="cron", timezone="Asia/Tokyo"))
    await stage.commit(await stage.claim())
    at: datetime = (await stage.handler("poll"))["next_run_at"]
    assert (at.astimezone(UTC).hour, at.minute) == (0, 0)


async def test_a_manual_run_leaves_the_schedule_alone(stage: Stage) -> None:
    await stage.deploy(producer())
    await stage.commit(await stage.claim())
    before = (await stage.handler("poll"))["next_run_at"]
    await stage.move(minutes=2)
    await stage.run_now()
    await stage.commit(await stage.claim())
    assert (await stage.handler("poll"))["next_run_at"] == before


async def test_the_next_time_is_written_with_the_commit_and_stays_due_until_then(stage: Stage) -> None:
    await stage.deploy(producer())
    held = await stage.claim()
    assert (await stage.handler("poll"))["runs_in"] <= 0
    commit = stage.committing(held, event("m1", input=MAIL), state={"cursor": 7})
    [outcome] = await stage.flush(commit)
    row = await stage.handler("poll")
    assert row["runs_in"] == pytest.approx(300, abs=2)
    assert outcome.alarm == row["next_run_at"]
    assert row["state"] == b'{"cursor":7}'
    assert row["last_run_id"] is not None
