"""Where servers are, and how their errors come back: the seam between the SDK and gRPC."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2_grpc
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import calls, errors
from kagzi.sdk.errors import ConfigError
from kagzi.server.api.errors import Errors
from kagzi.store.errors import Refused


class Service(workflow_pb2_grpc.WorkflowServiceServicer):
    """Refuses with what the test says, and remembers who asked."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.keys: list[Any] = []

    async def GetWorkflow(self, request: Any, context: Any) -> pb.GetWorkflowResponse:
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        if self.refusal is not None:
            raise self.refusal
        return pb.GetWorkflowResponse()

    async def ListWorkflows(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the proxy says no")

    async def WatchWorkflows(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        async for request in request_iterator:
            yield pb.WatchWorkflowsResponse(unknown=request.watch)


@pytest.fixture
async def service() -> AsyncIterator[tuple[Service, str]]:
    server = grpc.aio.server(interceptors=[Errors()])
    served = Service()  # type: ignore[abstract]  # what it lacks nobody asks for
    workflow_pb2_grpc.add_WorkflowServiceServicer_to_server(served, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield served, f"127.0.0.1:{port}"
    await server.stop(0)


async def asked(address: str, method: str = "GetWorkflow", timeout: float = 10) -> errors.ServerError:
    async with calls.channel(address) as channel:
        stub = WorkflowServiceStub(channel)
        request = pb.GetWorkflowRequest() if method == "GetWorkflow" else pb.ListWorkflowsRequest()
        with pytest.raises(grpc.RpcError) as raised:
            await getattr(stub, method)(request, timeout=timeout)
    return calls.error_from(raised.value, address)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("INVALID_ARGUMENT", errors.InvalidArgument),
        ("LIMIT_EXCEEDED", errors.InvalidArgument),
        ("NOT_FOUND", errors.NotFound),
        ("CONFLICT", errors.Conflict),
        ("PRECONDITION_FAILED", errors.PreconditionFailed),
        ("LEASE_LOST", errors.PreconditionFailed),
        ("PREDECESSOR_REFUSED", errors.PreconditionFailed),
        ("UNAUTHORIZED", errors.Unauthorized),
        ("RESOURCE_EXHAUSTED", errors.Unavailable),
        ("UNAVAILABLE", errors.Unavailable),
        ("UNIMPLEMENTED", errors.ServerError),
        ("INTERNAL", errors.ServerError),
    ],
)
async def test_what_the_server_refuses_comes_back_as_an_error_of_ours(
    service: tuple[Service, str], code: str, error: type[errors.ServerError]
) -> None:
    served, address = service
    served.refusal = Refused(
        ErrorDetail(code=ErrorDetail.Code.Value(code), message="why", subject="it", field="a.b", retry_after_ms=1_500)
    )
    raised = await asked(address)
    assert type(raised) is error
    assert (raised.code, raised.message, raised.subject, raised.field) == (code, "why", "it", "a.b")
    assert raised.retry_after == timedelta(seconds=1.5)


async def test_every_code_of_the_contract_has_an_error() -> None:
    for name, code in ErrorDetail.Code.items():
        assert isinstance(calls.error_from_detail(ErrorDetail(code=code, message=name)), errors.ServerError)


async def test_a_status_without_a_detail_is_understood_too(service: tuple[Service, str]) -> None:
    raised = await asked(service[1], "ListWorkflows")
    assert isinstance(raised, errors.Unauthorized)
    assert raised.message == "the proxy says no"


async def test_a_server_that_is_not_there_is_unavailable_and_named() -> None:
    raised = await asked("127.0.0.1:1")
    assert isinstance(raised, errors.Unavailable)
    assert "127.0.0.1:1" in str(raised)


async def test_a_call_that_takes_too_long_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        raised = await asked(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.2)
    assert isinstance(raised, errors.Unavailable)


def test_errors_of_unknown_making_are_errors_of_the_server() -> None:
    assert type(calls.error_from(grpc.RpcError("?"))) is errors.ServerError


@pytest.mark.parametrize("blocking", [False, True])
async def test_the_key_travels_with_every_call(service: tuple[Service, str], blocking: bool) -> None:
    served, address = service
    if blocking:

        def ask() -> None:
            with calls.sync_channel(address, api_key="secret") as channel:
                WorkflowServiceStub(channel).GetWorkflow(pb.GetWorkflowRequest())

        await asyncio.to_thread(ask)
        assert served.keys == ["Bearer secret"]
        return
    async with calls.channel(address, api_key="secret") as channel:
        stub = WorkflowServiceStub(channel)
        await stub.GetWorkflow(pb.GetWorkflowRequest())
        call = stub.WatchWorkflows()
        for name in ("a", "b"):
            await call.write(pb.WatchWorkflowsRequest(watch=[name]))
            answer = await call.read()
            assert isinstance(answer, pb.WatchWorkflowsResponse)
            assert answer.unknown == [name]
        call.cancel()
    assert served.keys == ["Bearer secret", "Bearer secret"]


@pytest.mark.parametrize(
    ("url", "targets"),
    [
        (None, ["localhost:50051"]),
        ("", ["localhost:50051"]),
        ("db:7", ["db:7"]),
        ("db", ["db:50051"]),
        ("grpc://db:7/", ["db:7"]),
        ("http://db", ["db:50051"]),
        ("[::1]:7", ["[::1]:7"]),
        ("a:1, b:2,a:1", ["a:1", "b:2"]),
    ],
)
def test_servers_are_named_by_address(url: str | None, targets: list[str]) -> None:
    assert calls.resolve_target(url) == targets


@pytest.mark.parametrize("url", ["a b", "https://db:7", "db:x", "db:0", "db:70000", ",", "user@db:7"])
def test_what_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="KAGZI_URL"):
        calls.resolve_target(url)


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAGZI_URL", "db:7")
    monkeypatch.setenv("KAGZI_NAMESPACE", "shop")
    monkeypatch.setenv("KAGZI_API_KEY", "secret")
    assert calls.resolve_target() == ["db:7"]
    assert calls.resolve_target("other:1") == ["other:1"]
    assert (calls.resolve_namespace(), calls.resolve_namespace("mine")) == ("shop", "mine")
    assert (calls.resolve_api_key(), calls.resolve_api_key("mine")) == ("secret", "mine")


def test_defaults_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAGZI_URL", "KAGZI_NAMESPACE", "KAGZI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert calls.resolve_target() == ["localhost:50051"]
    assert calls.resolve_namespace() == "default"
    assert calls.resolve_api_key() is None


def test_a_key_with_a_line_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="KAGZI_API_KEY"):
        calls.resolve_api_key("secret\n")
