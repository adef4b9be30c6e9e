"""The batcher: operations of all callers share commits, keep the order of their run whatever waits, and are answered
once they are durable. Costs are counted on the connections, never timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
import pytest_asyncio

from kagzi.protocol.v1.common_pb2 import SIGNAL, ErrorDetail, Payload
from kagzi.protocol.v1.worker_pb2 import Wait
from kagzi.server.batcher import Batcher
from kagzi.server.fallen import Fallen
from kagzi.store.database import Database
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Operation
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run, new_id
from tests.laws.parts import batching
from tests.laws.world import SETTINGS, World
from tests.proxy import Proxy


@pytest_asyncio.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(database_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def world(database_url: str, proxy: Proxy) -> AsyncIterator[World]:
    database = await Database(proxy.url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()


class Caller:
    """Sends operations without waiting and keeps the answers in the order they come, as a stream does."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self.answered: list[Operation] = []
        self._news = asyncio.Event()

    def send(self, *given: Operation) -> None:
        for operation in given:
            self._batcher.submit(operation, self._hear)

    def _hear(self, operation: Operation) -> None:
        self.answered.append(operation)
        self._news.set()

    async def has(self, count: int) -> list[str]:
        """Waits for so many answers; what the operations were told, by code or OK."""
        async with asyncio.timeout(60):
            while len(self.answered) < count:
                self._news.clear()
                await self._news.wait()
        return [_code(operation) for operation in self.answered]


def _code(operation: Operation) -> str:
    if isinstance(operation.answer, ErrorDetail):
        return ErrorDetail.Code.Name(operation.answer.code)
    return "OK"


async def _aside(batcher: Batcher) -> None:
    """Waits until an operation of a locked run was set aside."""
    async with asyncio.timeout(60):
        while not batcher._side:  # noqa: ASYNC110 - whoever waits in a side lane hears of it from nobody
            await asyncio.sleep(0.002)


async def test_a_hundred_concurrent_starts_cost_at_most_four_commits(world: World, proxy: Proxy) -> None:
    async with batching(world.database) as batcher:
        await batcher.ask(operations.start())
        for _ in range(3):
            proxy.commits = 0
            await asyncio.gather(*(batcher.ask(operations.start(input=Payload(data=b"1"))) for _ in range(100)))
            assert proxy.commits <= 4
    assert await world.count("workflow_runs") == 301


async def test_a_hundred_concurrent_step_results_cost_at_most_four_commits(world: World, proxy: Proxy) -> None:
    runs = [await world.running() for _ in range(100)]
    async with batching(world.database) as batcher:
        proxy.commits = 0
        await asyncio.gather(*(batcher.ask(operations.complete_step(run)) for run in runs))
        assert proxy.commits <= 4
    assert await world.count("step_runs") == 100


LONE: dict[str, Callable[[Run], Operation]] = {
    "start": lambda _: operations.start(input=Payload(data=b"1")),
    "step": operations.complete_step,
    "signal": lambda run: operations.signal(run.run_id),
    "end": operations.complete,
}


@pytest.mark.parametrize("make", LONE.values(), ids=LONE)
async def test_a_lone_operation_costs_exactly_one_commit(
    world: World, proxy: Proxy, make: Callable[[Run], Operation]
) -> None:
    run = await world.running()
    async with batching(world.database) as batcher:
        await batcher.ask(operations.start())
        proxy.commits = 0
        await batcher.ask(make(run))
        assert proxy.commits == 1


@pytest.mark.parametrize("name", ["start", "step", "end"])
async def test_what_runs_do_most_costs_one_statement_and_nothing_beside_it(
    world: World, proxy: Proxy, name: str
) -> None:
    first, second = await world.running(), await world.running()
    async with batching(world.database) as batcher:
        # Once, so that the connection has met the statement.
        await batcher.ask(LONE[name](first))
        proxy.statements.clear()
        await batcher.ask(LONE[name](second))
        assert len(proxy.statements) == 1


async def test_a_hundred_runs_record_their_last_step_and_end_in_one_statement(world: World, proxy: Proxy) -> None:
    first, *runs = [await world.running() for _ in range(101)]
    await world.flush(operations.complete_step(first), operations.complete(first))
    proxy.statements.clear()
    given = [one for run in runs for one in (operations.complete_step(run), operations.complete(run))]
    [outcome] = await world.flush(*given)
    assert len(proxy.statements) == 1
    assert {ended.run_id for ended in outcome.ended} == {run.run_id for run in runs}
    assert await world.count("step_runs") == 101


