"""A worker that does not read, or asks for too much, costs the server no memory and its runs no crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import SIGNAL, Payload
from kagzi.protocol.v1.workflow_pb2 import SignalWorkflowRequest
from kagzi.server.api import stream
from kagzi.server.api.outlet import Outlet
from tests.laws.operations import new_id
from tests.server.wire import Place, Worker, serving


@pytest_asyncio.fixture
async def place(database_url: str) -> AsyncIterator[Place]:
    async with serving(database_url) as place:
        yield place


async def test_runs_of_a_worker_that_stops_reading_are_put_back_without_a_crash(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_SLOWEST", 8_000_000)
    call = place.workers.Connect()
    worker = pb.RegisterRequest(instance=new_id(), types=[pb.ServedType(name="order")], concurrency=20)
    await call.write(pb.ConnectRequest(hello=pb.Hello(worker=worker), credit=20))
    await call.read()
    large = Payload(data=b"x" * 1_000_000)
    run_ids = [await place.start(input=large) for _ in range(20)]
    await place.until(
        "select count(*) = 20 from kagzi.workflow_runs where run_id = any ($1) and status = 'PENDING' and crashes = 0"
        " and started_at is not null",
        run_ids,
    )
    call.cancel()


async def test_credit_beyond_its_concurrency_brings_a_worker_no_more_runs(place: Place) -> None:
    worker = Worker(place)
    registered = pb.RegisterRequest(instance=worker.instance, types=[pb.ServedType(name="order")], concurrency=2)
    await worker.send(hello=pb.Hello(worker=registered), credit=2**31)
    worker._reading = asyncio.create_task(worker._read())
    await asyncio.gather(*(place.start() for _ in range(10)))
    await worker.until(lambda: len(worker.deliveries) == 2)
    await place.until("select count(*) = 8 from kagzi.workflow_runs where status = 'PENDING'")
    await worker.close()


async def test_a_worker_is_told_of_a_signal_once_however_many_follow(place: Place) -> None:
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    [held] = await worker.take()
    wait = pb.StepStarted(step_id="go", attempt_id=new_id(), kind=SIGNAL, attempt_number=1, position=1, target="go")
    operations = [
        worker.operation(held, step_started=wait),
        worker.operation(held, wait=pb.Wait(step_ids=["go"])),
    ]
    await worker.send(operations=operations)
    await worker.answered(2)
    for _ in range(20):
        await place.workflows.SignalWorkflow(
            SignalWorkflowRequest(run_id=run_id, name="go", payload=Payload(data=b"1"))
        )
    await worker.until(lambda: len(_told(worker)) >= 20)
    assert len(_told(worker)) == len(set(_told(worker))) == 20
    await worker.close()


def _told(worker: Worker) -> list[str]:
    return [fact.signal.signal_id for frame in worker.frames for wake in frame.wakes for fact in wake.facts]


def test_a_frame_is_cut_at_a_megabyte_and_what_is_larger_travels_alone() -> None:
    outlet = Outlet()
    for size in (600_000, 600_000, 2_000_000, 1):
        outlet.frame(size).accepted.append(size)
    frames = []
    while (frame := outlet.take()) is not None:
        frames.append(list(frame.accepted))
    assert frames == [[600_000], [600_000], [2_000_000], [1]]
