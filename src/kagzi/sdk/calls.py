"""How the SDK reaches a server: where it is, the channel to it, and its errors as ours. A channel is back a moment
after its server, however long that was away. The one place that maps gRPC to `kagzi.errors`; it sends nothing itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError
from grpc_status import rpc_status

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.sdk.certificates import Tls, credentials
from kagzi.sdk.definition import check_name
from kagzi.sdk.errors import (
    ConfigError,
    Conflict,
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    ServerError,
    Unauthorized,
    Unavailable,
)

DEFAULT_TARGET = "localhost:50051"
DEFAULT_NAMESPACE = "default"
OPTIONS: tuple[tuple[str, int], ...] = (
    # Found on a real network: after 80 s without its server a channel with the defaults came back 32 s late.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # How long one attempt to connect may take: room for a far server's handshake.
    ("grpc.min_reconnect_backoff_ms", 3_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # A dead server is noticed within 15 s, also by a channel on which nothing happens. Found with a network that
    # swallowed everything: only the last of these ends a connection, and it is a minute unless it is set. Over a slow
    # network the answer to a ping stands behind what is on its way; ten seconds let it.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # The server says what is too large, with the field to blame.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Channels share no connection, so that heartbeats do not stand behind payloads.
    ("grpc.use_local_subchannel_pool", 1),
)

# A key names its namespace, as in an address, and its id.
_KEY = re.compile(r"kagzi_([\w.~%-]+)\.[0-9a-f]{32}\.[\w-]{43}", re.ASCII)
_HOST = r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)"
_TARGET = re.compile(rf"(?:(?:grpc|http)://)?(?P<host>{_HOST})(?::(?P<port>\d{{1,5}}))?/?")
_ERRORS: dict[int, type[ServerError]] = {
    ErrorDetail.INVALID_ARGUMENT: InvalidArgument,
    ErrorDetail.LIMIT_EXCEEDED: InvalidArgument,
    ErrorDetail.NOT_FOUND: NotFound,
    ErrorDetail.CONFLICT: Conflict,
    ErrorDetail.PRECONDITION_FAILED: PreconditionFailed,
    ErrorDetail.LEASE_LOST: PreconditionFailed,
    ErrorDetail.PREDECESSOR_REFUSED: PreconditionFailed,
    ErrorDetail.UNAUTHORIZED: Unauthorized,
    ErrorDetail.PERMISSION_DENIED: Unauthorized,
    ErrorDetail.RESOURCE_EXHAUSTED: Unavailable,
    ErrorDetail.UNAVAILABLE: Unavailable,
}
# For statuses that come without a detail: from gRPC itself, or from what stands between us and the server.
_BARE = {
    grpc.StatusCode.INVALID_ARGUMENT: ErrorDetail.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE: ErrorDetail.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND: ErrorDetail.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: ErrorDetail.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: ErrorDetail.PRECONDITION_FAILED,
    grpc.StatusCode.UNAUTHENTICATED: ErrorDetail.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: ErrorDetail.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ErrorDetail.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE: ErrorDetail.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: ErrorDetail.UNAVAILABLE,
    grpc.StatusCode.CANCELLED: ErrorDetail.UNAVAILABLE,
    grpc.StatusCode.ABORTED: ErrorDetail.UNAVAILABLE,
    grpc.StatusCode.UNIMPLEMENTED: ErrorDetail.UNIMPLEMENTED,
}


def resolve_target(url: str | None = None) -> list[str]:
    """The servers to talk to, as "host:port": those given, of KAGZI_URL, or the local one."""
    text = url or os.environ.get("KAGZI_URL") or DEFAULT_TARGET
    if not isinstance(text, str):
        raise ConfigError(f"{text!r} names no server: that is text, as '{DEFAULT_TARGET}'.")
    return list(dict.fromkeys(_target(part.strip(), text) for part in text.split(",")))


def resolve_namespace(namespace: str | None = None, api_key: str | None = None) -> str:
    """The namespace to work in: the one given, of KAGZI_NAMESPACE, the one that the key names, or "default"."""
    if namespace:
        check_name(namespace, "namespace")
    return namespace or os.environ.get("KAGZI_NAMESPACE") or named_by(api_key) or DEFAULT_NAMESPACE


def named_by(api_key: str | None) -> str:
    """The namespace that a key names; empty when it names none, as an operator's own."""
    found = _KEY.fullmatch(api_key or "")
    return unquote(found[1]) if found else ""


def resolve_api_key(api_key: str | None = None) -> str | None:
    """The key to show: the one given, of KAGZI_API_KEY, or none."""
    found = api_key or os.environ.get("KAGZI_API_KEY") or None
    if found is not None and not (isinstance(found, str) and found.isascii() and found.isprintable()):
        raise ConfigError("api_key (KAGZI_API_KEY) holds characters that no key has: copy it again, without line ends.")
    return found


