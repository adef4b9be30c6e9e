"""The one place where errors of the server become statuses of gRPC. Every failed call ends with a code and,
as a detail of google.rpc.Status in its trailing metadata, the contract's ErrorDetail. A defect is logged
with its traceback under a short id, and the caller is told the id alone. Cancelled calls pass through
untouched.
"""

from __future__ import annotations

import contextlib
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.api.checks import MESSAGE_BYTES, exceeded
from kagzi.server.api.wire import bad_text
from kagzi.store.errors import Refused, Unreachable, invalid

log = structlog.get_logger(__name__)

# As text: at run time neither takes parameters.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

# LEASE_LOST and PREDECESSOR_REFUSED are FAILED_PRECONDITION: sending the same again never helps, which is
# what sets that code apart from ABORTED and UNAVAILABLE. The detail's code tells them from
# PRECONDITION_FAILED.
CODES = {
    ErrorDetail.CODE_UNSPECIFIED: grpc.StatusCode.UNKNOWN,
    ErrorDetail.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorDetail.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    ErrorDetail.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    ErrorDetail.PRECONDITION_FAILED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorDetail.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    ErrorDetail.LEASE_LOST: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorDetail.PREDECESSOR_REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    ErrorDetail.LIMIT_EXCEEDED: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorDetail.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorDetail.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorDetail.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    ErrorDetail.INTERNAL: grpc.StatusCode.INTERNAL,
    ErrorDetail.PERMISSION_DENIED: grpc.StatusCode.PERMISSION_DENIED,
}
RETRY_AFTER_MS = 500
# Trailing metadata beyond 8 KiB is dropped on the way, and the status with it.
_MESSAGE_CHARACTERS = 1_000
_SUBJECT_CHARACTERS = 255


class Errors(grpc.aio.ServerInterceptor):
    """Wraps every handler of the server, so that no servicer deals with codes."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            return _unserved(method)
        known = self._wrapped.get(method)
        if known is None or known[0] is not handler:
            known = self._wrapped[method] = (handler, _wrap(handler, method))
        return known[1]


def describe(error: Exception, method: str) -> ErrorDetail:
    """What the caller is told of an error. Defects are logged here and nowhere else."""
    if isinstance(error, Refused):
        return error.detail
    if isinstance(error, Unreachable):
        message = f"{error}: try again, here or at another server"
        return ErrorDetail(code=ErrorDetail.UNAVAILABLE, message=message, retry_after_ms=RETRY_AFTER_MS)
    if isinstance(error, NotImplementedError):
        message = f"{method} is not part of this server: a newer one may have it"
        return ErrorDetail(code=ErrorDetail.UNIMPLEMENTED, message=message, subject=method)
    mark = secrets.token_hex(4)
    log.error("call_failed", method=method, id=mark, exc_info=error)
    message = f"the server met a defect: look for id {mark} in its log"
    return ErrorDetail(code=ErrorDetail.INTERNAL, message=message, subject=mark)


async def abort(context: Context, detail: ErrorDetail) -> NoReturn:
    """Ends the call with the status of `detail`."""
    detail = ErrorDetail(
        code=detail.code,
        message=detail.message[:_MESSAGE_CHARACTERS],
        subject=detail.subject[:_SUBJECT_CHARACTERS],
        field=detail.field[:_SUBJECT_CHARACTERS],
        retry_after_ms=detail.retry_after_ms,
    )
    code = CODES.get(detail.code, grpc.StatusCode.UNKNOWN)
    rich = Status(code=code.value[0], message=detail.message)
    rich.details.add().Pack(detail)
    status = rpc_status.to_status(rich)
    await context.abort(status.code, status.details, tuple(status.trailing_metadata or ()))


def _wrap(handler: Handler, method: str) -> Handler:
    arity = f"{_word(handler.request_streaming)}_{_word(handler.response_streaming)}"
    behaviour: Callable[[Any, Context], Any] = getattr(handler, arity)
    make = getattr(grpc, f"{arity}_rpc_method_handler")
    guarded = _generator(behaviour, method) if inspect.isasyncgenfunction(behaviour) else _coroutine(behaviour, method)
    # A stream meets what it cannot read inside its handler, where raising is right; a unary call before it.
    reader = _reader(handler.request_deserializer, late=not handler.request_streaming)
    wrapped: Handler = make(guarded, reader, handler.response_serializer)
    return wrapped


def _unserved(method: str) -> Handler:
    """Answers any kind of call, without reading it."""

    async def refuse(_requests: Any, context: Context) -> None:
        await abort(context, describe(NotImplementedError(), method))

    # Calls of every kind look like this one on the wire.
    handler: Handler = grpc.stream_stream_rpc_method_handler(refuse)
    return handler


def _word(streaming: bool) -> str:
    return "stream" if streaming else "unary"


def _coroutine(behaviour: Callable[[Any, Context], Any], method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def guarded(request: Any, context: Context) -> Any:
        if isinstance(request, Refused):
            await abort(context, request.detail)
        try:
            answer = behaviour(request, context)
            return await answer if inspect.isawaitable(answer) else answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status here
            await abort(context, describe(error, method))

    return guarded


def _generator(behaviour: Callable[[Any, Context], Any], method: str) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        if isinstance(request, Refused):
            await abort(context, request.detail)
        try:
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - every error becomes a status here
            await abort(context, describe(error, method))

    return guarded


def _reader(reader: Callable[[bytes], Any] | None, *, late: bool) -> Callable[[bytes], Any] | None:
    """Reads a message, or answers (`late`) or raises why it is refused, naming the field that is no text."""
    if reader is None:
        return None

    def read(data: bytes) -> Any:
        try:
            if len(data) <= MESSAGE_BYTES:
                return reader(data)
            refusal = exceeded("", f"the message has {len(data)} bytes, and at most {MESSAGE_BYTES} are read")
        except DecodeError:
            message = getattr(getattr(reader, "__self__", None), "DESCRIPTOR", None)
            field = bad_text(message, data) if message is not None else ""
            what = f"{field} is no valid UTF-8 text" if field else "the message does not follow the contract"
            refusal = invalid(field, what)
        if late:
            return refusal
        raise refusal

    return read
