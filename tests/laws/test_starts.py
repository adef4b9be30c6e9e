"""Starting twice is one run. The run id is compared first, whatever `on_conflict` says; an external id names at most
one active run, and one that was taken for ever stays taken, also for whoever looked just before.
"""

from __future__ import annotations

import asyncio

import pytest

from kagzi.protocol.v1.common_pb2 import FOREVER, PENDING, REJECT, REPLACE, RETURN_EXISTING, ErrorDetail
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowResponse
from kagzi.store.operation import Operation, Slot
from tests.laws import operations
from tests.laws.operations import Run, new_id
from tests.laws.world import World

each_policy = pytest.mark.parametrize("policy", [RETURN_EXISTING, REJECT, REPLACE])


def _answer(operation: Operation) -> StartWorkflowResponse:
    assert isinstance(operation.answer, StartWorkflowResponse), operation.answer
    return operation.answer


@each_policy
async def test_a_start_with_a_known_run_id_is_answered_as_the_first_time(world: World, policy: int) -> None:
    first = operations.start(external_id="x", on_conflict=policy)
    await world.flush(first)
    again = operations.start(first.run_id, external_id="x", on_conflict=policy)
    await world.flush(again)
    assert _answer(again) == _answer(first)
    assert await world.count("workflow_runs") == 1
    assert (await world.row(first.run_id))["status"] == "PENDING", "it replaced itself"


@each_policy
async def test_two_starts_with_one_run_id_in_one_batch_are_one_run(world: World, policy: int) -> None:
    run_id = new_id()
    given = [operations.start(run_id, external_id="x", on_conflict=policy) for _ in range(3)]
    await world.flush(*given)
    assert {str(_answer(operation)) for operation in given} == {str(_answer(given[0]))}
    assert await world.count("workflow_runs") == 1


async def test_two_starts_with_one_run_id_that_find_places_take_one(world: World) -> None:
    run_id = new_id()
    given = [operations.start(run_id) for _ in range(2)]
    slots = [Slot(new_id(), new_id()) for _ in given]
    for operation, slot in zip(given, slots, strict=True):
        operation.slot = slot
    [outcome] = await world.flush(*given)
    assert len(outcome.handed) == 1
    assert outcome.handed[0].slot is not None
    assert str((await world.row(run_id))["claim_token"]) == outcome.handed[0].slot.token


async def test_a_run_id_of_another_external_id_is_still_the_first_run(world: World) -> None:
    first = await world.start(external_id="x")
    again = operations.start(first, external_id="y", on_conflict=REJECT)
    await world.flush(again)
    assert _answer(again).run_id == first
    assert (await world.row(first))["external_id"] == "x"


async def test_an_external_id_names_one_active_run(world: World) -> None:
    given = [operations.start(external_id="x") for _ in range(5)]
    await asyncio.gather(*(world.flush(operation) for operation in given))
    assert len({_answer(operation).run_id for operation in given}) == 1
    assert sorted(_answer(operation).already_exists for operation in given) == [False] + [True] * 4
    assert await world.count("workflow_runs") == 1


async def test_a_replaced_run_ends_in_the_transaction_that_replaces_it(world: World) -> None:
    old = await world.running(external_id="x")
    new = operations.start(external_id="x", on_conflict=REPLACE)
    [outcome] = await world.flush(new)
    assert _answer(new) == StartWorkflowResponse(run_id=new.run_id, status=PENDING)
    assert (await world.row(old.run_id))["status"] == "CANCELLED"
    assert [ended.run_id for ended in outcome.ended] == [old.run_id]
    late = operations.complete(old)
    await world.flush(late)
    assert late.refused


async def test_many_who_replace_at_once_leave_one_active_run(world: World) -> None:
    given = [operations.start(external_id="x", on_conflict=REPLACE) for _ in range(8)]

    async def start(operation: Operation) -> None:
        while True:
            await world.flush(operation)
            if isinstance(operation.answer, StartWorkflowResponse):
                return

    await asyncio.gather(*(start(operation) for operation in given))
    statuses = [(await world.row(operation.run_id))["status"] for operation in given]
    assert sorted(statuses) == ["CANCELLED"] * 7 + ["PENDING"]


@each_policy
@pytest.mark.parametrize("ending", [operations.complete, operations.fail, None], ids=["completed", "failed", "active"])
async def test_an_external_id_for_ever_outlives_its_run(world: World, policy: int, ending: object) -> None:
    first = await world.running(external_id="x", dedupe=FOREVER)
    if callable(ending):
        await world.flush(ending(first))
    again = operations.start(external_id="x", on_conflict=policy)
    await world.flush(again)
    if policy == REJECT:
        assert isinstance(again.answer, ErrorDetail)
        assert again.answer.code == ErrorDetail.CONFLICT
    else:
        assert _answer(again).run_id == first.run_id
        assert _answer(again).already_exists
        assert ending is not None or (await world.row(first.run_id))["status"] == "RUNNING", "nothing took its place"
    active = await world.connection.fetchval("select count(*) from kagzi.workflow_runs where external_id = 'x'")
    assert active == 1


async def test_who_looked_just_before_an_id_was_taken_for_ever_and_given_up_does_not_get_it(world: World) -> None:
    """The start has its snapshot, in which nobody has the id; then a run takes it for ever and ends. Of the three
    unique indexes none stands in the way: the start has to look again.
    """
    await world.connection.execute(
        "create or replace function kagzi.now() returns timestamptz language plpgsql stable as $$ begin"
        " if current_setting('application_name') = 'slow' then perform pg_advisory_xact_lock_shared(42); end if;"
        " return statement_timestamp(); end $$"
    )
    await world.connection.execute("select pg_advisory_lock(42)")
    late = operations.start(external_id="x")
    async with world.slowly() as slow:
        starting = asyncio.create_task(slow.flush(late))
        await world.until("select count(*) = 1 from pg_locks where locktype = 'advisory' and not granted")
        owner: Run = await world.running(external_id="x", dedupe=FOREVER)
        await world.flush(operations.complete(owner))
        await world.connection.execute("select pg_advisory_unlock(42)")
        await starting
    assert _answer(late).run_id == owner.run_id
    assert _answer(late).already_exists
    assert await world.count("workflow_runs") == 1


async def test_a_delayed_start_is_not_handed_to_a_free_place(world: World) -> None:
    run_id = await world.start(delay_ms=60_000)
    row = await world.row(run_id)
    assert (row["status"], row["due_s"] > 50) == ("PENDING", True)
