"""Suspended runs stay in their worker's memory: nothing is raised, they go on from there and record what replays, and
they are closed when they are evicted, of no more use, or when their worker drains. What is not in memory, or not for
certain what is on record, is replayed.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from kagzi import Context, Handle, RunCancelled, Worker, step, workflow
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import SIGNAL, STEP_RUNNING, ErrorDetail, Step
from kagzi.sdk import shift
from kagzi.sdk.residents import Residents
from kagzi.store import claims
from kagzi.testing import history, replay
from tests.sdk.rig import LONG, Gate, Rig, rigged
from tests.sdk.stage import delivery, recording, serving, until

# What the code of each run did, and met.
seen: defaultdict[str, list[str]] = defaultdict(list)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


def deliveries(worker: Worker) -> list[pb.Delivery]:
    """What arrives at a worker from now on."""
    assert worker._shift is not None
    arrived, noted = worker._shift.arrived, []

    def arrive(whole: pb.Delivery) -> None:
        noted.append(whole)
        arrived(whole)

    worker._shift.arrived = arrive  # type: ignore[assignment,method-assign]
    return noted


def residents(worker: Worker) -> Residents:
    assert worker._shift is not None
    return worker._shift.residents


async def kept(worker: Worker, count: int = 1) -> None:
    """Waits until so many runs stay in the worker's memory."""
    await until(lambda: len(residents(worker)) == count, LONG)


async def say(word: str) -> str:
    return word


@workflow
async def waiter(ctx: Context) -> str:
    seen[ctx.run_id].append("enters")
    try:
        return str(await ctx.receive("go", str))
    except BaseException as error:
        seen[ctx.run_id].append(type(error).__name__)
        raise
    finally:
        seen[ctx.run_id].append("cleans up")


async def test_nothing_is_raised_and_no_finally_runs_while_a_run_is_suspended(rig: Rig) -> None:
    async with rig.working(waiter) as worker:
        handle = await rig.client.start(waiter)
        await kept(worker)
        assert (await handle.describe()).status == "SLEEPING"
        assert seen[handle.run_id] == ["enters"]
        await handle.signal("go", "on")
        assert await handle.result(timeout=LONG) == "on"
        assert len(residents(worker)) == 0
    assert seen[handle.run_id] == ["enters", "cleans up"]


@workflow
async def naps(ctx: Context, count: int) -> int:
    seen[ctx.run_id].append("enters")
    for _ in range(count):
        await ctx.sleep("nap", 0)
    return count


async def test_a_run_of_a_hundred_sleeps_gets_its_history_once(rig: Rig) -> None:
    async with rig.working(naps, in_place=False) as worker:
        arrived = deliveries(worker)
        handle = await rig.client.start(naps, 100)
        assert await handle.result(timeout=LONG) == 100
    assert [one.resident for one in arrived] == [False] + [True] * 100
    assert [one for one in arrived[1:] if one.history or one.HasField("input")] == []
    assert seen[handle.run_id] == ["enters"]
    assert replay(naps, await history(handle)).output == 100


async def test_without_residents_every_wait_is_closed_and_replayed(rig: Rig) -> None:
    async with rig.working(naps, in_place=False, residents=0) as worker:
        arrived = deliveries(worker)
        handle = await rig.client.start(naps, 3)
        assert await handle.result(timeout=LONG) == 3
    assert [len(one.history) for one in arrived] == [0, 1, 2, 3]
    assert seen[handle.run_id] == ["enters"] * 4


@workflow
async def child(ctx: Context, word: str) -> str:
    return await ctx.receive("word", str) or word


@workflow
async def together(ctx: Context) -> list[Any]:
    """Waits of every kind at once, which end in another order than they began."""
    order: list[str] = []
    seen[ctx.run_id].append("enters")

    async def noted(name: str, wait: Any) -> Any:
        result = await wait
        order.append(name)
        return await ctx.step(f"{name}-then", say, f"{name} {result}")

    results = await asyncio.gather(
        noted("timer", ctx.sleep("timer", "200ms")),
        noted("child", ctx.run_child("child", child, "kid", id=f"child of {ctx.run_id}")),
        noted("late", ctx.receive("late", str)),
        noted("early", ctx.receive("early", str)),
        noted("never", ctx.receive("never", str, timeout="100ms")),
    )
    return [order, results, ctx.now().isoformat()]


