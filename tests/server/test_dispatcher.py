"""The dispatcher: runs come to free places, by hand-over or by claim, without any notice. Leases that ran out are left
alone while their workers may not have been heard, and runs that may take their worker down come one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
import pytest_asyncio

from kagzi.store.claims import Served
from kagzi.store.database import Database
from tests.laws import operations
from tests.laws.operations import NAMESPACE, QUEUE, Run
from tests.laws.parts import Place, dispatching, reserved
from tests.laws.world import SETTINGS, World
from tests.proxy import Proxy


@pytest_asyncio.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    database = await Database(database_url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()


async def _quiet(world: World, place: Place, count: int) -> None:
    """Nothing more than `count` came, through at least two ticks and whatever they lead to."""
    await asyncio.sleep(0.3)
    assert len(place.given) == count


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells of the passing of time
            await asyncio.sleep(0.01)


async def test_a_run_is_handed_over_as_it_is_stored(world: World) -> None:
    place = Place(2)
    async with dispatching(world.database) as (dispatcher, batcher):
        dispatcher.join(place)
        dispatcher.restore(await reserved(dispatcher))
        start = operations.start(timeout_ms=60_000, external_id="x", labels={"a": "b"})
        await batcher.ask(start)
        [delivery] = await place.has(1)
        assert start.slot is not None, "it was claimed afterwards, with a second write"
    row = await world.row(start.run_id)
    assert (row["status"], str(row["locked_by"])) == ("RUNNING", place.worker_id)
    assert str(row["claim_token"]) == delivery.claim_token
    assert place.free == 1
    # The same delivery as a claim would have made.
    await world.connection.execute("update kagzi.workflow_runs set status = 'PENDING', claim_token = null")
    await world.connection.execute("update kagzi.workflow_runs set available_at = kagzi.now() - interval '1 s'")
    claimed = {one.run_id: one for one in await world.deliveries(9)}[start.run_id]
    for own in ("claim_token", "now_us", "lease_until_us"):
        delivery.ClearField(own)
        claimed.ClearField(own)
    assert delivery == claimed


async def test_an_older_run_goes_first(world: World) -> None:
    older = [await world.start() for _ in range(3)]
    place = Place(2)
    async with dispatching(world.database) as (dispatcher, batcher):
        dispatcher.join(place)
        await batcher.ask(operations.start())
        assert [one.run_id for one in await place.has(2)] == older[:2]


async def test_nothing_is_handed_to_a_worker_that_does_not_serve_it(world: World) -> None:
    place = Place(5, served=Served(NAMESPACE, QUEUE, ("order", "order"), ("", "v1")))
    async with dispatching(world.database, interval=0.1) as (dispatcher, batcher):
        dispatcher.join(place)
        await batcher.ask(operations.start())
        await place.has(1)
        for other in ({"workflow_type": "refund"}, {"version": "v2"}, {"task_queue": "slow"}, {"delay_ms": 60_000}):
            await batcher.ask(operations.start(**other))
        await batcher.ask(operations.start(version="v1"))
        await place.has(2)
        await _quiet(world, place, 2)


async def test_a_place_that_turned_out_free_serves_who_waits(world: World) -> None:
    """A start reserved the only place and needs it no longer; meanwhile something else became due and found none."""
    place = Place(1)
    async with dispatching(world.database, interval=60.0) as (dispatcher, _):
        dispatcher.join(place)
        slot = await reserved(dispatcher)
        await world.start()
        dispatcher.look(NAMESPACE, QUEUE)
        await _quiet(world, place, 0)
        dispatcher.restore(slot)
        await place.has(1, within=5)


async def test_a_run_is_claimed_when_it_becomes_due_without_a_tick(world: World) -> None:
    place = Place(1)
    async with dispatching(world.database, interval=60.0) as (dispatcher, batcher):
        dispatcher.join(place)
        await batcher.ask(operations.start(delay_ms=300))
        await place.has(1, within=3)
    row = await world.row(place.given[0].run_id)
    assert row["started_at"] >= row["created_at"]
    assert (row["started_at"] - row["created_at"]).total_seconds() >= 0.3, "it was early"


async def test_a_timer_that_nobody_announced_is_found_by_looking(world: World) -> None:
    """What was stored before the worker came is seen on the first look, together with when it is due."""
    await world.start(delay_ms=400)
    place = Place(1)
    async with dispatching(world.database, interval=60.0) as (dispatcher, _):
        dispatcher.join(place)
        await place.has(1, within=3)


async def test_a_queue_that_nobody_serves_is_forgotten_and_made_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kagzi.server.queues._FORGOTTEN_AFTER", 0.02)
    async with dispatching(world.database, interval=0.05) as (dispatcher, _):
        for turn in range(2):
            place = Place(1)
            await world.start()
            dispatcher.join(place)
            await place.has(1, within=5)
            assert dispatcher.alive, turn
            dispatcher.leave(place)
            await _until(lambda: not dispatcher._queues and not dispatcher._by_hash)


async def test_a_queue_that_is_served_is_not_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kagzi.server.queues._FORGOTTEN_AFTER", 0.0)
    place = Place(2)
    async with dispatching(world.database, interval=0.01) as (dispatcher, batcher):
        dispatcher.join(place)
        await reserved(dispatcher)
        await _quiet(world, place, 0)
        await batcher.ask(operations.start())
        await place.has(1, within=5)


async def test_what_somebody_had_locked_is_claimed_soon_after(world: World) -> None:
    """Nobody tells of the end of a caller's transaction."""
    run_id = await world.start()
    place = Place(1)
    async with dispatching(world.database, interval=60.0) as (dispatcher, _):
        async with world.held(run_id):
            dispatcher.join(place)
            await _quiet(world, place, 0)
        await place.has(1, within=5)


