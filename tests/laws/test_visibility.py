"""Law 3, `available_at` is the one clock of visibility: it says when a row may be claimed next, `infinity` waits for
something other than time, and only what can never be due has none. Leases are set to now + timeout, never added to.
"""

from __future__ import annotations

from collections.abc import Callable

import asyncpg
import pytest

from kagzi.protocol.v1.common_pb2 import Failure, RetryPolicy
from kagzi.store import workers
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run
from tests.laws.world import LEASE, World

LEASE_S = LEASE.total_seconds()


def _about(seconds: float) -> object:
    return pytest.approx(seconds, abs=5)


async def test_a_row_is_claimed_when_it_is_due_and_not_before(world: World) -> None:
    now = await world.start()
    later = await world.start(delay_ms=3_600_000)
    assert [run.run_id for run in await world.claim(9)] == [now]
    assert (await world.row(later))["due_s"] == _about(3_600)
    await world.connection.execute("update kagzi.workflow_runs set available_at = kagzi.now() where run_id = $1", later)
    assert [run.run_id for run in await world.claim(9)] == [later]


async def test_a_claim_sets_the_lease_whatever_stood_there(world: World) -> None:
    for past in ("1 s", "1 hour", "100 days"):
        run_id = await world.start()
        await world.connection.execute(
            f"update kagzi.workflow_runs set available_at = kagzi.now() - interval '{past}' where run_id = $1",  # noqa: S608
            run_id,
        )
        [run] = await world.claim()
        assert run.run_id == run_id
        assert (await world.row(run_id))["due_s"] == _about(LEASE_S)


async def _beat(world: World, *held: Run) -> workers.Renewal:
    pairs = [(run.run_id, run.token) for run in held]
    return await world.database.transact(lambda c: workers.renew(c, NAMESPACE, pairs, lease_ms=int(LEASE_S * 1_000)))


async def test_any_number_of_heartbeats_gives_one_lease(world: World) -> None:
    run = await world.running()
    for _ in range(10):
        assert await _beat(world, run) == workers.Renewal()
    assert (await world.row(run.run_id))["due_s"] == _about(LEASE_S)


async def test_a_lease_that_ran_out_and_was_not_taken_is_renewed_to_a_whole_one(world: World) -> None:
    run = await world.running()
    await world.expire(run.run_id)
    assert await _beat(world, run) == workers.Renewal()
    assert (await world.row(run.run_id))["due_s"] == _about(LEASE_S)
    assert await world.claim(9) == []


GIVEN_BACK: list[tuple[str, Callable[[Run], list[Operation]], str, float | None]] = [
    ("release", lambda run: [operations.release(run)], "PENDING", 0.0),
    ("timer", lambda run: [operations.timer(run), operations.suspend(run, "nap")], "SLEEPING", 3_600.0),
    ("met timer", lambda run: [operations.timer(run, duration_ms=0), operations.suspend(run, "nap")], "SLEEPING", 0.0),
    ("signal", lambda run: [operations.await_signal(run), operations.suspend(run, "receive-paid")], "SLEEPING", None),
    ("child", lambda run: [operations.start_child(run), operations.suspend(run, "ship")], "SLEEPING", None),
    (
        "the sooner of two",
        lambda run: [
            operations.timer(run, "nap", 1, 60_000),
            operations.await_signal(run, "paid", 2, duration_ms=600_000),
            operations.suspend(run, "nap", "receive-paid"),
        ],
        "SLEEPING",
        60.0,
    ),
    (
        "retry of a step",
        lambda run: [
            operations.fail_step(run, retry=RetryPolicy(initial_interval_ms=50_000)),
            operations.suspend(run, "charge"),
        ],
        "SLEEPING",
        50.0,
    ),
    (
        "retry of a step by replay",
        lambda run: [operations.fail_step_and_give_back(run, retry=RetryPolicy(initial_interval_ms=50_000))],
        "PENDING",
        50.0,
    ),
    ("retry of the whole", lambda run: [operations.fail(run)], "PENDING", 40.0),
    (
        "retry when the error says",
        lambda run: [operations.fail(run, failure=Failure(type="Busy", retry_after_ms=90_000))],
        "PENDING",
        90.0,
    ),
]


@pytest.mark.parametrize(("what", "given", "status", "due"), GIVEN_BACK, ids=[case[0] for case in GIVEN_BACK])
async def test_a_run_that_is_given_back_says_when_it_is_due(
    world: World, what: str, given: Callable[[Run], list[Operation]], status: str, due: float | None
) -> None:
    run = await world.running(retry=RetryPolicy(maximum_attempts=2, initial_interval_ms=40_000))
    applied = given(run)
    await world.flush(*applied)
    assert not any(operation.refused for operation in applied)
    row = await world.row(run.run_id)
    assert row["status"] == status
    assert row["due_s"] == (None if due is None else _about(due))
    assert row["waits"] == (due is None)
    claimed = [one.run_id for one in await world.claim(9)]
    assert (run.run_id in claimed) == (due == 0.0)


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_what_has_ended_has_no_such_time(world: World, status: str) -> None:
    run = await world.running()
    ending = {
        "COMPLETED": operations.complete(run),
        "FAILED": operations.fail(run),
        "CANCELLED": operations.terminate(run.run_id),
    }
    await world.flush(ending[status])
    row = await world.row(run.run_id)
    assert (row["status"], row["available_at"]) == (status, None)


@pytest.mark.parametrize(
    ("status", "column"),
    [
        *((status, "available_at = null") for status in ("PENDING", "RUNNING", "SLEEPING")),
        *((status, "available_at = kagzi.now()") for status in ("COMPLETED", "FAILED", "CANCELLED", "PAUSED")),
    ],
)
async def test_the_database_refuses_a_row_that_contradicts_its_status(world: World, status: str, column: str) -> None:
    run = await world.running()
    ended = "kagzi.now()" if status in ("COMPLETED", "FAILED", "CANCELLED") else "null"
    token = "claim_token" if status == "RUNNING" else "null"
    change = f"status = '{status}', finished_at = {ended}, claim_token = {token}, {column}"
    with pytest.raises(asyncpg.CheckViolationError, match="run_available"):
        await world.connection.execute(f"update kagzi.workflow_runs set {change} where run_id = $1", run.run_id)  # noqa: S608
