"""Which worker gets a run that one of them keeps in memory, whether it may use what it has there, and what is read for
it. The row says where to look first and nothing more; that nobody held the run since is seen from its status.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store import claims, leases, workers
from kagzi.store.operation import Outcome, Slot
from kagzi.store.roster import ServedType
from tests.laws import operations
from tests.laws.operations import NAMESPACE, QUEUE, TYPE, Run, new_id
from tests.laws.parts import Place, dispatching
from tests.laws.world import LEASE, SERVED, World

HOUR = timedelta(hours=1)


async def worker(world: World) -> str:
    """A worker that is there."""
    registered = await world.database.transact(
        lambda c: workers.register(c, NAMESPACE, instance=new_id(), task_queue=QUEUE, types=[ServedType(TYPE, "", "")])
    )
    return registered.worker_id


async def suspended(world: World, keeper: str, *, kept: bool = True, due: bool = True) -> Run:
    """A run with a step on record that its worker has suspended, and that is due now."""
    run = await world.running(keeper)
    await world.flush(operations.complete_step(run), operations.await_signal(run, position=2))
    await world.flush(operations.suspend(run, "receive-paid", kept=kept))
    if due:
        await world.flush(operations.signal(run.run_id))
    return run


async def claim(world: World, slots: Sequence[Slot]) -> dict[str, Delivery]:
    """What is claimed for these slots, by run."""
    found = await world.database.transact(
        lambda c: claims.claim(c, SERVED, slots, LEASE, Outcome(), expired_too=False), 5.0
    )
    return {one.delivery.run_id: one.delivery for one in found}


def places(keeper: str, count: int, residents: Sequence[Run] = ()) -> list[Slot]:
    """Free places of a worker that keeps these runs in memory."""
    known = {run.run_id: run.token for run in residents}
    return [Slot(keeper, new_id(), residents=known) for _ in range(count)]


async def held_by(world: World) -> dict[str, str]:
    rows = await world.connection.fetch("select run_id, locked_by from kagzi.workflow_runs where status = 'RUNNING'")
    return {str(row["run_id"]): str(row["locked_by"]) for row in rows}


async def test_a_claim_gives_kept_runs_to_their_keepers_and_the_others_to_anybody(world: World) -> None:
    first, second = await worker(world), await worker(world)
    kept = {(await suspended(world, keeper)).run_id: keeper for keeper in (first, second) * 3}
    plain = [await world.start() for _ in range(4)]
    await claim(world, [*places(second, 5), *places(first, 5)])
    holders = await held_by(world)
    assert {run_id: holders[run_id] for run_id in kept} == kept
    assert Counter(holders[run_id] for run_id in plain) == {first: 2, second: 2}
    assert [row["kept_by"] for row in await world.connection.fetch("select kept_by from kagzi.workflow_runs")] == (
        [None] * 10
    )


async def test_a_keeper_with_too_few_places_gets_as_many_as_it_has_and_nobody_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "OFFERED_FIRST", HOUR)
    keeper, other = await worker(world), await worker(world)
    kept = {(await suspended(world, keeper)).run_id for _ in range(3)}
    plain = await world.start()
    await claim(world, [*places(other, 5), *places(keeper, 1)])
    holders = await held_by(world)
    assert len([run_id for run_id in kept if holders.get(run_id) == keeper]) == 1
    assert [run_id for run_id, holder in holders.items() if holder == other] == [plain]
    monkeypatch.setattr(claims, "OFFERED_FIRST", timedelta())
    await claim(world, places(other, 5))
    assert (await held_by(world)).keys() == {*kept, plain}


async def test_a_kept_run_is_for_its_keeper_alone_for_a_moment_while_that_one_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "OFFERED_FIRST", HOUR)
    keeper, other = await worker(world), await worker(world)
    run = await suspended(world, keeper)
    assert await claim(world, places(other, 5)) == {}
    await world.database.transact(lambda c: workers.drain(c, NAMESPACE, keeper))
    assert (await claim(world, places(other, 5))).keys() == {run.run_id}


async def test_a_run_that_is_not_kept_is_held_for_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "OFFERED_FIRST", HOUR)
    keeper, other = await worker(world), await worker(world)
    run = await suspended(world, keeper, kept=False)
    assert (await claim(world, places(other, 5))).keys() == {run.run_id}


async def test_the_history_of_a_resident_is_neither_read_nor_sent(world: World) -> None:
    keeper = await worker(world)
    run = await suspended(world, keeper)
    asked: list[str] = []

    async def claimed(connection: Any) -> list[Any]:
        with connection.query_logger(lambda query: asked.append(query.query)):
            given = places(keeper, 1, [run])
            return await claims.claim(connection, SERVED, given, LEASE, Outcome(), expired_too=False)

    [one] = await world.database.transact(claimed, 5.0)
    delivery = one.delivery
    assert (delivery.resident, delivery.last_token, list(delivery.history)) == (True, run.token, [])
    assert [fact.signal.name for fact in delivery.facts] == ["paid"]
    assert [query for query in asked if "workflow_payloads p\nwhere" in query or "completed_seq" in query] == []


async def test_another_token_in_memory_is_sent_the_history(world: World) -> None:
    keeper = await worker(world)
    run = await suspended(world, keeper)
    delivery = (await claim(world, places(keeper, 1, [Run(run.run_id, new_id())])))[run.run_id]
    assert (delivery.resident, delivery.last_token) == (False, run.token)
    assert [step.step_id for step in delivery.history] == ["charge", "receive-paid"]


@pytest.mark.parametrize("how", ["its lease ran out", "it was put back", "it was released"])
async def test_a_run_that_was_held_since_says_nothing_of_its_suspension(world: World, how: str) -> None:
    keeper, other = await worker(world), await worker(world)
    run = await suspended(world, keeper)
    await world.connection.execute("update kagzi.workflow_runs set kept_by = null")
    taken = (await claim(world, places(other, 1)))[run.run_id]
    held = Run(run.run_id, taken.claim_token)
    await world.flush(operations.complete_step(held, "pack", 3))
    match how:
        case "its lease ran out":
            await world.expire(run.run_id)
        case "it was put back":
            await world.database.transact(lambda c: leases.put_back(c, NAMESPACE, [(held.run_id, held.token)]))
        case "it was released":
            await world.flush(operations.release(held))
    [again] = await world.deliveries(1, keeper)
    assert (again.last_token, again.resident) == ("", False)
    assert [step.step_id for step in again.history] == ["charge", "receive-paid", "pack"]


async def test_a_parked_run_is_kept_by_nobody(world: World) -> None:
    run = await world.running(await worker(world))
    await world.flush(operations.suspend(run, parked_json="{}", parked_hash="x", kept=True))
    assert (await world.row(run.run_id))["kept_by"] is None


async def test_every_keeper_has_places_in_a_claim_however_many_are_free_elsewhere(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "OFFERED_FIRST", HOUR)
    small, large = Place(5, await worker(world)), Place(10_000, await worker(world))
    kept = [await suspended(world, small.worker_id) for _ in range(3)]
    small.residents = {run.run_id: run.token for run in kept}
    async with dispatching(world.database) as (dispatcher, _):
        dispatcher.join(large)
        dispatcher.join(small)
        given = await small.has(3)
        assert {delivery.run_id for delivery in given} == {run.run_id for run in kept}
        assert all(delivery.resident for delivery in given)