async def test_waits_of_every_kind_end_in_memory_in_an_order_that_replays(rig: Rig) -> None:
    async with rig.working(together, child, in_place=False) as worker:
        handle = await rig.client.start(together)
        await handle.signal("early", "first")
        await rig.until("select 1 from kagzi.step_runs where run_id = $1 and step_id = 'timer-then'", handle.run_id)
        kid = await rig.client.find(f"child of {handle.run_id}")
        await kept(worker, 2)
        await handle.signal("late", "last")
        await rig.until("select 1 from kagzi.step_runs where run_id = $1 and step_id = 'late-then'", handle.run_id)
        await kid.signal("word", "grown")
        order, results, now = await handle.result(timeout=LONG)
    assert order == ["early", "never", "timer", "late", "child"]
    assert results == ["timer None", "child grown", "late last", "early first", "never None"]
    assert seen[handle.run_id] == ["enters"]
    recorded = sorted(await handle.steps(), key=lambda record: record.completed_seq or 0)
    assert [record.step_id for record in recorded if record.step_id in order] == order
    assert replay(together, await history(handle)).output == [order, results, now]


async def test_a_run_that_is_cancelled_while_it_is_suspended_hears_of_it_where_it_waits(rig: Rig) -> None:
    async with rig.working(waiter) as worker:
        arrived = deliveries(worker)
        handle = await rig.client.start(waiter)
        await kept(worker)
        await handle.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result(timeout=LONG)
    assert [one.resident for one in arrived] == [False, True]
    assert seen[handle.run_id] == ["enters", "CancelledError", "cleans up"]
    assert [str(record.status) for record in await handle.steps()] == ["ABANDONED", "COMPLETED"]


gate: Gate


@pytest.fixture(autouse=True)
def new_gate() -> None:
    global gate  # noqa: PLW0603 - one for each test
    gate = Gate()


async def busy() -> None:
    await gate.wait()


@workflow
async def occupied(ctx: Context) -> None:
    await ctx.step("busy", busy)


def changed(name: str) -> Any:
    """The workflow of the tests, as it is after a deploy."""

    async def waits_otherwise(ctx: Context) -> str:
        seen[ctx.run_id].append("enters the new code")
        await ctx.step("new", say, "new")
        return str(await ctx.receive("go", str))

    return workflow(name=name)(waits_otherwise)


async def test_memory_is_not_used_when_somebody_else_has_held_the_run_since(rig: Rig) -> None:
    async with rig.working(waiter, occupied, concurrency=1) as worker:
        handle = await rig.client.start(waiter)
        await kept(worker)
        blocking = await rig.client.start(occupied)
        await gate.arrival()
        async with rig.working(changed("waiter")):
            await handle.signal("go", "on")
            await rig.until("select 1 from kagzi.workflow_runs where run_id = $1 and parked_hash <> ''", handle.run_id)
        gate.open()
        await blocking.result(timeout=LONG)
        arrived = deliveries(worker)
        await rig.resume(handle)
        assert await handle.result(timeout=LONG) == "on"
        assert [one.resident for one in arrived] == [False]
        assert len(residents(worker)) == 0
    # The code in memory is closed when the run comes back; which of the two is closed first is of no matter.
    assert seen[handle.run_id][:2] == ["enters", "enters the new code"]
    assert sorted(seen[handle.run_id][2:]) == ["Dropped", "cleans up", "cleans up", "enters"]


async def test_a_run_that_ended_elsewhere_leaves_memory(rig: Rig) -> None:
    async with rig.working(waiter) as worker:
        handle = await rig.client.start(waiter)
        await kept(worker)
        await handle.terminate("enough")
        await kept(worker, 0)
        await until(lambda: len(seen[handle.run_id]) == 3)
    assert seen[handle.run_id] == ["enters", "Dropped", "cleans up"]


async def test_of_two_workers_the_one_that_keeps_a_run_goes_on_with_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A machine under load may take longer than the keeper is waited for.
    monkeypatch.setattr(claims, "OFFERED_FIRST", timedelta(seconds=LONG))
    async with rig.working(waiter, concurrency=10) as keeper:
        handles = await asyncio.gather(*(rig.client.start(waiter) for _ in range(20)))
        await kept(keeper, 20)
        async with rig.working(waiter, concurrency=100):
            await asyncio.gather(*(handle.signal("go", "on") for handle in handles))
            await asyncio.gather(*(handle.result(timeout=LONG) for handle in handles))
    assert {tuple(seen[handle.run_id]) for handle in handles} == {("enters", "cleans up")}


