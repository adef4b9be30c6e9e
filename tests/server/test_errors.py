"""What a caller sees of an error: a code, a detail that names the field, and nothing of the server's inside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status
from structlog.testing import capture_logs

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.protocol.v1.worker_pb2 import ConnectRequest, ConnectResponse, Operation, StartChildRequest
from kagzi.protocol.v1.workflow_pb2 import GetWorkflowRequest, GetWorkflowResponse, StartWorkflowRequest
from kagzi.server.api.checks import MESSAGE_BYTES
from kagzi.server.api.errors import CODES, Errors
from kagzi.store.errors import Refused, Unreachable, invalid

SERVICE = "kagzi.v1.Tested"
HALF_A_PAIR = b"\xed\xa0\x80"


@asynccontextmanager
async def serving(**handlers: grpc.RpcMethodHandler[Any, Any]) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server(interceptors=[Errors()], options=[("grpc.max_receive_message_length", 2 * MESSAGE_BYTES)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def unary(behaviour: Callable[[Any, Any], Any], request: Any = GetWorkflowRequest) -> Any:
    return grpc.unary_unary_rpc_method_handler(behaviour, request.FromString, GetWorkflowResponse.SerializeToString)


def raising(error: BaseException) -> Any:
    async def fail(_request: Any, _context: Any) -> None:
        raise error

    return unary(fail)


def calling(channel: grpc.aio.Channel, method: str) -> Any:
    """Sends bytes as they are, also those that no client would."""
    return channel.unary_unary(f"/{SERVICE}/{method}")


async def refused(channel: grpc.aio.Channel, method: str, data: bytes = b"") -> tuple[grpc.StatusCode, ErrorDetail]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await calling(channel, method)(data)
    return caught.value.code(), detail_of(caught.value)


def detail_of(error: grpc.aio.AioRpcError) -> ErrorDetail:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it only reads what both kinds of error have
    assert status is not None
    assert status.message == error.details()
    detail = ErrorDetail()
    assert status.details[0].Unpack(detail)
    return detail


async def test_every_refusal_has_its_code_and_carries_its_detail_whole() -> None:
    details = [
        ErrorDetail(code=code, message=f"no {code}", subject="r1", field="run_id", retry_after_ms=7) for code in CODES
    ]
    handlers = {f"M{detail.code}": raising(Refused(detail)) for detail in details}
    async with serving(**handlers) as channel:
        for detail in details:
            code, told = await refused(channel, f"M{detail.code}")
            assert (code, told) == (CODES[detail.code], detail)


def test_every_code_of_the_contract_is_mapped() -> None:
    assert set(CODES) == set(ErrorDetail.Code.values())
    assert CODES[ErrorDetail.LEASE_LOST] is grpc.StatusCode.FAILED_PRECONDITION
    assert CODES[ErrorDetail.CONFLICT] is grpc.StatusCode.ALREADY_EXISTS
    assert CODES[ErrorDetail.LIMIT_EXCEEDED] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_database_that_does_not_answer_is_unavailable_for_a_while() -> None:
    async with serving(Get=raising(Unreachable("the database did not answer"))) as channel:
        code, detail = await refused(channel, "Get")
    assert (code, detail.code) == (grpc.StatusCode.UNAVAILABLE, ErrorDetail.UNAVAILABLE)
    assert detail.retry_after_ms > 0


async def test_a_defect_is_logged_with_an_id_and_the_caller_is_told_the_id_alone() -> None:
    with capture_logs() as logs:
        async with serving(Get=raising(KeyError("inside"))) as channel:
            code, detail = await refused(channel, "Get")
    assert (code, detail.code) == (grpc.StatusCode.INTERNAL, ErrorDetail.INTERNAL)
    assert "inside" not in detail.message
    [entry] = [entry for entry in logs if entry["event"] == "call_failed"]
    assert entry["id"] in detail.message
    assert isinstance(entry["exc_info"], KeyError)


async def test_a_long_refusal_still_arrives() -> None:
    async with serving(Get=raising(invalid("x" * 10_000, "y" * 100_000, "z" * 100_000))) as channel:
        code, detail = await refused(channel, "Get")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert detail.field.startswith("xxx")


async def test_what_this_server_does_not_have_is_unimplemented_with_a_detail() -> None:
    async with serving(Get=raising(NotImplementedError())) as channel:
        for method in ("Get", "Unheard"):
            code, detail = await refused(channel, method)
            assert (code, detail.code) == (grpc.StatusCode.UNIMPLEMENTED, ErrorDetail.UNIMPLEMENTED)
            assert detail.subject == f"/{SERVICE}/{method}"


async def test_a_cancelled_call_ends_its_handler_and_is_no_error_of_the_server() -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def wait(_request: Any, _context: Any) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    with capture_logs() as logs:
        async with serving(Get=unary(wait)) as channel:
            call = calling(channel, "Get")(b"")
            await asyncio.wait_for(entered.wait(), 10)
            call.cancel()
            await asyncio.wait_for(left.wait(), 10)
    assert logs == []


def broken(message: Any) -> bytes:
    return bytes(message.SerializeToString().replace(b"@@@", HALF_A_PAIR))


@pytest.mark.parametrize(
    ("request_type", "message", "field"),
    [
        (GetWorkflowRequest, GetWorkflowRequest(namespace="default", run_id="@@@"), "run_id"),
        (StartWorkflowRequest, StartWorkflowRequest(priority=3, labels={"a": "b", "x": "@@@"}), "labels"),
        (StartWorkflowRequest, StartWorkflowRequest(input=Payload(data=b"@@@", encoding="@@@")), "input.encoding"),
        (StartChildRequest, None, "start_child.child.version"),
    ],
)
async def test_half_a_surrogate_pair_is_refused_with_the_name_of_its_field(
    request_type: Any, message: Any, field: str
) -> None:
    if message is None:
        message = StartChildRequest()
        message.start_child.child.version = "@@@"
    async with serving(Get=unary(_unreachable, request_type)) as channel:
        code, detail = await refused(channel, "Get", broken(message))
    assert (code, detail.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)


@pytest.mark.parametrize("junk", [b"\xff", b"\x0a\xff", b"\x0a\x05ab", b"\x0b", b"\x08" + b"\xff" * 12, b"\x00"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(junk: bytes) -> None:
    async with serving(Get=unary(_unreachable)) as channel:
        code, detail = await refused(channel, "Get", junk)
    assert (code, detail.code) == (grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail.INVALID_ARGUMENT)


async def test_a_message_of_4_mib_is_read_and_one_byte_more_refused() -> None:
    async def get(_request: Any, _context: Any) -> GetWorkflowResponse:
        return GetWorkflowResponse()

    frame = len(StartWorkflowRequest(input=Payload(data=b"x" * MESSAGE_BYTES)).SerializeToString()) - MESSAGE_BYTES
    async with serving(Get=unary(get, StartWorkflowRequest)) as channel:
        fitting = StartWorkflowRequest(input=Payload(data=b"x" * (MESSAGE_BYTES - frame))).SerializeToString()
        assert len(fitting) == MESSAGE_BYTES
        await calling(channel, "Get")(fitting)
        larger = StartWorkflowRequest(input=Payload(data=b"x" * (MESSAGE_BYTES - frame + 1))).SerializeToString()
        code, detail = await refused(channel, "Get", larger)
    assert (code, detail.code) == (grpc.StatusCode.INVALID_ARGUMENT, ErrorDetail.LIMIT_EXCEEDED)


async def test_a_stream_answers_until_it_meets_an_error_and_then_says_which() -> None:
    async def echo(requests: Any, _context: Any) -> AsyncIterator[ConnectResponse]:
        async for request in requests:
            if request.credit == 0:
                raise invalid("operations.run_id", "not like this")
            yield ConnectResponse(accepted=[request.credit])

    handler = grpc.stream_stream_rpc_method_handler(echo, ConnectRequest.FromString, ConnectResponse.SerializeToString)
    bad = [ConnectRequest().SerializeToString(), broken(ConnectRequest(operations=[Operation(run_id="@@@")]))]
    async with serving(Connect=handler) as channel:
        for last in bad:
            call: Any = channel.stream_stream(f"/{SERVICE}/Connect", None, ConnectResponse.FromString)()
            await call.write(ConnectRequest(credit=5).SerializeToString())
            assert list((await call.read()).accepted) == [5]
            await call.write(last)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert detail_of(caught.value).field == "operations.run_id"


async def _unreachable(_request: Any, _context: Any) -> None:
    raise AssertionError("a message that cannot be read reaches no handler")
