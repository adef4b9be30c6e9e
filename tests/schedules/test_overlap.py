"""What a slot does while the run before it has not ended, under each policy, and how the end of that run lets the next
one go. Nothing is lost when both happen at once.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import CANCELLED, PENDING, RetryPolicy
from kagzi.store import batch, forks
from kagzi.store.endings import expire
from kagzi.store.operation import Outcome
from tests.laws import operations
from tests.laws.operations import Run, new_id
from tests.laws.world import LEASE
from tests.schedules.calendar import Calendar

QUEUE_ONE, SKIP, CANCEL = pb.OVERLAP_QUEUE_ONE, pb.OVERLAP_SKIP, pb.OVERLAP_CANCEL_PREVIOUS


async def states(calendar: Calendar) -> list[str]:
    """The runs by slot: how each is, or that it waits for the one before."""
    return ["waits" if run["waits"] else run["status"] for run in await calendar.runs()]


async def slow(calendar: Calendar, overlap: pb.ScheduleOverlap.ValueType, **fields: Any) -> Run:
    """A schedule whose first run is in a worker's hands."""
    await calendar.create(overlap=overlap, **fields)
    await calendar.go(hours=1)
    return await calendar.take()


async def test_both_run_unless_told_otherwise(calendar: Calendar) -> None:
    await slow(calendar, pb.OVERLAP_UNSPECIFIED)
    await calendar.go(hours=2)
    assert await states(calendar) == ["RUNNING", "PENDING", "PENDING"]


async def test_skip_leaves_slots_out_until_the_run_has_ended(calendar: Calendar) -> None:
    run = await slow(calendar, SKIP)
    await calendar.go(hours=2)
    assert await calendar.slots() == ["13:00:00"]
    await calendar.end(run)
    await calendar.go(hours=2)
    assert await calendar.slots() == ["13:00:00", "16:00:00"]
    assert (await calendar.get()).runs_started == 2


