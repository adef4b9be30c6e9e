"""Crashes: claiming a row whose lease ran out counts one, any accepted result, suspension or release sets the count to
0, and at the fifth the run is FAILED as poisoned instead of being handed out again, by the same ending as any other.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from kagzi.protocol.v1.common_pb2 import RetryPolicy
from kagzi.store import claims, leases, workers
from kagzi.store.operation import Operation, Outcome, Slot
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run, new_id
from tests.laws.world import LEASE, SERVED, World


async def _crash(world: World, run_id: str) -> Run:
    """Its lease runs out and it is claimed again."""
    await world.expire(run_id)
    [run] = await world.claim()
    assert run.run_id == run_id
    return run


async def _crashes(world: World, run_id: str) -> int:
    crashes: int = (await world.row(run_id))["crashes"]
    return crashes


async def test_each_lease_that_ran_out_counts_one(world: World) -> None:
    run = await world.running()
    for count in range(1, 5):
        run = await _crash(world, run.run_id)
        assert await _crashes(world, run.run_id) == count
        assert (await world.row(run.run_id))["status"] == "RUNNING"


async def test_at_the_fifth_it_is_poisoned_and_handed_to_nobody(world: World) -> None:
    run = await world.running()
    for _ in range(4):
        run = await _crash(world, run.run_id)
    await world.expire(run.run_id)
    assert await world.claim() == []
    row = await world.row(run.run_id)
    assert (row["status"], row["crashes"], row["claim_token"], row["locked_by"]) == ("FAILED", 5, None, None)
    assert msgspec.json.decode(row["error"])["type"] == "Poisoned"
    late = operations.complete_step(run)
    await world.flush(late)
    assert late.refused


GETS_ON: dict[str, Callable[[Run], list[Operation]]] = {
    "a result": lambda run: [operations.complete_step(run)],
    "a failed attempt": lambda run: [operations.fail_step(run)],
    "the last failed attempt of a unary worker": lambda run: [
        operations.fail_step_and_give_back(run, retry=RetryPolicy(maximum_attempts=1))
    ],
    "a failed attempt of a unary worker": lambda run: [operations.fail_step_and_give_back(run)],
    "a suspension": lambda run: [operations.timer(run), operations.suspend(run, "nap")],
    "a release": lambda run: [operations.release(run)],
}
GETS_NOWHERE: dict[str, Callable[[Run], list[Operation]]] = {
    "a step that begins": lambda run: [operations.start_step(run)],
    "a document": lambda run: [operations.set_state(run)],
    "a wait": lambda run: [operations.wait(run)],
    "a refused result": lambda run: [operations.complete_step(run, "a\0b")],
    "a result with another token": lambda run: [operations.complete_step(Run(run.run_id, new_id()))],
    "a signal from outside": lambda run: [operations.signal(run.run_id)],
}


@pytest.mark.parametrize("given", GETS_ON.values(), ids=GETS_ON)
async def test_a_run_that_gets_on_is_suspected_no_longer(world: World, given: Callable[[Run], list[Operation]]) -> None:
    run = await world.running()
    run = await _crash(world, await _crash_id(world, run))
    await world.flush(*given(run))
    assert await _crashes(world, run.run_id) == 0


async def _crash_id(world: World, run: Run) -> str:
    return (await _crash(world, run.run_id)).run_id


@pytest.mark.parametrize("given", GETS_NOWHERE.values(), ids=GETS_NOWHERE)
async def test_nothing_else_resets_the_count(world: World, given: Callable[[Run], list[Operation]]) -> None:
    run = await _crash(world, (await world.running()).run_id)
    await world.flush(*given(run))
    assert await _crashes(world, run.run_id) == 1


async def test_a_renewed_lease_is_no_crash_and_forgives_none(world: World) -> None:
    run = await _crash(world, (await world.running()).run_id)
    await world.expire(run.run_id)
    held = [(run.run_id, run.token)]
    await world.database.transact(lambda c: workers.renew(c, NAMESPACE, held, lease_ms=30_000))
    assert await _crashes(world, run.run_id) == 1
    assert await world.claim(9) == []


async def test_a_run_that_is_put_back_because_it_never_arrived_counts_no_crash(world: World) -> None:
    run = await world.running()
    await world.database.transact(lambda c: leases.put_back(c, NAMESPACE, [(run.run_id, run.token)]))
    [again] = await world.claim()
    assert again.run_id == run.run_id
    assert await _crashes(world, run.run_id) == 0


async def test_a_run_that_waited_out_its_timer_counts_no_crash(world: World) -> None:
    run = await world.running()
    await world.flush(operations.timer(run, duration_ms=0), operations.suspend(run, "nap"))
    [again] = await world.claim()
    assert again.run_id == run.run_id
    assert await _crashes(world, run.run_id) == 0


async def _poison(world: World, run_id: str) -> Outcome:
    await world.connection.execute("update kagzi.workflow_runs set crashes = 4 where run_id = $1", run_id)
    await world.expire(run_id)
    outcome = Outcome()
    slots = [Slot(new_id(), new_id())]
    claimed = await world.database.transact(
        lambda c: claims.claim(c, SERVED, slots, LEASE, outcome, expired_too=True, suspects=True)
    )
    assert claimed == []
    return outcome


async def test_the_end_of_a_poisoned_run_is_an_end_like_any_other(world: World) -> None:
    """Its parent is made due, whoever watches is told, its children are asked to end."""
    parent = await world.running()
    await world.flush(operations.start_child(parent), operations.suspend(parent, "ship"))
    [child] = await world.claim()
    held, waiting = operations.start_child(child, "a", 1), operations.start_child(child, "b", 2)
    await world.flush(held)
    [grandchild] = await world.claim()
    await world.flush(waiting)

    outcome = await _poison(world, child.run_id)

    ended = {(run.run_id, run.status) for run in outcome.ended}
    assert ended == {(child.run_id, "FAILED"), (waiting.body.child.run_id, "CANCELLED")}
    assert all(run.parent_run_id for run in outcome.ended)
    assert outcome.due == {"default"}
    assert outcome.told == [grandchild.run_id]
    assert (await world.row(grandchild.run_id))["cancel_requested_at"] is not None
    row = await world.row(parent.run_id)
    assert (row["status"], row["due_s"] <= 0) == ("SLEEPING", True)
    [delivery] = await world.deliveries()
    assert delivery.run_id == parent.run_id
    [fact] = delivery.facts
    assert fact.child_ended.failure.type == "Poisoned"


async def test_a_poisoned_run_frees_its_external_id(world: World) -> None:
    run = await world.running(external_id="x")
    await _poison(world, run.run_id)
    again = operations.start(external_id="x")
    await world.flush(again)
    assert again.answer is not None
    assert not again.answer.already_exists  # type: ignore[union-attr]
