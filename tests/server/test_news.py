"""What arrives for a run reaches the worker that gets hold of it at that very moment, without waiting for a heartbeat:
none of these workers sends one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.protocol.v1.workflow_pb2 import CancelWorkflowRequest, SignalWorkflowRequest
from kagzi.server.api import missed
from kagzi.server.api.missed import Missed
from tests.laws.operations import new_id
from tests.laws.world import World
from tests.server.calls import refusal
from tests.server.wire import Place, Worker, serving


@pytest_asyncio.fixture
async def place(database_url: str) -> AsyncIterator[Place]:
    async with serving(database_url) as place:
        yield place


@pytest_asyncio.fixture
async def other(database_url: str) -> AsyncIterator[Place]:
    async with serving(database_url) as place:
        yield place


def _cancelled(worker: Worker, run_id: str) -> bool:
    return any(cancel.run.run_id == run_id for frame in worker.frames for cancel in frame.cancels)


@pytest.mark.parametrize("through", ["the same server", "another server"])
async def test_a_cancel_between_the_claim_and_its_delivery_is_told_with_the_delivery(
    place: Place, other: Place, through: str
) -> None:
    run_id = await place.start()
    worker = Worker(place)
    await worker.hello()
    place.proxy.answers_to_hold = 1
    await worker.send(credit=1)
    await place.until("select status = 'RUNNING' from kagzi.workflow_runs where run_id = $1", run_id)
    asked = place if through == "the same server" else other
    await asked.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id))
    async with asyncio.timeout(60):
        while not place.server.streams._missed:  # noqa: ASYNC110 - nobody tells that a notice was heard
            await asyncio.sleep(0.005)
    assert not worker.deliveries
    place.proxy.released.set()
    await worker.take()
    await worker.until(lambda: _cancelled(worker, run_id))
    await worker.close()


async def test_a_cancel_that_came_while_the_worker_was_away_is_told_when_it_is_back(place: Place) -> None:
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    held = await worker.take()
    await worker.close()
    await place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id))
    again = Worker(place, worker.instance)
    await again.hello(held=held)
    await again.until(lambda: _cancelled(again, run_id))
    await again.close()


def test_what_was_missed_is_told_once_and_only_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    news = Missed()
    news.note("a")
    assert (news.takes("a"), news.takes("a"), news.takes("b")) == (True, False, False)
    monkeypatch.setattr(missed, "_SECS", 0.0)
    news.note("a")
    assert not news.takes("a")


def test_what_was_missed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed, "_MOST", 2)
    news = Missed()
    for key in "abca":
        news.note(key)
    assert [news.takes(key) for key in "abc"] == [True, False, True]


async def test_a_heartbeat_brings_at_most_a_mebibyte_of_news_and_the_rest_later(place: Place) -> None:
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    [run] = await worker.take()
    for number in range(3):
        payload = Payload(data=b"%d" % number * 600_000)
        await place.workflows.SignalWorkflow(
            SignalWorkflowRequest(run_id=run_id, name="go", payload=payload, signal_id=new_id())
        )
    worker_id = next(frame.welcome.worker_id for frame in worker.frames if frame.HasField("welcome"))
    beat = await place.workers.Heartbeat(pb.HeartbeatRequest(worker_id=worker_id, held=[run]))
    assert len(beat.wakes) == 1
    assert beat.ByteSize() < 1 << 20
    await worker.close()


async def test_a_heartbeat_renews_a_run_that_was_locked_for_a_moment(place: Place, database_url: str) -> None:
    """As it is most of the time while it writes one result after another."""
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    [run] = await worker.take()
    await place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id))
    worker_id = next(frame.welcome.worker_id for frame in worker.frames if frame.HasField("welcome"))
    lease = "select available_at from kagzi.workflow_runs where run_id = $1"
    before = await place.connection.fetchval(lease, run_id)
    place.proxy.statements.clear()
    async with World(place.server.database, place.connection, database_url).held(run_id):
        beating = asyncio.ensure_future(place.workers.Heartbeat(pb.HeartbeatRequest(worker_id=worker_id, held=[run])))
        async with asyncio.timeout(60):
            while sum("'BUSY'" in text for text in place.proxy.statements) < 3:  # noqa: ASYNC110 - it asks again
                await asyncio.sleep(0.002)
    beat = await beating
    assert not beat.lost
    assert beat.cancelled == [run_id]
    assert await place.connection.fetchval(lease, run_id) > before
    await worker.close()


async def test_a_heartbeat_does_not_wait_for_whoever_keeps_a_run_locked(place: Place, database_url: str) -> None:
    worker = Worker(place)
    await worker.hello(credit=2)
    for _ in range(2):
        await place.start()
    runs = await worker.take(2)
    locked, free = runs
    await place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=locked.run_id))
    worker_id = next(frame.welcome.worker_id for frame in worker.frames if frame.HasField("welcome"))
    lease = "select available_at from kagzi.workflow_runs where run_id = $1"
    before = await place.connection.fetchval(lease, free.run_id)
    async with World(place.server.database, place.connection, database_url).held(locked.run_id):
        beat = await place.workers.Heartbeat(pb.HeartbeatRequest(worker_id=worker_id, held=runs))
        assert not beat.lost
        assert beat.cancelled == [locked.run_id], "that needs no lock"
        assert await place.connection.fetchval(lease, free.run_id) > before
    await worker.close()


async def test_a_worker_names_no_more_runs_than_it_can_hold(place: Place) -> None:
    held = [pb.Held(run_id=new_id(), claim_token=new_id())] * 20_001
    worker = Worker(place)
    await worker.hello()
    worker_id = next(frame.welcome.worker_id for frame in worker.frames if frame.HasField("welcome"))
    beat = pb.HeartbeatRequest(worker_id=worker_id, held=held)
    detail = await refusal(place.workers.Heartbeat(beat))
    assert (detail.code, detail.field) == (ErrorDetail.LIMIT_EXCEEDED, "held")
    del beat.held[-1]
    assert len((await place.workers.Heartbeat(beat)).lost) == 1
    call = place.workers.Connect()
    hello = pb.Hello(worker=pb.RegisterRequest(instance=new_id(), types=[pb.ServedType(name="order")]), held=held)
    await call.write(pb.ConnectRequest(hello=hello))
    detail = await refusal(call.read())
    assert (detail.code, detail.field) == (ErrorDetail.LIMIT_EXCEEDED, "hello.held")
    await worker.close()
