"""No wake-up is lost. Suspend locks its run and then looks; whoever may wake a run locks it first, whatever its status.
Each pair is tried in both orders, the first one uncommitted while the second arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from kagzi.protocol.v1.worker_pb2 import EndAnswer
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.operations import Run
from tests.laws.parts import batching
from tests.laws.world import World


@dataclass(frozen=True, slots=True)
class Meeting:
    """A run about to be suspended and what is about to wake it."""

    run: Run
    suspend: Operation
    wake: Operation


async def _signal(world: World) -> Meeting:
    run = await world.running()
    await world.flush(operations.await_signal(run))
    return Meeting(run, operations.suspend(run, "receive-paid"), operations.signal(run.run_id))


async def _cancel(world: World) -> Meeting:
    run = await world.running()
    await world.flush(operations.await_signal(run))
    return Meeting(run, operations.suspend(run, "receive-paid"), operations.cancel(run.run_id))


async def _with_child(world: World) -> tuple[Run, Run]:
    run = await world.running()
    await world.flush(operations.start_child(run))
    [child] = await world.claim()
    return run, child


async def _childs_completion(world: World) -> Meeting:
    run, child = await _with_child(world)
    return Meeting(run, operations.suspend(run, "ship"), operations.complete(child))


async def _childs_failure(world: World) -> Meeting:
    run, child = await _with_child(world)
    return Meeting(run, operations.suspend(run, "ship"), operations.fail(child))


async def _childs_termination(world: World) -> Meeting:
    run, child = await _with_child(world)
    return Meeting(run, operations.suspend(run, "ship"), operations.terminate(child.run_id))


async def _cancel_of_a_child_that_never_started(world: World) -> Meeting:
    run = await world.running()
    start = operations.start_child(run)
    await world.flush(start)
    return Meeting(run, operations.suspend(run, "ship"), operations.cancel(start.body.child.run_id))


async def _end_of_a_childs_successor(world: World) -> Meeting:
    run, child = await _with_child(world)
    await world.flush(operations.continue_as_new(child))
    [successor] = await world.claim()
    return Meeting(run, operations.suspend(run, "ship"), operations.complete(successor))


MEETINGS: list[Callable[[World], Awaitable[Meeting]]] = [
    _signal,
    _cancel,
    _childs_completion,
    _childs_failure,
    _childs_termination,
    _cancel_of_a_child_that_never_started,
    _end_of_a_childs_successor,
]
each_meeting = pytest.mark.parametrize("meeting", MEETINGS, ids=lambda one: one.__name__.strip("_"))


async def _is_due(world: World, run: Run) -> None:
    row = await world.row(run.run_id)
    assert row["status"] == "SLEEPING"
    assert row["due_s"] is not None, "it sleeps over what it waits for"
    assert row["due_s"] <= 0
    assert run.run_id in [one.run_id for one in await world.claim(9)]


@each_meeting
async def test_what_arrives_while_a_suspension_is_uncommitted_wakes_the_run(
    world: World, meeting: Callable[[World], Awaitable[Meeting]]
) -> None:
    met = await meeting(world)
    async with batching(world.database) as batcher:
        async with world.uncommitted(met.suspend):
            waking = asyncio.create_task(batcher.ask(met.wake))
            await asyncio.wait({waking}, timeout=0.2)
            assert not waking.done(), "it was answered before it could know"
        await waking
    await _is_due(world, met.run)


@each_meeting
async def test_a_suspension_sees_what_was_uncommitted_when_it_arrived(
    world: World, meeting: Callable[[World], Awaitable[Meeting]]
) -> None:
    met = await meeting(world)
    async with batching(world.database) as batcher:
        async with world.uncommitted(met.wake):
            suspending = asyncio.create_task(batcher.ask(met.suspend))
            await asyncio.wait({suspending}, timeout=0.2)
            assert not suspending.done(), "it was answered before it could know"
        answer = await suspending
    assert isinstance(answer, EndAnswer)
    assert answer.HasField("available_at_us")
    await _is_due(world, met.run)


@each_meeting
async def test_a_suspension_and_what_wakes_it_may_share_a_batch(
    world: World, meeting: Callable[[World], Awaitable[Meeting]]
) -> None:
    for order in (1, -1):
        met = await meeting(world)
        await world.flush(*[met.suspend, met.wake][::order])
        assert not met.suspend.refused
        assert not met.wake.refused
        await _is_due(world, met.run)


@each_meeting
async def test_in_a_free_race_the_run_is_always_due(
    world: World, meeting: Callable[[World], Awaitable[Meeting]]
) -> None:
    async with batching(world.database) as one, batching(world.database) as another:
        for _ in range(10):
            met = await meeting(world)
            await asyncio.gather(one.ask(met.suspend), another.ask(met.wake))
            await _is_due(world, met.run)


async def test_what_a_run_does_not_wait_for_does_not_wake_it(world: World) -> None:
    run = await world.running()
    await world.flush(operations.await_signal(run, "paid"), operations.suspend(run, "receive-paid"))
    [outcome] = await world.flush(operations.signal(run.run_id, "shipped"))
    row = await world.row(run.run_id)
    assert (row["status"], row["waits"]) == ("SLEEPING", True)
    assert outcome.due == set()


async def test_a_cancel_that_is_in_the_history_wakes_nobody_again(world: World) -> None:
    """A sleep in `finally` would spin otherwise."""
    run = await world.running()
    recorded = operations.complete_step(run, "cancel", 1, kind=6)
    await world.flush(operations.cancel(run.run_id), recorded, operations.timer(run, position=2))
    await world.flush(operations.suspend(run, "nap"))
    row = await world.row(run.run_id)
    assert (row["status"], row["due_s"] > 3_000) == ("SLEEPING", True)


async def test_a_claim_sees_a_result_that_was_committed_while_it_was_under_way(world: World) -> None:
    """A claim that read the history in its own statement would read an older snapshot than the lock it got."""
    run = await world.running()
    await world.expire(run.run_id)
    # While the session named here waits for the lock 42, its statement has its snapshot and no row.
    await world.connection.execute(
        "create or replace function kagzi.now() returns timestamptz language plpgsql stable as $$ begin"
        " if current_setting('application_name') = 'slow' then perform pg_advisory_xact_lock_shared(42); end if;"
        " return statement_timestamp(); end $$"
    )
    await world.connection.execute("select pg_advisory_lock(42)")
    step = operations.complete_step(run)

    async with world.slowly() as slow:
        claiming = asyncio.create_task(slow.deliveries(suspects=(False,)))
        await world.until("select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted")
        await world.flush(step)
        assert not step.refused
        await world.connection.execute("select pg_advisory_unlock(42)")
        [delivery] = await claiming
    assert [recorded.attempt_id for recorded in delivery.history] == [step.body.attempt_id]
