"""Bytes that were captured when the contract was made are accepted by today's server: every call, and every operation
of a stream. Whether a lease is held or a run exists is another matter; nothing is malformed, unknown or a defect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import grpc
import pytest
from grpc_status import rpc_status

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.namespace_pb2 import CreateNamespaceRequest
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from tests.conformance.servers import ServerProcess
from tests.database import Databases
from tests.golden import captures

RECORDED = captures.recorded()
BAD = {ErrorDetail.INVALID_ARGUMENT, ErrorDetail.UNIMPLEMENTED, ErrorDetail.INTERNAL, ErrorDetail.CODE_UNSPECIFIED}
# These wait for something, or leave nobody to talk to.
_LAST = ("NamespaceService/DisableNamespace",)
_WAITS = ("WorkerService/PollTask",)


@pytest.fixture(scope="module")
def address(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = databases.create()
    with ServerProcess(url, tmp_path_factory.mktemp("golden")) as server:
        yield server.address
    databases.drop(url)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel


async def call(channel: grpc.aio.Channel, name: str, request: bytes) -> ErrorDetail | None:
    """Why it was refused, if it was."""
    method: Any = channel.unary_unary(f"/kagzi.v1.{name}")
    try:
        await method(request, timeout=30)
    except grpc.aio.AioRpcError as error:
        if name in _WAITS and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return None
        status = rpc_status.from_call(cast("grpc.Call", error))
        detail = ErrorDetail()
        if status is not None and status.details:
            status.details[0].Unpack(detail)
        detail.message = detail.message or f"{error.code()}: {error.details()}"
        return detail
    return None


async def prepare(channel: grpc.aio.Channel) -> None:
    await call(channel, "NamespaceService/CreateNamespace", CreateNamespaceRequest(name="golden").SerializeToString())
    start = StartWorkflowRequest(
        namespace="golden", run_id=captures.RUN.run_id, workflow_type="order", task_queue="golden"
    )
    assert await call(channel, "WorkflowService/StartWorkflow", start.SerializeToString()) is None


async def test_every_call_that_was_captured_is_accepted(channel: grpc.aio.Channel) -> None:
    await prepare(channel)
    refused = {}
    for name in sorted(RECORDED["requests"], key=lambda name: name in _LAST):
        detail = await call(channel, name, bytes.fromhex(RECORDED["requests"][name]))
        if detail is not None and detail.code in BAD:
            refused[name] = detail.message
    assert refused == {}


async def test_every_operation_that_was_captured_is_answered_and_the_stream_goes_on(channel: grpc.aio.Channel) -> None:
    connect: Any = channel.stream_stream("/kagzi.v1.WorkerService/Connect")
    stream = connect()
    served = [pb.ServedType(name="order")]
    worker = pb.RegisterRequest(namespace="default", task_queue="golden", instance="golden", types=served)
    await stream.write(pb.ConnectRequest(hello=pb.Hello(worker=worker), credit=1).SerializeToString())
    frame = pb.ConnectRequest(delivered=[captures.RUN], evicted=[captures.RUN]).SerializeToString()
    operations = {name: bytes.fromhex(data) for name, data in RECORDED["operations"].items()}
    # A frame is a sequence of fields, so one operation more is its bytes behind the others.
    for data in operations.values():
        frame += b"\x22" + _varint(len(data)) + data
    await stream.write(frame)
    numbers = {pb.Operation.FromString(data).number: name for name, data in operations.items()}
    answered: dict[int, str] = {}
    async with asyncio.timeout(60):
        while answered.keys() != numbers.keys():
            response = pb.ConnectResponse.FromString(await stream.read())
            answered |= dict.fromkeys(response.accepted, "")
            for answer in response.answers:
                answered[answer.number] = answer.refused.message if answer.refused.code in BAD else ""
    stream.cancel()
    assert {numbers[number]: message for number, message in answered.items() if message} == {}


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
