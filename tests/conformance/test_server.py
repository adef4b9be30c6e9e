"""What a server says of itself, and that it answers every call of the contract or says that it does not know it."""

from __future__ import annotations

import asyncio
from functools import partial

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from tests.conformance import specimens
from tests.conformance.contract import detail, eventually
from tests.conformance.execution import Run
from tests.conformance.place import Place

pytestmark = pytest.mark.conformance


async def _answer(place: Place, method: MethodDescriptor, request: bytes) -> ErrorDetail.Code.ValueType:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await place.contract.raw(f"/{method.containing_service.full_name}/{method.name}", request)
    return detail(raised.value).code


@pytest.mark.parametrize("method", specimens.methods(), ids=specimens.short)
async def test_exactly_the_calls_of_later_capabilities_are_not_implemented(
    quiet: Place, method: MethodDescriptor
) -> None:
    if specimens.comes_later(method):
        assert await _answer(quiet, method, b"") == ErrorDetail.UNIMPLEMENTED
    elif specimens.short(method) not in specimens.STREAMS:
        # Bytes that are no message, because an empty one is a good request to some.
        assert await _answer(quiet, method, b"\xff") == ErrorDetail.INVALID_ARGUMENT


async def test_a_call_that_is_in_no_contract_is_answered_as_unknown(quiet: Place) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await quiet.contract.raw("/kagzi.v1.WorkerService/Conjure", b"")
    assert detail(raised.value).code == ErrorDetail.UNIMPLEMENTED


async def test_a_server_tells_what_it_is_and_that_it_is_well(quiet: Place) -> None:
    info = await quiet.contract.admin.GetServerInfo(ad.GetServerInfoRequest())
    assert info.server_id
    assert info.lease_ms > 2 * info.heartbeat_interval_ms > 0
    assert (info.limits.payload_bytes, info.limits.message_bytes, info.limits.name_bytes) == (2 << 20, 4 << 20, 255)
    worker = await quiet.hand()
    await worker.deregister()

    async def well() -> bool:
        health = await quiet.contract.admin.HealthCheck(ad.HealthCheckRequest())
        return health.status == ad.HEALTH_SERVING

    await eventually(well)


async def test_many_runs_on_many_slots_execute_every_step_exactly_once(place: Place) -> None:
    executed: list[str] = []

    async def workflow(run: Run) -> int:
        total = 0
        for number in range(4):
            total += await run.step(f"step-{number}", partial(_note, executed, run, number))
        return total

    async with place.worker(workflow, slots=6), place.worker(workflow, slots=6):
        run_ids = await asyncio.gather(*(place.start() for _ in range(40)))
        results = await asyncio.gather(*(place.result(run_id) for run_id in run_ids))
    assert results == [6] * 40
    assert len(executed) == 160
    assert len(set(executed)) == 160


async def _note(executed: list[str], run: Run, number: int) -> int:
    executed.append(f"{run.task.run_id}/{number}")
    return number
