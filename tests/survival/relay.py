"""A relay between clients or workers and one server, that loses what a network loses: the answer to a request that took
effect. A call whose reply is lost ends as calls end when a connection breaks; so does a stream, at the first frame that
answers the chosen operation or brings what was chosen. It can also hold that frame back. It changes no message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import grpc

from kagzi.protocol.v1 import worker_pb2 as pb

CONNECT = "/kagzi.v1.WorkerService/Connect"
WATCH = "/kagzi.v1.WorkflowService/WatchWorkflows"
# What a server says by itself, as fields of its frames.
NOTICES = ("welcome", "deliveries", "wakes", "cancels")
_BROKEN = "the relay lost the reply"


class Relay:
    """One listener on loopback before the server at `upstream`; `relay.address` is the way through it."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None
        # Whose reply is caught next: the name of an operation, or of a method.
        self._catching = ""
        self._number = 0
        self._let_go = asyncio.Event()
        self._let_go.set()
        self.lost = asyncio.Event()
        self.held = asyncio.Event()
        # Every operation and every call that passed, by name, repeated ones too.
        self.passed: list[str] = []
        # The operations of streams whose answers passed, and the names of those under way.
        self.answered: list[str] = []
        self._names: dict[int, str] = {}
        # The operations of each frame that had any.
        self.frames: list[list[str]] = []
        self.address = ""

    def lose(self, name: str) -> None:
        """Loses the answer to the next operation ("step_completed") or call ("SignalWorkflow") of this name, or the
        next frame with such a notice ("wakes").
        """
        self._catching = name

    def hold(self, name: str) -> None:
        """Holds the answer to the next operation of this name back, and all that follows it."""
        self._catching = name
        self._let_go.clear()

    def let_go(self) -> None:
        """What was held back goes on its way."""
        self._let_go.set()

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._upstream)
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        assert self._channel is not None
        self.let_go()
        await self._server.stop(0)
        await self._channel.close()

    async def call(self, method: str, request: bytes, context: Any) -> bytes:
        """A unary call."""
        assert self._channel is not None
        name = method.rpartition("/")[2]
        self.passed.append(name)
        ask: Any = self._channel.unary_unary(method)
        try:
            reply: bytes = await ask(request, metadata=context.invocation_metadata(), timeout=context.time_remaining())
            if name == self._catching:
                await self._lose(context)
            return reply
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata()))
            await context.abort(error.code(), error.details() or "")
            raise

    async def stream(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """A stream. That of a worker is read on its way."""
        assert self._channel is not None
        work = method == CONNECT
        begin: Any = self._channel.stream_stream(method)
        call = begin(self._noting(requests) if work else requests, metadata=context.invocation_metadata())
        try:
            async for frame in call:
                if work:
                    self._note(frame)
                if work and self._catching and self._caught(frame):
                    if self._let_go.is_set():
                        await self._lose(context)
                    self.held.set()
                    await self._let_go.wait()
                yield frame
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(tuple(error.trailing_metadata()))
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()

    async def _noting(self, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for frame in requests:
            operations = pb.ConnectRequest.FromString(frame).operations
            if operations:
                self.frames.append([operation.WhichOneof("body") or "" for operation in operations])
            for operation in operations:
                name = operation.WhichOneof("body") or ""
                self.passed.append(name)
                self._names[operation.number] = name
                if name == self._catching and not self._number:
                    self._number = operation.number
            yield frame

    def _note(self, frame: bytes) -> None:
        heard = pb.ConnectResponse.FromString(frame)
        for number in (*heard.accepted, *(answer.number for answer in heard.answers)):
            self.answered.append(self._names.get(number, ""))

    def _caught(self, frame: bytes) -> bool:
        heard = pb.ConnectResponse.FromString(frame)
        if self._catching in NOTICES:
            return any(field.name == self._catching for field, _ in heard.ListFields())
        return bool(self._number) and (
            self._number in heard.accepted or any(answer.number == self._number for answer in heard.answers)
        )

    async def _lose(self, context: Any) -> None:
        self._catching = ""
        self._number = 0
        self.lost.set()
        await context.abort(grpc.StatusCode.UNAVAILABLE, _BROKEN)


class _Handlers(grpc.GenericRpcHandler):
    """Every method there is, as bytes."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method: str = details.method
        relay = self._relay

        async def call(request: bytes, context: Any) -> bytes:
            return await relay.call(method, request, context)

        async def stream(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for frame in relay.stream(method, requests, context):
                yield frame

        if method in (CONNECT, WATCH):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(call)
