"""Law 1, fenced: every write of a worker carries the token of its claim, locks the run's row first, and compares the
token of the locked version. A token that is not the current one changes nothing and is answered LEASE_LOST.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import (
    STEP_ABANDONED,
    STEP_FAILED,
    STEP_INTERRUPTED,
    STEP_UNKNOWN,
    ErrorDetail,
    StepStatus,
)
from kagzi.store import claims, leases
from kagzi.store.operation import BUSY, Kind, Operation, Outcome, Slot
from tests.laws import operations
from tests.laws.operations import EVERY_WRITE, NAMESPACE, Run, new_id
from tests.laws.world import LEASE, SERVED, World

Loss = Callable[[World, Run], Awaitable[Run]]


async def _never_had_it(world: World, run: Run) -> Run:
    return Run(run.run_id, new_id())


async def _claimed_by_another(world: World, run: Run) -> Run:
    await world.expire(run.run_id)
    [other] = await world.claim()
    assert other.run_id == run.run_id
    return run


async def _claimed_again_by_the_same_worker(world: World, run: Run) -> Run:
    worker = (await world.row(run.run_id))["locked_by"]
    await world.expire(run.run_id)
    [again] = await world.claim(worker_id=str(worker))
    assert again.run_id == run.run_id
    return run


async def _gave_it_away(world: World, run: Run) -> Run:
    await world.flush(operations.release(run))
    return run


async def _terminated(world: World, run: Run) -> Run:
    await world.flush(operations.terminate(run.run_id))
    return run


async def _completed(world: World, run: Run) -> Run:
    await world.flush(operations.complete(run))
    return run


LOSSES: list[Loss] = [
    _never_had_it,
    _claimed_by_another,
    _claimed_again_by_the_same_worker,
    _gave_it_away,
    _terminated,
    _completed,
]


async def _prepared(world: World) -> Run:
    """A run for which every operation would take effect."""
    run = await world.running()
    await world.flush(operations.timer(run, "nap", position=9))
    return run


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__.strip("_"))
async def test_a_write_without_the_current_token_changes_nothing(world: World, loss: Loss) -> None:
    run = await loss(world, await _prepared(world))
    before = await world.contents()
    for kind, make in EVERY_WRITE.items():
        operation = make(run)
        await world.flush(operation)
        assert isinstance(operation.answer, ErrorDetail), kind.name
        assert operation.answer.code == ErrorDetail.LEASE_LOST, kind.name
        assert await world.contents() == before, kind.name


@pytest.mark.parametrize("said", [STEP_FAILED, STEP_ABANDONED, STEP_INTERRUPTED, STEP_UNKNOWN], ids=StepStatus.Name)
@pytest.mark.parametrize("became", ["in doubt", "settled", "failed"])
async def test_what_became_of_an_attempt_is_no_repeat_of_something_else(
    world: World, became: str, said: StepStatus.ValueType
) -> None:
    """An effect keeps its attempt in the hands of the next worker: the one before says what it saw of it, too late."""
    run = await world.running()
    effect = operations.start_step(run, "pay", effect=True)
    attempt = effect.body.attempt_id
    await world.flush(effect)
    await world.expire(run.run_id)
    [other] = await world.claim()
    doubt = operations.fail_step(other, "pay", attempt_id=attempt, outcome=STEP_UNKNOWN)
    await world.flush(doubt)
    if became == "settled":
        await world.flush(operations.complete_step(other, "pay", attempt_id=attempt))
    elif became == "failed":
        await world.flush(operations.fail_step(other, "pay", attempt_id=attempt))
    before = await world.contents()
    late = operations.fail_step(run, "pay", attempt_id=attempt, outcome=said)
    await world.flush(late)
    repeats = {"in doubt": STEP_UNKNOWN, "failed": STEP_FAILED}.get(became)
    assert late.refused == (said != repeats), late.answer
    assert await world.contents() == before
    # Who has the run may say again what it said, also of a doubt that it has settled since.
    await world.flush(doubt)
    assert not doubt.refused, doubt.answer
    assert await world.contents() == before


@pytest.mark.parametrize("kind", EVERY_WRITE, ids=lambda kind: kind.name.lower())
async def test_the_same_write_with_the_current_token_takes_effect(world: World, kind: Kind) -> None:
    run = await _prepared(world)
    before = await world.contents()
    operation = EVERY_WRITE[kind](run)
    await world.flush(operation)
    assert not operation.refused, operation.answer
    assert await world.contents() != before


async def test_a_batch_of_old_and_current_tokens_writes_for_the_current_ones_alone(world: World) -> None:
    old = [await _claimed_by_another(world, await world.running()) for _ in range(3)]
    current = [await world.running() for _ in range(3)]
    given = [operations.complete_step(run) for pair in zip(old, current, strict=True) for run in pair]
    await world.flush(*given)
    assert [operation.refused for operation in given] == [True, False] * 3
    assert await world.count("step_runs") == 3


@pytest.mark.parametrize("kind", EVERY_WRITE, ids=lambda kind: kind.name.lower())
async def test_a_write_that_meets_an_uncommitted_claim_waits_and_is_then_refused(world: World, kind: Kind) -> None:
    run = await _prepared(world)
    await world.expire(run.run_id)
    operation = EVERY_WRITE[kind](run)
    claimed, committed = asyncio.Event(), asyncio.Event()

    async def claim_slowly() -> None:
        async def claim(connection: Connection) -> None:
            slot = Slot(new_id(), new_id())
            assert await claims.claim(connection, SERVED, [slot], LEASE, Outcome(), expired_too=True)
            claimed.set()
            await committed.wait()

        await world.database.transact(claim)

    claiming = asyncio.create_task(claim_slowly())
    await claimed.wait()
    before = await world.contents()
    await world.flush(operation)
    assert operation.answer is BUSY
    assert await world.contents() == before
    committed.set()
    await claiming
    before = await world.contents()
    await world.flush(operation)
    assert isinstance(operation.answer, ErrorDetail)
    assert operation.answer.code == ErrorDetail.LEASE_LOST
    assert await world.contents() == before


async def test_a_claim_skips_a_run_for_which_a_write_is_uncommitted(world: World) -> None:
    run = await world.running()
    await world.expire(run.run_id)
    async with world.uncommitted(operations.complete_step(run)):
        assert await world.claim() == []
    [claimed] = await world.claim()
    assert claimed.run_id == run.run_id


@pytest.mark.parametrize("last", [operations.release, operations.complete, operations.fail], ids=lambda op: op.__name__)
async def test_a_write_after_the_end_of_its_token_is_refused_in_the_same_batch_too(
    world: World, last: Callable[[Run], Operation]
) -> None:
    for kind, make in EVERY_WRITE.items():
        run = await _prepared(world)
        ending, late = last(run), make(run)
        steps, runs = await world.count("step_runs"), await world.count("workflow_runs")
        await world.flush(ending, late)
        assert not ending.refused, kind.name
        assert isinstance(late.answer, ErrorDetail), kind.name
        assert late.answer.code == ErrorDetail.LEASE_LOST, kind.name
        assert (await world.count("step_runs"), await world.count("workflow_runs")) == (steps, runs), kind.name


async def test_a_write_behind_a_terminate_in_its_batch_is_refused(world: World) -> None:
    for kind, make in EVERY_WRITE.items():
        run = await _prepared(world)
        steps, runs = await world.count("step_runs"), await world.count("workflow_runs")
        late = make(run)
        await world.flush(operations.terminate(run.run_id), late)
        assert isinstance(late.answer, ErrorDetail), kind.name
        assert late.answer.code == ErrorDetail.LEASE_LOST, kind.name
        assert (await world.count("step_runs"), await world.count("workflow_runs")) == (steps, runs), kind.name
        assert (await world.row(run.run_id))["status"] == "CANCELLED"


async def test_a_late_put_back_takes_nothing_from_the_new_holder(world: World) -> None:
    run = await world.running()
    await world.expire(run.run_id)
    [again] = await world.claim()
    assert again.token != run.token
    late = [(run.run_id, run.token)]
    assert await world.database.transact(lambda c: leases.put_back(c, NAMESPACE, late)) == set()
    held = await world.connection.fetchval("select claim_token from kagzi.workflow_runs where run_id = $1", run.run_id)
    assert str(held) == again.token