async def test_a_worker_that_goes_on_at_another_server_keeps_its_runs(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(database_url))
        rig = await stack.enter_async_context(rigged(database_url))
        worker = Worker(f"{first.address},{rig.address}", workflows=[waiter], drain_timeout=0)
        await stack.enter_async_context(worker)
        handle = await rig.client.start(waiter)
        await kept(worker)
        arrived = deliveries(worker)
        await first.stop(0)
        await handle.signal("go", "on")
        assert await handle.result(timeout=LONG) == "on"
    assert [one.resident for one in arrived] == [True]
    assert seen[handle.run_id] == ["enters", "cleans up"]


async def test_who_was_suspended_longest_ago_makes_room_and_is_replayed(rig: Rig) -> None:
    handles: list[Handle[str]] = []
    async with rig.working(waiter, residents=2) as worker:
        for number in range(1, 6):
            handles.append(await rig.client.start(waiter))
            await rig.sleeping(handles[-1])
            await kept(worker, min(number, 2))
        await until(lambda: all(len(seen[handle.run_id]) == 3 for handle in handles[:3]))
        arrived = deliveries(worker)
        for handle in handles:
            await handle.signal("go", "on")
            assert await handle.result(timeout=LONG) == "on"
    # The server was told who is gone, so nobody has to be given back for want of a history.
    assert [one.resident for one in arrived] == [False, False, False, True, True]
    for handle in handles[:3]:
        assert seen[handle.run_id] == ["enters", "Dropped", "cleans up", "enters", "cleans up"]
    for handle in handles[3:]:
        assert seen[handle.run_id] == ["enters", "cleans up"]


async def test_a_run_that_is_evicted_while_it_is_on_its_way_comes_again_with_its_history(rig: Rig) -> None:
    async with rig.working(waiter) as worker:
        handle = await rig.client.start(waiter)
        await kept(worker)
        arrived = deliveries(worker)
        # The server is not told.
        residents(worker).lose(residents(worker).held()[0])
        await handle.signal("go", "on")
        assert await handle.result(timeout=LONG) == "on"
    assert [(one.resident, len(one.history)) for one in arrived] == [(True, 0), (False, 1)]
    assert [str(record.status) for record in await handle.steps()] == ["COMPLETED"]


async def test_a_worker_that_drains_closes_what_it_keeps_and_another_goes_on(rig: Rig) -> None:
    async with rig.working(waiter) as worker:
        handle = await rig.client.start(waiter)
        await kept(worker)
    assert seen[handle.run_id] == ["enters", "Dropped", "cleans up"]
    await handle.signal("go", "on")
    async with rig.working(waiter):
        assert await handle.result(timeout=LONG) == "on"
    assert [str(record.status) for record in await handle.steps()] == ["COMPLETED"]


@pytest.mark.parametrize("code", [None, ErrorDetail.LEASE_LOST, ErrorDetail.PRECONDITION_FAILED])
async def test_a_run_whose_suspension_is_refused_or_never_answered_is_closed(
    code: ErrorDetail.Code.ValueType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shift, "_LAST_ANSWERS", 0.1)
    async with recording() as recorder:
        recorder.answers = False
        async with Worker(recorder.address, workflows=[waiter], drain_timeout=0) as worker:
            given = delivery(workflow_type="waiter")
            recorder.say(pb.ConnectResponse(deliveries=[given]))
            await recorder.until(lambda: "suspend" in [sent.WhichOneof("body") for sent in recorder.operations])
            assert seen[given.run_id] == ["enters"]
            if code is not None:
                *earlier, last = [sent.number for sent in recorder.operations]
                answer = pb.Answer(number=last, refused=ErrorDetail(code=code, message="no"))
                recorder.say(pb.ConnectResponse(accepted=earlier, answers=[answer]))
                await until(lambda: len(seen[given.run_id]) == 3)
            assert len(residents(worker)) == 0
    assert seen[given.run_id] == ["enters", "Dropped", "cleans up"]


