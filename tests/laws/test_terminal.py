"""Law 7, terminal is terminal: COMPLETED, FAILED and CANCELLED rows change no more, and exactly one writer gets
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import product

import pytest

from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, RUNNING, ErrorDetail
from kagzi.store import leases, runs, upkeep, workers
from kagzi.store.errors import Refused
from kagzi.store.operation import Operation, Outcome
from tests.laws import operations
from tests.laws.operations import EVERY_WRITE, NAMESPACE, Run
from tests.laws.world import World
from tests.store.given import new_id

ENDINGS: dict[str, Callable[[Run], Operation]] = {
    "COMPLETED": operations.complete,
    "FAILED": operations.fail,
    "CANCELLED": lambda run: operations.terminate(run.run_id),
}


async def _ended(world: World, status: str) -> Run:
    run = await world.running(timeout_ms=1)
    ending = ENDINGS[status](run)
    await world.flush(operations.timer(run), ending)
    assert not ending.refused
    assert (await world.row(run.run_id))["status"] == status
    return run


@pytest.mark.parametrize("status", ENDINGS)
async def test_no_operation_changes_what_has_ended(world: World, status: str) -> None:
    run = await _ended(world, status)
    before = await world.contents()
    clients = [operations.cancel(run.run_id), operations.terminate(run.run_id), operations.signal(run.run_id)]
    for operation in [*clients, *(make(run) for make in EVERY_WRITE.values())]:
        await world.flush(operation)
        assert await world.contents() == before, operation.kind.name
    assert clients[2].refused, "an acknowledged signal would be lost"


@pytest.mark.parametrize("status", ENDINGS)
async def test_no_duty_of_the_server_changes_what_has_ended(world: World, status: str) -> None:
    run = await _ended(world, status)
    before = await world.contents()
    held = [(run.run_id, run.token)]
    assert await world.claim(9) == []
    assert await world.database.transact(lambda c: leases.put_back(c, NAMESPACE, held)) == set()
    await world.database.transact(lambda c: workers.renew(c, NAMESPACE, held, lease_ms=30_000))
    await world.database.transact(lambda c: upkeep.expire(c, NAMESPACE, [run.run_id], timedelta(0)))
    with pytest.raises(Refused):
        await world.database.transact(lambda c: runs.resume(c, NAMESPACE, run.run_id, new_id()))
    assert await world.contents() == before


@pytest.mark.parametrize(("first", "second"), list(product(ENDINGS, ENDINGS)))
async def test_of_two_endings_in_one_batch_the_first_one_wins(world: World, first: str, second: str) -> None:
    run = await world.running()
    winner, loser = ENDINGS[first](run), ENDINGS[second](run)
    [outcome] = await world.flush(winner, loser)
    row = await world.row(run.run_id)
    assert row["status"] == first
    assert [ended.status for ended in outcome.ended] == [first], "its end is told once"
    if second == "CANCELLED":
        assert loser.answer is not None
        assert loser.answer.status == winner.answer.status  # type: ignore[union-attr]
    else:
        assert isinstance(loser.answer, ErrorDetail)
    if first == "COMPLETED":
        output = await world.connection.fetchval(
            "select output from kagzi.workflow_payloads where run_id = $1", run.run_id
        )
        assert output == winner.body.output.data


async def test_a_signal_behind_the_end_of_its_run_in_one_batch_is_refused(world: World) -> None:
    run = await world.running()
    late = operations.signal(run.run_id)
    await world.flush(operations.complete(run), late)
    assert isinstance(late.answer, ErrorDetail)
    assert late.answer.code == ErrorDetail.PRECONDITION_FAILED
    assert await world.count("signals") == 0


async def _until_it_has_its_answer(world: World, operation: Operation) -> Outcome:
    """As a side lane does: again, until nobody has the run locked."""
    while True:
        [outcome] = await world.flush(operation)
        if operation.refused or hasattr(operation.answer, "status"):
            return outcome


async def test_of_cancel_terminate_and_complete_at_once_one_ends_the_run_and_all_are_told_how(world: World) -> None:
    seen = set()
    for number in range(60):
        run = await world.running()
        complete = operations.complete(run)
        cancel = operations.cancel(run.run_id)
        terminate = operations.terminate(run.run_id)
        racers = [complete, cancel, terminate]
        order = [racers[(number + shift) % 3] for shift in range(3)]
        outcomes = await asyncio.gather(*(_until_it_has_its_answer(world, operation) for operation in order))
        status = (await world.row(run.run_id))["status"]
        seen.add(status)
        assert [ended.status for outcome in outcomes for ended in outcome.ended] == [status]
        assert complete.refused == (status != "COMPLETED")
        told = {"COMPLETED": COMPLETED, "CANCELLED": CANCELLED}[status]
        assert terminate.answer.status == told  # type: ignore[union-attr]
        assert cancel.answer.status in (told, RUNNING)  # type: ignore[union-attr]
    assert seen == {"COMPLETED", "CANCELLED"}, "the race was always won by the same"