def channel(target: str, *, api_key: str | None = None, tls: Tls = None) -> grpc.aio.Channel:
    """A channel to one server. It connects when it is first used, and again whenever that is needed."""
    interceptors = _async_interceptors(api_key) if api_key else None
    shown = credentials(tls)
    if shown is None:
        return grpc.aio.insecure_channel(target, options=OPTIONS, interceptors=interceptors)
    return grpc.aio.secure_channel(target, shown, options=OPTIONS, interceptors=interceptors)


def sync_channel(target: str, *, api_key: str | None = None, tls: Tls = None) -> grpc.Channel:
    """The same for code without an event loop."""
    shown = credentials(tls)
    if shown is None:
        made = grpc.insecure_channel(target, options=OPTIONS)
    else:
        made = grpc.secure_channel(target, shown, options=OPTIONS)
    return grpc.intercept_channel(made, _Key(api_key)) if api_key else made


def error_from(rpc_error: grpc.RpcError, target: str = "") -> ServerError:
    """The error of ours that a failed call means; `target` is the server it was made to."""
    code: grpc.StatusCode = getattr(rpc_error, "code", lambda: grpc.StatusCode.UNKNOWN)()
    told: str = getattr(rpc_error, "details", lambda: "")() or ""
    detail = _detail(rpc_error)
    if detail is not None:
        return error_from_detail(detail)
    detail = ErrorDetail(code=_BARE.get(code, ErrorDetail.INTERNAL), message=told or code.name)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        detail.message = f"no answer from the server at {target or 'its address'}: {told or code.name}"
    elif code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in told:
        # gRPC's own word for a message of a size that will not change by waiting.
        detail.code = ErrorDetail.LIMIT_EXCEEDED
    return error_from_detail(detail)


def error_from_detail(detail: ErrorDetail) -> ServerError:
    """The error of ours that the contract's detail means."""
    known = ErrorDetail.Code.DESCRIPTOR.values_by_number.get(detail.code)
    return _ERRORS.get(detail.code, ServerError)(
        detail.message,
        code="" if known is None or detail.code == 0 else known.name,
        subject=detail.subject,
        field=detail.field,
        retry_after=timedelta(milliseconds=detail.retry_after_ms) if detail.retry_after_ms > 0 else None,
    )


def _detail(rpc_error: grpc.RpcError) -> ErrorDetail | None:
    """What the server packed into the trailing metadata; None when it did not speak, or not our language."""
    if not isinstance(rpc_error, grpc.aio.AioRpcError | grpc.Call):
        return None
    try:
        status = rpc_status.from_call(rpc_error)  # type: ignore[arg-type]  # an AioRpcError has all that it asks for
    except (ValueError, DecodeError):
        # A proxy rewrote the code or the metadata.
        return None
    for packed in status.details if status is not None else ():
        detail = ErrorDetail()
        if packed.Is(ErrorDetail.DESCRIPTOR) and packed.Unpack(detail):
            return detail
    return None


def _target(part: str, text: str) -> str:
    found = _TARGET.fullmatch(part)
    port = int(found["port"] or 50051) if found else 0
    if found is None or not 0 < port < 65_536:
        hint = " For TLS, give the address without https:// and pass tls=True." if part.startswith("https:") else ""
        raise ConfigError(
            f"{text!r} (KAGZI_URL) names no server: accepted are host:port, as {DEFAULT_TARGET}, and several of them "
            f"separated by commas.{hint}"
        )
    return f"{found['host']}:{port}"


class _AsyncUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, api_key: str) -> None:
        self._entry = _entry(api_key)

    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await continuation(_with(client_call_details, self._entry), request)


class _AsyncStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, api_key: str) -> None:
        self._entry = _entry(api_key)

    async def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return await continuation(_with(client_call_details, self._entry), request_iterator)


class _Key(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):
    def __init__(self, api_key: str) -> None:
        self._entry = _entry(api_key)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return continuation(_with(client_call_details, self._entry), request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        return continuation(_with(client_call_details, self._entry), request_iterator)


def _async_interceptors(api_key: str) -> Sequence[grpc.aio.ClientInterceptor]:
    # gRPC sorts an interceptor into one kind of call only, so each kind has its own.
    return [_AsyncUnary(api_key), _AsyncStream(api_key)]


def _entry(api_key: str) -> tuple[str, str]:
    return "authorization", f"Bearer {api_key}"


def _with(details: Any, entry: tuple[str, str]) -> Any:
    """The details of a call with one more entry in its metadata."""
    return details._replace(metadata=grpc.aio.Metadata(*(details.metadata or ()), entry))