async def test_operations_of_a_locked_run_wait_apart_in_order_and_nobody_waits_with_them(world: World) -> None:
    blocked, free = await world.running(), await world.running()
    async with batching(world.database) as batcher:
        caller = Caller(batcher)
        async with world.held(blocked.run_id):
            for number in range(1, 6):
                caller.send(
                    operations.complete_step(blocked, f"s{number}", number),
                    operations.complete_step(free, f"s{number}", number),
                )
                await caller.has(number)
            assert all(operation.run_id == free.run_id for operation in caller.answered)
        caller.send(operations.complete(blocked))
        assert await caller.has(11) == ["OK"] * 11
    waited = [operation for operation in caller.answered if operation.run_id == blocked.run_id]
    assert [getattr(operation.body, "position", "end") for operation in waited] == [1, 2, 3, 4, 5, "end"]


async def test_what_follows_an_operation_that_waits_never_overtakes_it(world: World) -> None:
    """The caller lets go between two batches, at whatever moment: the end of the run never comes before its results."""
    async with batching(world.database) as batcher:
        for turn in range(30):
            run = await world.running()
            caller = Caller(batcher)
            async with world.held(run.run_id):
                caller.send(operations.complete_step(run, "first", 1))
                await asyncio.sleep(turn * 0.0005)
                caller.send(operations.complete_step(run, "second", 2))
            caller.send(operations.complete(run))
            assert await caller.has(3) == ["OK"] * 3
            assert [step["step_id"] for step in await world.steps(run.run_id)] == ["first", "second"]


async def test_what_follows_a_refused_operation_falls_in_later_batches_too(world: World) -> None:
    run, other = await world.running(), await world.running()
    async with batching(world.database) as batcher:
        caller = Caller(batcher)
        caller.send(operations.complete_step(run, "bad", 1, kind=SIGNAL, signal_id=new_id()))
        await caller.has(1)
        caller.send(operations.complete_step(run, "next", 2), operations.complete_step(other))
        await caller.has(3)
        caller.send(operations.complete(run), operations.signal(run.run_id), operations.complete(other))
        told = dict(zip((id(one) for one in caller.answered), await caller.has(6), strict=False))
    codes = {(one.kind.name, one.run_id == run.run_id): _code(one) for one in caller.answered}
    assert len(told) >= 3
    assert codes == {
        ("COMPLETE_STEP", True): "PREDECESSOR_REFUSED",
        ("COMPLETE_STEP", False): "OK",
        ("COMPLETE", True): "PREDECESSOR_REFUSED",
        ("SIGNAL", True): "OK",
        ("COMPLETE", False): "OK",
    }
    assert (await world.row(run.run_id))["status"] == "RUNNING"


async def test_what_follows_an_operation_that_was_refused_in_a_side_lane_falls_too(world: World) -> None:
    run = await world.running()
    async with batching(world.database) as batcher:
        caller = Caller(batcher)
        async with world.held(run.run_id):
            caller.send(operations.complete_step(run, "bad", 1, kind=SIGNAL, signal_id=new_id()))
            await _aside(batcher)
            assert caller.answered == []
        await caller.has(1)
        caller.send(operations.complete(run))
        assert await caller.has(2) == ["PRECONDITION_FAILED", "PREDECESSOR_REFUSED"]
    assert (await world.row(run.run_id))["status"] == "RUNNING"


async def test_an_operation_that_was_refused_before_it_was_taken_brings_down_what_follows(world: World) -> None:
    run = await world.running()
    refused = Operation(Kind.WAIT, NAMESPACE, run.run_id, Wait(), token=run.token, chained=True)
    refused.answer = ErrorDetail(code=ErrorDetail.LIMIT_EXCEEDED, message="too large")
    async with batching(world.database) as batcher:
        caller = Caller(batcher)
        caller.send(operations.complete_step(run, "before", 1), refused, operations.complete_step(run, "after", 2))
        await caller.has(3)
        caller.send(operations.complete(run))
        await caller.has(4)
    assert {(one.kind.name, getattr(one.body, "step_id", ""), _code(one)) for one in caller.answered} == {
        ("COMPLETE_STEP", "before", "OK"),
        ("WAIT", "", "LIMIT_EXCEEDED"),
        ("COMPLETE_STEP", "after", "PREDECESSOR_REFUSED"),
        ("COMPLETE", "", "PREDECESSOR_REFUSED"),
    }


@pytest.mark.parametrize(("run_id", "token"), [("r" * 37, "t"), ("r", "t" * 37)])
def test_what_is_no_id_is_not_remembered_at_its_length(run_id: str, token: str) -> None:
    fallen = Fallen()
    refused = Operation(Kind.WAIT, NAMESPACE, run_id, Wait(), token=token, chained=True)
    refused.answer = ErrorDetail(code=ErrorDetail.INVALID_ARGUMENT)
    assert fallen.takes(refused)
    assert not fallen.takes(Operation(Kind.WAIT, NAMESPACE, run_id, Wait(), token=token, chained=True))


async def test_another_token_of_the_run_is_not_brought_down(world: World) -> None:
    run = await world.running()
    async with batching(world.database) as batcher:
        caller = Caller(batcher)
        caller.send(operations.complete_step(Run(run.run_id, new_id())))
        await caller.has(1)
        caller.send(operations.complete(run))
        assert await caller.has(2) == ["LEASE_LOST", "OK"]