async def test_queue_one_lets_one_run_wait_for_the_end_of_the_other(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    await calendar.go(hours=3)
    assert await states(calendar) == ["RUNNING", "waits"]
    assert await calendar.slots() == ["13:00:00", "14:00:00"]
    assert await calendar.due() == []
    [outcome] = await calendar.flush(operations.complete(run))
    assert outcome.due == {"default"}
    assert await states(calendar) == ["COMPLETED", "PENDING"]
    second = await calendar.take()
    await calendar.go(hours=1)
    assert await states(calendar) == ["COMPLETED", "RUNNING", "waits"]
    await calendar.end(second)
    assert await states(calendar) == ["COMPLETED", "COMPLETED", "PENDING"]


async def test_cancel_previous_asks_the_run_to_end_and_waits_for_it(calendar: Calendar) -> None:
    run = await slow(calendar, CANCEL)
    await calendar.go(hours=1)
    assert await states(calendar) == ["RUNNING", "waits"]
    row = await calendar.row(run.run_id)
    assert row["cancel_requested_at"] is not None
    assert run.run_id in calendar.announcer.outcomes[-1].told
    await calendar.flush(operations.fail(run))
    assert await states(calendar) == ["CANCELLED", "PENDING"]


async def test_cancel_previous_takes_the_place_of_a_run_that_never_started(calendar: Calendar) -> None:
    await calendar.create(overlap=CANCEL)
    await calendar.go(hours=3)
    assert await states(calendar) == ["CANCELLED", "CANCELLED", "PENDING"]


async def test_cancel_previous_takes_the_place_of_the_one_that_waits(calendar: Calendar) -> None:
    run = await slow(calendar, CANCEL)
    await calendar.go(hours=3)
    assert await states(calendar) == ["RUNNING", "CANCELLED", "CANCELLED", "waits"]
    await calendar.end(run)
    assert await states(calendar) == ["COMPLETED", "CANCELLED", "CANCELLED", "PENDING"]


@pytest.mark.parametrize(
    ("overlap", "kept"),
    [(SKIP, ["17:00:00"]), (QUEUE_ONE, ["16:00:00", "17:00:00"]), (CANCEL, ["17:00:00"])],
)
async def test_of_missed_slots_the_newest_that_fit_are_kept(
    calendar: Calendar, overlap: pb.ScheduleOverlap.ValueType, kept: list[str]
) -> None:
    await calendar.create(overlap=overlap)
    await calendar.skip(hours=5)
    await calendar.fire()
    assert await calendar.slots() == kept
    run = await calendar.take()
    assert await states(calendar) == ["RUNNING", "waits"][: len(kept)]
    await calendar.end(run)
    assert await states(calendar) == ["COMPLETED", "PENDING"][: len(kept)]


async def _completed(calendar: Calendar, run: Run) -> None:
    await calendar.flush(operations.complete(run))


async def _failed(calendar: Calendar, run: Run) -> None:
    await calendar.flush(operations.fail(run))


async def _terminated(calendar: Calendar, run: Run) -> None:
    await calendar.flush(operations.terminate(run.run_id))


async def _expired(calendar: Calendar, run: Run) -> None:
    await calendar.database.transact(lambda c: expire(c, "default", [run.run_id], Outcome()))


async def _poisoned(calendar: Calendar, run: Run) -> None:
    await calendar.connection.execute("update kagzi.workflow_runs set crashes = 4 where run_id = $1", run.run_id)
    await calendar.expire(run.run_id)
    assert await calendar.claim() == []


async def _cancelled_before_it_began(calendar: Calendar, run: Run) -> None:
    await calendar.connection.execute(
        "update kagzi.workflow_runs set status = 'PENDING', claim_token = null, locked_by = null, started_at = null"
        " where run_id = $1",
        run.run_id,
    )
    await calendar.flush(operations.cancel(run.run_id))


async def _replaced(calendar: Calendar, run: Run) -> None:
    row = await calendar.row(run.run_id)
    await calendar.start(external_id=row["external_id"], on_conflict=3)


ENDS = [_completed, _failed, _terminated, _expired, _poisoned, _cancelled_before_it_began, _replaced]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
async def test_however_the_run_ends_the_next_one_goes_on(calendar: Calendar, end: object) -> None:
    run = await slow(calendar, QUEUE_ONE)
    await calendar.go(hours=1)
    assert await states(calendar) == ["RUNNING", "waits"]
    await end(calendar, run)  # type: ignore[operator]
    [_, second] = await calendar.runs()
    assert (second["status"], second["waits"]) == ("PENDING", False)
    assert (await calendar.row(run.run_id))["status"] in ("COMPLETED", "FAILED", "CANCELLED")


async def test_a_run_that_is_tried_again_has_not_ended(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE, retry=RetryPolicy(maximum_attempts=2))
    await calendar.go(hours=1)
    await calendar.flush(operations.fail(run))
    assert await states(calendar) == ["PENDING", "waits"]


async def test_a_run_that_continues_as_new_has_not_ended_and_keeps_its_slot(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    await calendar.go(hours=1)
    goes_on = operations.continue_as_new(run)
    await calendar.flush(goes_on)
    assert sorted(await states(calendar)) == ["COMPLETED", "PENDING", "waits"]
    [successor] = await calendar.claim()
    assert successor.run_id == goes_on.body.new_run_id
    row = await calendar.row(successor.run_id)
    assert row["scheduled_for"] == (await calendar.row(run.run_id))["scheduled_for"]
    await calendar.end(successor)
    assert sorted(await states(calendar)) == ["COMPLETED", "COMPLETED", "PENDING"]


async def test_skip_counts_a_run_that_continued_as_new(calendar: Calendar) -> None:
    run = await slow(calendar, SKIP)
    await calendar.flush(operations.continue_as_new(run))
    await calendar.go(hours=1)
    assert await calendar.slots() == ["13:00:00", "13:00:00"]


async def test_the_next_one_waits_for_all_that_run(calendar: Calendar) -> None:
    first = await slow(calendar, pb.OVERLAP_ALLOW)
    await calendar.go(hours=1)
    second = await calendar.take()
    await calendar.update(overlap=QUEUE_ONE)
    await calendar.go(hours=1)
    assert await states(calendar) == ["RUNNING", "RUNNING", "waits"]
    await calendar.end(second)
    assert await states(calendar) == ["RUNNING", "COMPLETED", "waits"]
    await calendar.end(first)
    assert await states(calendar) == ["COMPLETED", "COMPLETED", "PENDING"]


async def test_of_two_that_end_at_once_the_last_lets_the_next_one_go(calendar: Calendar) -> None:
    for round_ in range(10):
        name = f"s{round_}"
        await calendar.create(name)
        runs = [(await calendar.trigger(name)).run_id for _ in range(2)]
        held = {run.run_id: run for run in await calendar.claim(2)}
        waiting = (await calendar.trigger(name, overlap=QUEUE_ONE)).run_id
        await asyncio.gather(*(calendar.flush(operations.complete(held[run_id])) for run_id in runs))
        for run_id in runs:
            # Whoever met the other at the template waits for a moment, as a side lane does.
            if (await calendar.row(run_id))["status"] == "RUNNING":
                await calendar.flush(operations.complete(held[run_id]))
        assert (await calendar.row(waiting))["waits"] is False
        [next_] = await calendar.claim(2)
        await calendar.end(next_)


async def test_an_end_waits_for_a_firing_under_way_and_then_lets_its_run_go(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    template_id = (await calendar.get()).template_run_id
    await calendar.go(hours=1)
    end = operations.complete(run)
    async with calendar.held(template_id):
        await calendar.flush(end)
        assert (await calendar.row(run.run_id))["status"] == "RUNNING"
    await calendar.flush(end)
    assert await states(calendar) == ["COMPLETED", "PENDING"]


async def test_an_end_that_nobody_waits_for_does_not_wait_for_the_template(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    async with calendar.held((await calendar.get()).template_run_id):
        await calendar.end(run)
    assert await states(calendar) == ["COMPLETED"]


async def test_a_slot_waits_for_an_end_under_way_to_be_told(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    await calendar.skip(hours=1)
    async with calendar.uncommitted(operations.complete(run)):
        await asyncio.wait_for(calendar.fire(), 5)
        assert await calendar.slots() == ["13:00:00"]
    await calendar.fire()
    assert await states(calendar) == ["COMPLETED", "PENDING"]


async def test_a_deleted_schedule_leaves_nobody_waiting_for_ever(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE)
    await calendar.go(hours=1)
    waiting = (await calendar.runs())[-1]["run_id"]
    await calendar.delete()
    await calendar.end(run)
    assert (await calendar.row(waiting))["waits"] is False


async def test_of_two_that_end_at_once_after_their_schedule_was_deleted_the_last_lets_the_next_one_go(
    calendar: Calendar,
) -> None:
    await calendar.create()
    for _ in range(2):
        await calendar.trigger()
    first, second = await calendar.due()
    waiting = (await calendar.trigger(overlap=QUEUE_ONE)).run_id
    await calendar.delete()
    async with calendar.uncommitted(operations.complete(first)):
        await calendar.flush(operations.complete(second))
        assert (await calendar.row(second.run_id))["status"] == "RUNNING"
    await calendar.flush(operations.complete(second))
    assert (await calendar.row(waiting))["waits"] is False


async def test_a_waiting_run_that_is_cancelled_leaves_its_place_to_the_next_slot(calendar: Calendar) -> None:
    await slow(calendar, QUEUE_ONE)
    await calendar.go(hours=1)
    waiting = str((await calendar.runs())[-1]["run_id"])
    await calendar.flush(operations.cancel(waiting))
    await calendar.go(hours=1)
    assert await states(calendar) == ["RUNNING", "CANCELLED", "waits"]


async def test_a_trigger_obeys_the_policy_or_one_of_its_own(calendar: Calendar) -> None:
    run = await slow(calendar, SKIP)
    skipped = await calendar.trigger()
    assert (skipped.skipped, skipped.run_id) == (True, "")
    both = await calendar.trigger(overlap=pb.OVERLAP_ALLOW)
    assert (both.skipped, both.status) == (False, PENDING)
    queued = await calendar.trigger(overlap=QUEUE_ONE)
    assert (await calendar.row(queued.run_id))["waits"]
    assert (await calendar.trigger(overlap=QUEUE_ONE)).skipped
    last = await calendar.trigger(overlap=CANCEL)
    assert (await calendar.row(last.run_id))["waits"]
    assert (await calendar.row(queued.run_id))["status"] == "CANCELLED"
    assert (await calendar.trigger(run_id=both.run_id)).status == CANCELLED
    await calendar.end(run)
    assert (await calendar.row(last.run_id))["waits"] is False


async def test_a_trigger_waits_for_whoever_holds_a_run_of_the_schedule(calendar: Calendar) -> None:
    run = await slow(calendar, SKIP)
    async with calendar.held(run.run_id):
        asked = asyncio.create_task(calendar.trigger(run_id=new_id()))
        done, _ = await asyncio.wait({asked}, timeout=0.1)
        assert not done
    assert (await asked).skipped


async def test_only_an_end_that_somebody_waits_for_asks_the_database_more(calendar: Calendar) -> None:
    unawaited = await slow(calendar, pb.OVERLAP_ALLOW)
    await calendar.pause()
    plain = await calendar.running()
    awaited = await slow(calendar, QUEUE_ONE, schedule_id="queued")
    await calendar.go(hours=1)
    # The first time the driver asks for types of its own.
    await _statements(calendar, await calendar.running())
    costs = [await _statements(calendar, one) for one in (plain, unawaited, awaited)]
    assert costs[1] == costs[0]
    assert costs[2] == costs[0] + 2


async def _statements(calendar: Calendar, run: Run) -> int:
    """How many statements the end of a run takes."""
    counted: list[object] = []
    with calendar.connection.query_logger(counted.append):
        async with calendar.connection.transaction():
            await batch.apply(calendar.connection, "default", [operations.complete(run)], LEASE)
    assert (await calendar.row(run.run_id))["status"] == "COMPLETED"
    return len(counted)


async def test_a_run_that_waits_is_not_held_up_by_one_that_nobody_waits_for(calendar: Calendar) -> None:
    first = await slow(calendar, pb.OVERLAP_ALLOW)
    waiting = (await calendar.trigger(overlap=QUEUE_ONE)).run_id
    await calendar.go(hours=1)
    second = await calendar.take()
    await calendar.end(first)
    await calendar.end(second)
    assert (await calendar.row(waiting))["waits"] is False


async def test_the_time_limit_of_a_run_that_waits_counts_from_the_end_of_the_one_before(calendar: Calendar) -> None:
    run = await slow(calendar, QUEUE_ONE, timeout_ms=7_200_000)
    await calendar.go(hours=1)
    [_, waiting] = await calendar.runs()
    assert (waiting["waits"], waiting["deadline_at"]) == (True, None)
    await calendar.skip(minutes=30)
    [outcome] = await calendar.flush(operations.complete(run))
    assert outcome.deadline
    assert (await calendar.row(str(waiting["run_id"])))["deadline_at"] == calendar.now + timedelta(hours=2)


async def test_a_run_that_never_got_its_turn_has_its_time_limit_when_it_is_retried(calendar: Calendar) -> None:
    await slow(calendar, QUEUE_ONE, timeout_ms=7_200_000)
    await calendar.go(hours=1)
    waiting = str((await calendar.runs())[-1]["run_id"])
    await calendar.flush(operations.cancel(waiting))
    again = new_id()
    await calendar.database.transact(lambda c: forks.retry(c, "default", waiting, again, Outcome()))
    assert (await calendar.row(again))["deadline_at"] == calendar.now + timedelta(hours=2)
