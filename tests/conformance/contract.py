"""The contract as a caller sees it: channels to one or more servers, a stub for each service, and the errors they
answer with. With several servers every call goes to the next one, so that nothing can depend on what one remembers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import grpc
import pytest
from grpc_status import rpc_status

from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.namespace_pb2_grpc import NamespaceServiceStub
from kagzi.protocol.v1.schedule_pb2_grpc import WorkflowScheduleServiceStub
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub

T = TypeVar("T")

_OPTIONS = (
    # A history may be larger than the 4 MiB that are read unless told otherwise.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
)
# Nothing was done, or it is not known whether it was: the same request may be sent again. gRPC itself answers CANCELLED
# to a call that reached a stopping server and not its code.
PASSING = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED})


class Contract:
    """Stubs of every service that this suite speaks to."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self._channels = [grpc.aio.insecure_channel(address, options=_OPTIONS) for address in addresses]
        channel = cast("grpc.aio.Channel", _Turns(self._channels))
        self.workflows = WorkflowServiceStub(channel)
        self.workers = WorkerServiceStub(channel)
        self.admin = AdminServiceStub(channel)
        self.namespaces = NamespaceServiceStub(channel)
        self.schedules = WorkflowScheduleServiceStub(channel)

    async def raw(self, method: str, request: bytes) -> bytes:
        """A call of bytes, for requests that no stub would send. `method` is as "/kagzi.v1.WorkerService/Sleep"."""
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channels[0].unary_unary(method)
        return await call(request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            await channel.close()


class _Turns:
    """Looks like a channel to a stub; each call goes to the next of several."""

    def __init__(self, channels: list[grpc.aio.Channel]) -> None:
        self._channels = channels
        self._turn = itertools.count()

    def unary_unary(self, *given: Any, **named: Any) -> Callable[..., Any]:
        return self._take_turns([channel.unary_unary(*given, **named) for channel in self._channels])

    def stream_stream(self, *given: Any, **named: Any) -> Callable[..., Any]:
        return self._take_turns([channel.stream_stream(*given, **named) for channel in self._channels])

    def _take_turns(self, calls: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        def call(*request: Any, **options: Any) -> Any:
            return calls[next(self._turn) % len(calls)](*request, **options)

        return call


def detail(error: grpc.aio.AioRpcError) -> ErrorDetail:
    """What a failed call says exactly; empty when it says nothing but its status."""
    status = rpc_status.from_call(cast("grpc.Call", error))
    found = ErrorDetail()
    if status is not None:
        for packed in status.details:
            packed.Unpack(found)
    return found


@contextlib.contextmanager
def refused(code: ErrorDetail.Code.ValueType, field: str | None = None) -> Iterator[ErrorDetail]:
    """Expects the call inside to be refused with this code, and to blame this field; gives what it said."""
    said = ErrorDetail()
    name = ErrorDetail.Code.Name
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        yield said
    said.CopyFrom(detail(raised.value))
    assert said.code == code, f"{name(said.code)} instead of {name(code)}: {raised.value.details()}"
    assert said.message, "a refusal says what to do"
    assert field is None or said.field == field, f"{said.field!r} is blamed instead of {field!r}: {said.message}"


async def patiently(call: Callable[[], Awaitable[T]], within: float = 60.0) -> T:
    """Makes a call again, with the same ids, while the server or its database is away."""
    until = time.monotonic() + within
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() not in PASSING or time.monotonic() > until:
                raise
            await asyncio.sleep(max(0.05, detail(error).retry_after_ms / 1_000))


async def eventually(
    look: Callable[[], Awaitable[T]], satisfied: Callable[[T], bool] = bool, within: float = 60.0
) -> T:
    """Looks until what is there satisfies; fails with what was seen last."""
    until = time.monotonic() + within
    pause = 0.005
    while True:
        seen = await look()
        if satisfied(seen):
            return seen
        if time.monotonic() > until:
            raise AssertionError(f"not so within {within:g} s; last seen: {seen}")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.1)
