"""Law 2, one transition, one transaction: what must be true together is written together. The connection is cut before
each statement of a transition in turn; what is stored is then either all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from kagzi.protocol.v1.common_pb2 import SIGNAL, Payload, RetryPolicy
from kagzi.store.errors import Unreachable
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.world import World
from tests.proxy import Proxy

Transition = Callable[[World], Awaitable[Callable[[], Awaitable[object]]]]


def _flush(world: World, *given: Operation) -> Callable[[], Awaitable[object]]:
    return lambda: world.flush(*given, patience=0.0)


async def _starts_with_inputs(world: World) -> Callable[[], Awaitable[object]]:
    first = await world.start(external_id="a")
    assert first
    replace = operations.start(external_id="a", on_conflict=3, input=Payload(data=b"1"))
    return _flush(world, replace, operations.start(external_id="b", input=Payload(data=b"2")))


async def _end_of_a_child_and_the_waking_of_its_parent(world: World) -> Callable[[], Awaitable[object]]:
    parent = await world.running()
    start = operations.start_child(parent)
    await world.flush(start, operations.suspend(parent, "ship"))
    [child] = await world.claim()
    assert child.run_id == start.body.child.run_id
    return _flush(world, operations.complete_step(child), operations.complete(child))


async def _signal_and_the_waking_of_its_run(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running()
    await world.flush(operations.await_signal(run), operations.suspend(run, "receive-paid"))
    return _flush(world, operations.signal(run.run_id, payload=Payload(data=b"1")))


async def _receipt_of_a_signal_and_its_step(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running()
    sent = operations.signal(run.run_id)
    waits = operations.await_signal(run)
    await world.flush(waits, sent)
    received = operations.complete_step(
        run, waits.body.step_id, kind=SIGNAL, attempt_id=waits.body.attempt_id, signal_id=sent.body.signal_id
    )
    return _flush(world, received)


async def _child_and_the_step_that_starts_it(world: World) -> Callable[[], Awaitable[object]]:
    parent = await world.running()
    return _flush(world, operations.start_child(parent, input=Payload(data=b"1")), operations.suspend(parent, "ship"))


async def _failure_with_what_it_sets_aside(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running(retry=RetryPolicy(maximum_attempts=3))
    child = operations.start_child(run, "ship", position=2)
    await world.flush(operations.complete_step(run), child)
    return _flush(world, operations.fail(run, failed_step_id="charge"))


async def _successor(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running(external_id="a", dedupe=2)
    await world.flush(operations.signal(run.run_id))
    return _flush(world, operations.continue_as_new(run))


async def _unary_sleep(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running()
    return _flush(world, operations.sleep(run))


async def _unary_failure(world: World) -> Callable[[], Awaitable[object]]:
    run = await world.running()
    return _flush(world, operations.fail_step_and_give_back(run))


async def _poisoned_claim(world: World) -> Callable[[], Awaitable[object]]:
    parent = await world.running()
    await world.flush(operations.start_child(parent), operations.suspend(parent, "ship"))
    [child] = await world.claim()
    await world.connection.execute("update kagzi.workflow_runs set crashes = 4 where run_id = $1", child.run_id)
    await world.expire(child.run_id)
    return lambda: world.deliveries(suspects=(True,), patience=0.0)


TRANSITIONS: list[Transition] = [
    _starts_with_inputs,
    _end_of_a_child_and_the_waking_of_its_parent,
    _signal_and_the_waking_of_its_run,
    _receipt_of_a_signal_and_its_step,
    _child_and_the_step_that_starts_it,
    _failure_with_what_it_sets_aside,
    _successor,
    _unary_sleep,
    _unary_failure,
    _poisoned_claim,
]


@pytest.mark.parametrize("transition", TRANSITIONS, ids=lambda one: one.__name__.strip("_"))
async def test_a_connection_cut_anywhere_in_a_transition_leaves_nothing_of_it(
    fragile: World, proxy: Proxy, transition: Transition
) -> None:
    begin = await transition(fragile)
    before = await fragile.contents()
    for statement in range(1, 50):
        proxy.cut_before, proxy.cuts = statement, 0
        try:
            await begin()
        except Unreachable:
            assert proxy.cuts == 1
            assert await fragile.contents() == before, f"something was left by the statements before the {statement}th"
        else:
            break
    assert proxy.cuts == 0, "the transition was never let through"
    assert statement > 2, "a transition of one statement proves nothing"
    assert await fragile.contents() != before