async def test_a_caller_that_goes_away_withdraws_nothing(world: World) -> None:
    run = await world.running()
    async with batching(world.database) as batcher:
        async with world.held(run.run_id):
            asking = asyncio.create_task(batcher.ask(operations.complete_step(run)))
            await _aside(batcher)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await world.until("select count(*) = 1 from kagzi.step_runs")


async def test_operations_outlast_an_outage_and_take_effect_once(world: World, proxy: Proxy) -> None:
    runs = [await world.running() for _ in range(20)]
    async with batching(world.database) as batcher:
        async with proxy.away():
            asking = [asyncio.create_task(batcher.ask(operations.complete_step(run))) for run in runs]
            starting = [asyncio.create_task(batcher.ask(operations.start())) for _ in range(20)]
            await proxy.refuses(3)
            assert not any(task.done() for task in (*asking, *starting))
        await asyncio.gather(*asking, *starting)
    assert await world.count("step_runs") == 20
    assert await world.count("workflow_runs") == 40


async def test_a_full_queue_makes_calls_wait_and_then_tells_them_to_come_back(world: World) -> None:
    run = await world.running()
    async with batching(world.database, queue_operations=1, patience=0.2) as batcher:
        async with world.held(run.run_id):
            first = asyncio.create_task(batcher.ask(operations.complete_step(run, "s1", 1)))
            await _aside(batcher)
            with pytest.raises(Refused) as refused:
                await batcher.ask(operations.start())
            assert refused.value.detail.code == ErrorDetail.RESOURCE_EXHAUSTED
            assert refused.value.detail.retry_after_ms > 0
            waiting = asyncio.create_task(batcher.room())
            with pytest.raises(Refused):
                await batcher.ask(operations.start())
            assert not waiting.done(), "a stream waits as long as it takes"
        await first
        await waiting
        await batcher.ask(operations.start())


async def test_a_full_queue_refuses_the_operations_of_one_call_after_the_patience_of_one(world: World) -> None:
    run = await world.running()
    async with batching(world.database, queue_operations=2, patience=0.2) as batcher:
        async with world.held(run.run_id):
            waiting = asyncio.create_task(batcher.ask(operations.complete_step(run, "s1", 1)))
            await _aside(batcher)
            starts = [operations.start() for _ in range(1_000)]
            async with asyncio.timeout(60):
                await batcher.ask_all(starts, 0.2)
            refused = [start for start in starts if start.refused]
            assert all(start.answer is not None for start in starts)
            assert all(start.answer.code == ErrorDetail.RESOURCE_EXHAUSTED for start in refused)  # type: ignore[union-attr]
        await waiting
    assert await world.count("workflow_runs") == 1 + len(starts) - len(refused)


async def test_no_more_callers_wait_for_room_than_fit_into_memory_once_more(world: World) -> None:
    run = await world.running()
    large = Payload(data=b"x" * 400)
    # As much again as the queue holds may wait: two starts of this size, and no third.
    async with batching(world.database, queue_operations=1, queue_bytes=1_000, patience=60.0) as batcher:
        caller = Caller(batcher)
        async with world.held(run.run_id):
            caller.send(operations.complete_step(run, "s1", 1))
            waiting = [asyncio.create_task(batcher.ask(operations.start(input=large))) for _ in range(2)]
            await asyncio.sleep(0)
            async with asyncio.timeout(30):
                with pytest.raises(Refused) as refused:
                    await batcher.ask(operations.start(input=large))
            assert refused.value.detail.code == ErrorDetail.RESOURCE_EXHAUSTED
            assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting)
        await batcher.ask(operations.start(input=large))
    assert await world.count("workflow_runs") == 4


async def test_stopping_answers_or_refuses_everything_that_was_taken(world: World) -> None:
    blocked, free = await world.running(), await world.running()
    async with world.held(blocked.run_id):
        async with batching(world.database) as batcher:
            caller = Caller(batcher)
            caller.send(operations.complete_step(blocked), operations.complete_step(free))
            caller.send(*(operations.start() for _ in range(50)))
            await batcher.stop(0.5)
            caller.send(operations.start())
        codes = await caller.has(53)
    assert codes.count("OK") == 51
    assert codes.count("UNAVAILABLE") == 2
    assert await world.steps(blocked.run_id) == []


async def test_namespaces_share_a_batcher_and_no_transaction(world: World, proxy: Proxy) -> None:
    await world.connection.execute("insert into kagzi.namespaces (namespace) values ('other')")
    given = [operations.start() for _ in range(20)]
    for operation in given[::2]:
        operation.namespace = "other"
    async with batching(world.database, lanes=1) as batcher:
        caller = Caller(batcher)
        proxy.commits = 0
        caller.send(*given)
        await caller.has(20)
        assert proxy.commits == 2
