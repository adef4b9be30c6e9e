"""The answer to a COMMIT may be lost although it took effect. The store then repeats the whole transaction, recognises
what is its own, and answers as it would have: every effect once, every caller told the truth.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kagzi.protocol.v1.common_pb2 import REJECT, REPLACE, SIGNAL, RetryPolicy
from kagzi.store import rows
from kagzi.store.operation import Kind, Operation, Slot
from tests.laws import operations
from tests.laws.operations import EVERY_WRITE, Run, new_id
from tests.laws.parts import Place, dispatching, reserved
from tests.laws.world import Contents, World
from tests.proxy import Proxy

Given = Callable[[World], Awaitable[list[Operation]]]


async def _lost_once(world: World, proxy: Proxy, given: list[Operation]) -> None:
    proxy.answers_to_lose, proxy.cuts = 1, 0
    await world.flush(*given)
    assert proxy.cuts == 1, "no answer was lost"


def _told(given: list[Operation]) -> list[tuple[str, Any]]:
    """What the callers were told, without ids and times."""
    told = []
    for operation in given:
        assert operation.answer is not None
        fields = {
            field.name: value
            for field, value in operation.answer.ListFields()  # type: ignore[union-attr]
            if not field.name.endswith(("_id", "_us", "_ms", "step", "signal"))
        }
        if operation.kind is Kind.FAIL_STEP_AND_GIVE_BACK:
            # A repeat is known by its attempt; its call makes the same response of either answer.
            told.append(("FailStep", fields.get("scheduled_retry", fields.get("will_retry"))))
        else:
            told.append((type(operation.answer).__name__, fields))
    return told


def _sizes(contents: Contents) -> dict[str, int]:
    return {table: len(rows) for table, rows in contents.items()}


async def _start(world: World) -> list[Operation]:
    return [operations.start(), operations.start(external_id=new_id(), on_conflict=REJECT)]


async def _replacing_start(world: World) -> list[Operation]:
    name = new_id()
    await world.start(external_id=name)
    return [operations.start(external_id=name, on_conflict=REPLACE)]


async def _second_start(world: World) -> list[Operation]:
    name = new_id()
    await world.start(external_id=name)
    return [operations.start(external_id=name)]


async def _signal(world: World) -> list[Operation]:
    run = await world.running()
    await world.flush(operations.await_signal(run), operations.suspend(run, "receive-paid"))
    return [operations.signal(run.run_id)]


async def _cancel_before_the_first_claim(world: World) -> list[Operation]:
    return [operations.cancel(await world.start())]


async def _cancel(world: World) -> list[Operation]:
    return [operations.cancel((await world.running()).run_id)]


async def _terminate(world: World) -> list[Operation]:
    return [operations.terminate((await world.running()).run_id)]


def _write(kind: Kind) -> Given:
    async def given(world: World) -> list[Operation]:
        run = await world.running(retry=RetryPolicy(maximum_attempts=1))
        await world.flush(operations.timer(run, "nap", position=9))
        return [EVERY_WRITE[kind](run)]

    return given


async def _failure_that_is_retried(world: World) -> list[Operation]:
    run = await world.running(retry=RetryPolicy(maximum_attempts=3))
    return [operations.fail(run)]


async def _receipt_of_a_signal(world: World) -> list[Operation]:
    run = await world.running()
    sent, waits = operations.signal(run.run_id), operations.await_signal(run)
    await world.flush(sent, waits)
    attempt = waits.body.attempt_id
    return [
        operations.complete_step(
            run, waits.body.step_id, kind=SIGNAL, attempt_id=attempt, signal_id=sent.body.signal_id
        )
    ]


def _last_frame(last: Callable[[Run], Operation]) -> Given:
    """Everything a worker may send in one frame before it gives its run away."""

    async def given(world: World) -> list[Operation]:
        run = await world.running()
        return [
            operations.complete_step(run, "charge", 1),
            operations.fail_step(run, "mail", 2),
            operations.timer(run, "nap", 3),
            operations.start_child(run, "ship", 4),
            operations.set_state(run),
            operations.wait(run),
            last(run),
        ]

    return given


CASES: dict[str, Given] = {
    "start": _start,
    "start that replaces": _replacing_start,
    "start of a known external id": _second_start,
    "signal": _signal,
    "cancel": _cancel,
    "cancel before the first claim": _cancel_before_the_first_claim,
    "terminate": _terminate,
    "failure that is retried": _failure_that_is_retried,
    "receipt of a signal": _receipt_of_a_signal,
    **{kind.name.lower(): _write(kind) for kind in EVERY_WRITE},
    "frame that suspends": _last_frame(lambda run: operations.suspend(run, "nap")),
    "frame that releases": _last_frame(operations.release),
    "frame that completes": _last_frame(operations.complete),
    "frame that fails": _last_frame(operations.fail),
    "frame that continues": _last_frame(operations.continue_as_new),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_commit_whose_answer_was_lost_takes_effect_once_and_is_answered_the_same(
    fragile: World, proxy: Proxy, case: Given
) -> None:
    before = _sizes(await fragile.contents())
    given = await case(fragile)
    await fragile.flush(*given)
    assert not any(operation.refused for operation in given)
    undisturbed = _sizes(await fragile.contents())
    grown = {table: undisturbed[table] - before[table] for table in before}

    again = await case(fragile)
    await _lost_once(fragile, proxy, again)
    assert _told(again) == _told(given)
    after = _sizes(await fragile.contents())
    assert {table: after[table] - undisturbed[table] for table in before} == grown


@pytest.mark.parametrize(
    "kind", [Kind.RELEASE, Kind.SUSPEND, Kind.FAIL, Kind.FAIL_STEP_AND_GIVE_BACK], ids=lambda k: k.name
)
async def test_a_repeat_is_answered_as_the_first_time_although_somebody_else_has_the_run_now(
    world: World, kind: Kind
) -> None:
    run = await world.running(retry=RetryPolicy(maximum_attempts=3, initial_interval_ms=1))
    await world.flush(operations.timer(run, "nap", position=9, duration_ms=0))
    given = EVERY_WRITE[kind](run)
    if kind is Kind.FAIL_STEP_AND_GIVE_BACK:
        given.body.retry.initial_interval_ms = 1
    await world.flush(given)
    told = _told([given])
    await world.until("select bool_and(available_at < kagzi.now()) from kagzi.workflow_runs")
    [other] = await world.claim()
    assert other.run_id == run.run_id
    before = await world.contents()
    await world.flush(given)
    assert _told([given]) == told
    assert await world.contents() == before


async def test_a_hand_over_whose_commit_was_not_answered_is_recognised_by_its_token(
    fragile: World, proxy: Proxy
) -> None:
    start = operations.start()
    slot = start.slot = Slot(new_id(), new_id())
    proxy.answers_to_lose = 1
    [outcome] = await fragile.flush(start)
    assert proxy.cuts == 1
    assert outcome.handed == [start]
    assert start.slot == slot
    row = await fragile.row(start.run_id)
    assert (row["status"], str(row["claim_token"]), str(row["locked_by"])) == ("RUNNING", slot.token, slot.worker_id)
    assert start.now == row["started_at"], "the worker would believe in a longer lease than it has"


async def test_a_hand_over_is_delivered_once_when_its_commit_was_not_answered(fragile: World, proxy: Proxy) -> None:
    place = Place(2)
    async with dispatching(fragile.database, interval=60.0) as (dispatcher, batcher):
        dispatcher.join(place)
        dispatcher.restore(await reserved(dispatcher))
        proxy.answers_to_lose, proxy.cuts = 1, 0
        start = operations.start()
        await batcher.ask(start)
        assert proxy.cuts == 1
        [delivery] = await place.has(1)
    row = await fragile.row(start.run_id)
    assert delivery.run_id == start.run_id
    assert delivery.claim_token == str(row["claim_token"])
    assert delivery.lease_until_us == rows.microseconds(row["available_at"]), "it would believe in a longer lease"
    assert place.free == 1


async def test_a_claim_whose_commit_was_not_answered_is_recognised_by_its_tokens(fragile: World, proxy: Proxy) -> None:
    """Nothing is claimed twice for the same places, nothing is forgotten, and no crash is counted."""
    runs = {await fragile.start() for _ in range(5)}
    place = Place(8)
    proxy.answers_to_lose, proxy.cuts = 1, 0
    async with dispatching(fragile.database) as (dispatcher, _):
        dispatcher.join(place)
        given = await place.has(5)
        assert proxy.cuts == 1
    assert {delivery.run_id for delivery in given} == runs
    assert len(given) == 5
    for delivery in given:
        row = await fragile.row(delivery.run_id)
        assert (str(row["claim_token"]), row["crashes"]) == (delivery.claim_token, 0)
    assert place.free == 3


async def test_every_commit_of_a_run_may_lose_its_answer(fragile: World, proxy: Proxy) -> None:
    proxy.answers_to_lose = 1_000
    start = operations.start()
    slot = start.slot = Slot(new_id(), new_id())
    run = Run(start.run_id, slot.token)
    # Each flush commits twice: the second time it finds its own, and that answer is lost as well.
    for given in (
        [start],
        [operations.complete_step(run, "charge", 1)],
        [operations.await_signal(run, position=2)],
        [operations.signal(run.run_id)],
        [operations.complete(run)],
    ):
        proxy.answers_to_lose = 3
        await fragile.flush(*given, patience=10.0)
        assert not given[0].refused, given[0].answer
    row = await fragile.row(run.run_id)
    assert row["status"] == "COMPLETED"
    assert [step["status"] for step in await fragile.steps(run.run_id)] == ["COMPLETED", "RUNNING"]
    assert await fragile.count("signals") == 1