@pytest.mark.parametrize("kind", ["normal", "suspect"])
async def test_leases_that_ran_out_are_not_claimed_in_the_grace_after_the_start(world: World, kind: str) -> None:
    run = await world.running()
    if kind == "suspect":
        await world.connection.execute("update kagzi.workflow_runs set crashes = 1")
    await world.expire(run.run_id)
    pending = await world.start()
    place = Place(5)
    async with dispatching(world.database, grace=1.0, interval=0.05) as (dispatcher, _):
        dispatcher.join(place)
        assert [one.run_id for one in await place.has(1)] == [pending]
        await _quiet(world, place, 1)
        assert (await place.has(2))[1].run_id == run.run_id


async def test_leases_that_ran_out_are_not_claimed_in_the_grace_after_losing_the_database(database_url: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    async with Proxy(database_url) as proxy:
        database = await Database(proxy.url).open()
        world = World(database, connection, database_url)
        place = Place(5)
        async with dispatching(database, grace=1.5, interval=0.05) as (dispatcher, _):
            dispatcher.join(place)
            await world.start()
            await place.has(1)
            await _until(lambda: dispatcher.expired_too)
            run = await world.running()
            async with proxy.away():
                await _until(lambda: not dispatcher.expired_too)
                await connection.execute(
                    "update kagzi.workflow_runs set available_at = kagzi.now() - interval '1 s' where run_id = $1",
                    run.run_id,
                )
            pending = await world.start()
            assert (await place.has(2))[1].run_id == pending
            assert not dispatcher.expired_too
            assert len(place.given) == 2, "a worker that could not be heard lost its run"
            assert (await place.has(3))[2].run_id == run.run_id
            assert dispatcher.expired_too
        await database.close()
    await connection.close()


async def _suspects(world: World, count: int, crashes: int = 2) -> list[Run]:
    runs = [await world.running() for _ in range(count)]
    await world.connection.execute("update kagzi.workflow_runs set crashes = $1", crashes)
    for run in runs:
        await world.expire(run.run_id)
    return runs


async def test_a_worker_is_given_one_suspect_at_a_time(world: World) -> None:
    await _suspects(world, 3)
    place = Place(9)
    async with dispatching(world.database, interval=0.05) as (dispatcher, batcher):
        dispatcher.join(place)
        for count in (1, 2, 3):
            delivery = (await place.has(count))[-1]
            await _quiet(world, place, count)
            await batcher.ask(operations.complete(Run(delivery.run_id, delivery.claim_token)))
    assert await world.connection.fetchval("select count(*) from kagzi.workflow_runs where status = 'COMPLETED'") == 3


async def test_a_suspect_that_got_on_makes_room_for_the_next(world: World) -> None:
    await _suspects(world, 2)
    place = Place(9)
    async with dispatching(world.database, interval=0.05) as (dispatcher, batcher):
        dispatcher.join(place)
        [delivery] = await place.has(1)
        await _quiet(world, place, 1)
        await batcher.ask(operations.complete_step(Run(delivery.run_id, delivery.claim_token)))
        await place.has(2)


async def test_each_of_two_workers_is_given_one_suspect(world: World) -> None:
    await _suspects(world, 4)
    places = [Place(9), Place(9)]
    async with dispatching(world.database, interval=0.05) as (dispatcher, _):
        for place in places:
            dispatcher.join(place)
        for place in places:
            await place.has(1)
        for place in places:
            await _quiet(world, place, 1)


async def test_several_polls_of_one_worker_are_given_one_suspect_together(world: World) -> None:
    await _suspects(world, 4)
    polls = [Place(1)]
    polls += [Place(1, polls[0].worker_id) for _ in range(3)]
    async with dispatching(world.database, interval=0.05) as (dispatcher, _):
        for poll in polls:
            dispatcher.join(poll)
        await _until(lambda: any(poll.given for poll in polls))
        await asyncio.sleep(0.3)
    assert sum(len(poll.given) for poll in polls) == 1


async def test_a_server_that_was_started_again_knows_who_holds_a_suspect(world: World) -> None:
    await _suspects(world, 2)
    place = Place(9)
    async with dispatching(world.database, interval=0.05) as (dispatcher, _):
        dispatcher.join(place)
        await place.has(1)
    again = Place(9, place.worker_id)
    async with dispatching(world.database, interval=0.05) as (dispatcher, _):
        dispatcher.join(again)
        await _quiet(world, again, 0)


async def test_others_are_claimed_while_a_poisoned_run_cannot_end(world: World) -> None:
    """Its parent is locked by a caller: the end of the poisoned run waits for that, and nobody waits with it."""
    parent = await world.running()
    await world.flush(operations.start_child(parent), operations.suspend(parent, "ship"))
    [child] = await world.claim()
    await world.connection.execute("update kagzi.workflow_runs set crashes = 4 where run_id = $1", child.run_id)
    await world.expire(child.run_id)
    place = Place(9)
    async with dispatching(world.database, interval=0.1) as (dispatcher, _):
        async with world.held(parent.run_id):
            dispatcher.join(place)
            for count in (1, 2, 3):
                await world.start()
                await place.has(count, within=5)
            assert (await world.row(child.run_id))["status"] == "RUNNING"
        await world.until(f"select status = 'FAILED' from kagzi.workflow_runs where run_id = '{child.run_id}'")  # noqa: S608
        await place.has(4)
    assert place.given[3].run_id == parent.run_id
