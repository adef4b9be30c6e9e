"""A way to a server that writes down which calls were made. It forwards messages as they are, with what came along, and
answers as the server did.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc


class Relay(grpc.GenericRpcHandler):
    """Calls by "Service.Method", in the order in which they came."""

    def __init__(self, target: str) -> None:
        self._channel: Any = grpc.insecure_channel(target)
        self.calls: list[str] = []
        self.address = ""

    def service(self, handler_call_details: Any) -> Any:
        method: str = handler_call_details.method
        self.calls.append(method.removeprefix("/kagzi.v1.").replace("/", "."))
        if method.endswith("/WatchWorkflows"):
            return grpc.stream_stream_rpc_method_handler(lambda sent, context: self._stream(method, sent, context))
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._unary(method, request, context))

    def _unary(self, method: str, request: bytes, context: Any) -> Any:
        try:
            return self._channel.unary_unary(method)(request, metadata=_metadata(context), timeout=30)
        except grpc.RpcError as error:
            _fail(context, error)

    def _stream(self, method: str, sent: Any, context: Any) -> Iterator[Any]:
        call: Any = self._channel.stream_stream(method)(_asked(sent), metadata=_metadata(context))
        context.add_callback(call.cancel)
        try:
            yield from call
        except grpc.RpcError as error:
            _fail(context, error)

    def close(self) -> None:
        self._channel.close()


@contextmanager
def relayed(target: str) -> Iterator[Relay]:
    """A relay before the server at `target`."""
    relay = Relay(target)
    server = grpc.server(ThreadPoolExecutor(8), handlers=[relay])
    relay.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield relay
    finally:
        server.stop(None).wait()
        relay.close()


def _asked(sent: Iterator[Any]) -> Iterator[Any]:
    """What is asked until whoever asks goes. That is no error: gRPC would log one, and what is logged late stands among
    the words of the next command.
    """
    with suppress(grpc.RpcError):
        yield from sent


def _metadata(context: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in context.invocation_metadata() if key != "user-agent"]


def _fail(context: Any, error: Any) -> None:
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(error.code(), error.details() or "")