async def test_a_run_that_comes_back_before_its_suspension_is_answered_is_replayed() -> None:
    async with recording() as recorder:
        recorder.answers = False
        async with Worker(recorder.address, workflows=[waiter], drain_timeout=0) as worker:
            first = delivery(workflow_type="waiter")
            recorder.say(pb.ConnectResponse(deliveries=[first]))
            await recorder.until(lambda: len(recorder.operations) == 2)
            waits = recorder.operations[0].step_started
            record = Step(
                step_id="go",
                attempt_id=waits.attempt_id,
                attempt_number=1,
                position=1,
                kind=SIGNAL,
                status=STEP_RUNNING,
            )
            # That it was accepted is known from the delivery alone; what else was answered, and lost, is not.
            came = {"run_id": first.run_id, "last_token": first.claim_token, "history": [record]}
            again = delivery(workflow_type="waiter", **came)
            recorder.say(pb.ConnectResponse(deliveries=[again]))
            await recorder.until(lambda: len(recorder.operations) == 3)
            assert seen[first.run_id] == ["enters", "enters"]
            recorder.say(pb.ConnectResponse(accepted=[sent.number for sent in recorder.operations]))
            await kept(worker)
            await until(lambda: len(seen[first.run_id]) == 4)
            assert [held.claim_token for held in residents(worker).held()] == [again.claim_token]
    assert seen[first.run_id] == ["enters", "enters", *["Dropped", "cleans up"] * 2]


@step
async def heavy(size: int) -> str:
    return "x" * size


@workflow
async def holds(ctx: Context, size: int) -> int:
    seen[ctx.run_id].append("enters")
    value = await ctx.step("heavy", heavy, size)
    await ctx.receive("go")
    return len(value)


async def test_what_would_take_too_much_memory_is_not_kept(rig: Rig) -> None:
    async with rig.working(holds) as worker:
        residents(worker)._most_bytes = 1_000_000
        large, small = await rig.client.start(holds, 600_000), await rig.client.start(holds, 10)
        await rig.sleeping(large)
        await rig.sleeping(small)
        await kept(worker, 1)
        for handle in (large, small):
            await handle.signal("go")
            await handle.result(timeout=LONG)
    assert (seen[large.run_id], seen[small.run_id]) == (["enters", "enters"], ["enters"])


@workflow
async def stubborn(ctx: Context, how: str) -> str:
    try:
        await ctx.receive("go")
    finally:
        match how:
            case "raises":
                raise ValueError("in the cleanup of a run that was closed")
            case "exits":
                raise SystemExit(3)
            case "waits":
                await asyncio.Event().wait()
            case "asks":
                await ctx.step("cleanup", say, "no")
            case "goes on":
                for _ in range(3):
                    with contextlib.suppress(BaseException):
                        await ctx.receive("more")
    return how


@pytest.mark.parametrize("how", ["raises", "exits", "waits", "asks", "goes on"])
async def test_whatever_the_cleanup_of_a_closed_run_does_its_worker_goes_on(
    rig: Rig, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kagzi")
    async with rig.working(stubborn, waiter, residents=1) as worker:
        closed = await rig.client.start(stubborn, how)
        await rig.sleeping(closed)
        await kept(worker)
        handle = await rig.client.start(waiter)
        await rig.sleeping(handle)
        await until(lambda: worker._shift is not None and len(residents(worker)) == 1)
        await handle.signal("go", "on")
        assert await handle.result(timeout=LONG) == "on"
        assert await rig.records(closed) == {"go": "RUNNING"}
    assert [record.message for record in caplog.records if "defect" in record.message] == []


@workflow
async def two_times(ctx: Context) -> list[str]:
    """The longer of two waits begins first."""
    order: list[str] = []

    async def noted(name: str, length: str) -> None:
        await ctx.sleep(name, length)
        order.append(name)

    await asyncio.gather(noted("long", "400ms"), noted("short", "300ms"))
    return order


async def test_waits_that_are_over_when_a_run_wakes_late_end_in_the_order_of_their_times(rig: Rig) -> None:
    async with rig.working(two_times, in_place=False):
        handle = await rig.client.start(two_times)
        begun = "select 1 from kagzi.step_runs where run_id = $1 and wake_at is not null having count(*) = 2"
        await rig.until(begun, handle.run_id)
    over = "select 1 from kagzi.step_runs where run_id = $1 having max(wake_at) < kagzi.now()"
    await rig.until(over, handle.run_id)
    async with rig.working(two_times):
        assert await handle.result(timeout=LONG) == ["short", "long"]
