"""Law 10, one lock order, and the locks of the fine print: rows are locked `FOR NO KEY UPDATE` by key, what somebody
else holds is skipped and waits apart, and deadlocks and serialisation errors are retried inside the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import REPLACE, RetryPolicy
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowResponse
from kagzi.store import batch, leases, upkeep, workers
from kagzi.store.errors import Unreachable
from kagzi.store.operation import BUSY, Operation
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run
from tests.laws.world import LEASE, SETTINGS, World


async def _deadlocks(world: World) -> int:
    await world.connection.execute("select pg_stat_force_next_flush()")
    count: int = await world.connection.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    return count


async def test_a_deadlock_is_retried_inside_the_store(world: World) -> None:
    """Two transactions lock two runs in opposite orders, each waiting for the other; both take effect."""
    first, second = await world.start(), await world.start()
    both_have_one = asyncio.Barrier(2)
    tries = 0

    def lock(*run_ids: str) -> Callable[[Connection], Awaitable[None]]:
        tried = False

        async def work(connection: Connection) -> None:
            nonlocal tries, tried
            tries += 1
            await connection.execute("set local lock_timeout = 0; set local deadlock_timeout = '20ms'")
            for number, run_id in enumerate(run_ids):
                await connection.execute(
                    "update kagzi.workflow_runs set attempts = attempts + 1 where run_id = $1", run_id
                )
                if number == 0 and not tried:
                    tried = True
                    await both_have_one.wait()

        return work

    await asyncio.gather(world.database.transact(lock(first, second)), world.database.transact(lock(second, first)))
    assert tries >= 3, "nobody was in anybody's way"
    for run_id in (first, second):
        assert (await world.row(run_id))["attempts"] == 2


async def test_a_serialisation_error_is_retried_inside_the_store(world: World) -> None:
    run_id = await world.start()
    tries = 0

    async def work(connection: Connection) -> None:
        nonlocal tries
        tries += 1
        await connection.execute("set transaction isolation level repeatable read")
        await connection.fetch("select from kagzi.workflow_runs")
        if tries == 1:
            await world.connection.execute("update kagzi.workflow_runs set attempts = 7 where run_id = $1", run_id)
        await connection.execute("update kagzi.workflow_runs set attempts = attempts + 1 where run_id = $1", run_id)

    await world.database.transact(work)
    assert tries == 2
    assert (await world.row(run_id))["attempts"] == 8


async def test_a_row_that_stays_locked_is_waited_for_no_longer_than_asked(world: World) -> None:
    run_id = await world.start()

    async def work(connection: Connection) -> None:
        await connection.execute("select from kagzi.workflow_runs where run_id = $1 for no key update", run_id)

    async with world.held(run_id):
        with pytest.raises(Unreachable):
            await world.database.transact(work, patience=0.3)
    await world.database.transact(work)


async def test_batches_over_the_same_runs_in_opposite_orders_never_deadlock(world: World) -> None:
    runs = [await world.running() for _ in range(20)]
    before = await _deadlocks(world)

    async def write(order: list[Run], number: int) -> None:
        for turn in range(10):
            left = [operations.complete_step(run, f"s{number}-{turn}", number * 10 + turn + 1) for run in order]
            while left:
                await world.flush(*left)
                left = [operation for operation in left if operation.answer is BUSY]

    await asyncio.gather(write(runs, 0), write(runs[::-1], 1), write(runs[10:] + runs[:10], 2))
    assert await world.count("step_runs") == 600
    assert await _deadlocks(world) == before


async def test_starts_with_the_same_external_ids_in_opposite_orders_never_deadlock(world: World) -> None:
    """Whoever meets an id that somebody else inserts waits for it before it has inserted what that one wants next."""
    before = await _deadlocks(world)
    given = [operations.start(external_id=name) for name in "ba"]
    async with world.slowly() as patient:
        async with world.uncommitted(operations.start(external_id="a")) as connection:
            starting = asyncio.create_task(patient.flush(*given))
            await world.until("select count(*) = 1 from pg_locks where not granted")
            await batch.apply(connection, NAMESPACE, [operations.start(external_id="b")], LEASE)
        await starting
    answers = [operation.answer for operation in given]
    assert [isinstance(answer, StartWorkflowResponse) and answer.already_exists for answer in answers] == [True, True]
    assert await world.count("workflow_runs") == 2
    assert await _deadlocks(world) == before


@pytest.mark.parametrize("lock", ["key share", "share"])
async def test_a_share_lock_of_a_foreign_key_hides_no_row(world: World, lock: str) -> None:
    """A user's table may point at runs: its foreign key's check holds FOR KEY SHARE until its transaction ends."""
    waiting, held = await world.start(), await world.running()
    pair = [(held.run_id, held.token)]
    visible = lock == "key share"
    async with world.held(waiting, lock), world.held(held.run_id, lock):
        assert (await world.claim() != []) == visible
        renewal = await world.database.transact(lambda c: workers.renew(c, NAMESPACE, pair, lease_ms=30_000))
        assert (renewal.busy == ()) == visible
        operation = operations.complete_step(held)
        await world.flush(operation)
        assert (operation.answer is not BUSY) == visible
        put_back = await world.database.transact(lambda c: leases.put_back(c, NAMESPACE, pair))
        assert (put_back != set()) == visible


async def test_a_silent_worker_and_a_late_run_are_found_under_a_share_lock(world: World) -> None:
    run = await world.running(timeout_ms=1)
    await world.connection.execute("update kagzi.workflow_runs set deadline_at = kagzi.now() - interval '1 s'")
    async with world.held(run.run_id, "key share"):
        await world.database.transact(lambda c: upkeep.expire(c, NAMESPACE, [run.run_id], timedelta(seconds=30)))
    assert (await world.row(run.run_id))["cancel_requested_at"] is not None


async def test_a_caller_that_holds_one_run_delays_that_run_alone(world: World) -> None:
    """Its rows are skipped, whatever is written for the others in the same batch and the same heartbeat."""
    blocked, free = await world.running(), [await world.running() for _ in range(5)]
    async with world.held(blocked.run_id):
        given = [operations.complete_step(run) for run in (*free, blocked)]
        await world.flush(*given)
        assert [operation.answer is BUSY for operation in given] == [False] * 5 + [True]
        assert await world.count("step_runs") == 5
        pairs = [(run.run_id, run.token) for run in (*free, blocked)]
        renewal = await world.database.transact(lambda c: workers.renew(c, NAMESPACE, pairs, lease_ms=30_000))
        assert renewal == workers.Renewal(busy=((blocked.run_id, blocked.token),))
    await world.flush(given[-1])
    assert not given[-1].refused
    assert await world.count("step_runs") == 6


async def _a_child_of_the_held(world: World, held: Run) -> Operation:
    start = operations.start_child(held, "other", 7)
    await world.flush(start)
    [child] = await world.claim()
    return operations.complete(child)


async def _a_parent_of_the_held(world: World, held: Run) -> Operation:
    parent = await world.running(retry=RetryPolicy(maximum_attempts=1))
    await world.connection.execute(
        "update kagzi.workflow_runs set parent_run_id = $1 where run_id = $2", parent.run_id, held.run_id
    )
    return operations.fail(parent)


async def _a_start_in_place_of_the_held(world: World, held: Run) -> Operation:
    await world.connection.execute("update kagzi.workflow_runs set external_id = 'x' where run_id = $1", held.run_id)
    return operations.start(external_id="x", on_conflict=REPLACE)


@pytest.mark.parametrize(
    "make", [_a_child_of_the_held, _a_parent_of_the_held, _a_start_in_place_of_the_held], ids=lambda one: one.__name__
)
async def test_what_concerns_a_held_run_besides_its_own_waits_apart_too(
    world: World, make: Callable[[World, Run], Awaitable[Operation]]
) -> None:
    held = await world.running()
    blocked = await make(world, held)
    free = [await world.running() for _ in range(5)]
    given = [operations.complete_step(run) for run in free]
    given.insert(2, blocked)
    async with world.held(held.run_id):
        await asyncio.wait_for(world.flush(*given), 5)
        assert [operation.answer is BUSY for operation in given] == [number == 2 for number in range(6)]
    await world.flush(blocked)
    assert blocked.answer is not BUSY
    assert not blocked.refused


async def test_a_start_waits_apart_for_a_caller_that_inserts_the_same_external_id(world: World) -> None:
    caller = await asyncpg.connect(world.url, server_settings=SETTINGS)
    transaction = caller.transaction()
    await transaction.start()
    await caller.execute(
        "insert into kagzi.workflow_runs (namespace, run_id, external_id, task_queue, workflow_type, status,"
        " available_at) values ('default', gen_random_uuid(), 'x', 'default', 'order', 'PENDING', kagzi.now())"
    )
    run = await world.running()
    start, step = operations.start(external_id="x"), operations.complete_step(run)
    await asyncio.wait_for(world.flush(start, step), 5)
    assert start.answer is BUSY
    assert not step.refused
    assert step.answer is not BUSY
    await transaction.rollback()
    await caller.close()
    await world.flush(start)
    assert isinstance(start.answer, StartWorkflowResponse)
    assert not start.answer.already_exists
