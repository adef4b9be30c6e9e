"""The end of a server, and what it says of itself before: whoever waits is answered or refused with a reason, and
health tells of what is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest_asyncio

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.admin_pb2 import HEALTH_DEGRADED, HEALTH_SERVING, HealthCheckRequest, HealthStatus
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.protocol.v1.common_pb2 import SLEEPING, ErrorDetail
from kagzi.protocol.v1.workflow_pb2 import CancelWorkflowRequest, ResumeWorkflowRequest
from tests.laws.operations import new_id
from tests.laws.world import World
from tests.server.calls import refusal
from tests.server.wire import Place, Worker, serving


@pytest_asyncio.fixture
async def place(database_url: str) -> AsyncIterator[Place]:
    async with serving(database_url, batcher_queue_operations=1) as place:
        yield place


def _world(place: Place, url: str) -> World:
    return World(place.server.database, place.connection, url)


async def _parts(place: Place) -> dict[str, HealthStatus.ValueType]:
    async with grpc.aio.insecure_channel(place.server.address) as channel:
        answer = await AdminServiceStub(channel).HealthCheck(HealthCheckRequest())
    return {check.name: check.status for check in answer.checks}


async def test_whoever_still_waits_when_the_server_stops_is_refused_with_a_reason(
    place: Place, database_url: str
) -> None:
    """gRPC would cut the call off without one."""
    run_id = await place.start()
    async with _world(place, database_url).held(run_id):
        asking = asyncio.ensure_future(refusal(place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id))))
        await _until_full(place)
        await place.server.stop(1.0)
        detail = await asking
    assert detail.code == ErrorDetail.UNAVAILABLE
    assert detail.retry_after_ms


async def _until_full(place: Place) -> None:
    async with asyncio.timeout(60):
        while place.server.batcher.has_room():  # noqa: ASYNC110 - nobody tells that an operation was taken
            await asyncio.sleep(0.005)


async def test_health_tells_of_every_part_and_of_a_batcher_that_is_full(place: Place, database_url: str) -> None:
    run_id = await place.start()
    names = ["database", "schema", "notify", "coordinator", "firing", "batcher", "dispatcher"]
    assert await _parts(place) == dict.fromkeys(names, HEALTH_SERVING)
    async with _world(place, database_url).held(run_id):
        asking = asyncio.ensure_future(place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id)))
        await _until_full(place)
        assert (await _parts(place))["batcher"] == HEALTH_DEGRADED
    await asking
    assert (await _parts(place))["batcher"] == HEALTH_SERVING


async def test_health_tells_of_a_loop_that_fails(place: Place) -> None:
    worker = Worker(place)
    await worker.hello()
    [queue] = place.server.dispatcher._queues.values()
    assert (await _parts(place))["dispatcher"] == HEALTH_SERVING
    queue._pausing = True
    assert (await _parts(place))["dispatcher"] == HEALTH_DEGRADED
    next(iter(place.server.batcher._lanes))._pausing = True
    assert (await _parts(place))["batcher"] == HEALTH_DEGRADED
    await worker.close()


async def test_a_resumption_whose_commit_was_not_answered_takes_effect_once(place: Place) -> None:
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    [run] = await worker.take()
    body = pb.Suspend(parked_json="{}", parked_hash="a", operation_id=new_id())
    await place.workers.Suspend(pb.SuspendRequest(run=run, suspend=body))
    await worker.close()
    place.proxy.answers_to_lose = 1
    answer = await place.workflows.ResumeWorkflow(ResumeWorkflowRequest(run_id=run_id))
    assert place.proxy.answers_to_lose == 0
    assert answer.status == SLEEPING
    await place.until("select available_at <= kagzi.now() from kagzi.workflow_runs where run_id = $1", run_id)
