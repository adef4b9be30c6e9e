"""The gate before every servicer, where keys are required: who calls, whether the role is enough, and whether the
request stays in the namespace of the key; an empty namespace becomes that one. All of it before anything is read for
the caller, also for every frame of a stream. A stream ends when its key does. A call that no role opens is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message

from kagzi.server.api.scope import settle
from kagzi.server.credential import Credential, current, denied, unauthorized
from kagzi.server.keyring import Keyring
from kagzi.server.roles import ROLES, Role

# As text: at run time neither takes parameters.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_SCHEME = "bearer "
_NO_KEY = "this server asks for a key: send the metadata authorization: Bearer <key> (KAGZI_API_KEY)"
_REVOKED = "the key was revoked: ask an admin for another"
# Calls that wait for long, and must end with their key.
_LONG = frozenset({"/kagzi.v1.WorkerService/PollTask"})


class Gate(grpc.aio.ServerInterceptor):
    """Lets through whoever the keyring knows and the table of roles allows."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or ROLES.get(method) is Role.ANYBODY:
            return handler
        known = self._guarded.get(method)
        if known is None or known[0] is not handler:
            known = self._guarded[method] = (handler, self._guard(handler, method))
        return known[1]

    def _guard(self, handler: Handler, method: str) -> Handler:
        make: Callable[..., Handler]
        if handler.request_streaming and handler.response_streaming:
            make, behaviour = grpc.stream_stream_rpc_method_handler, self._stream(handler.stream_stream, method)
        elif not handler.request_streaming and not handler.response_streaming:
            make, behaviour = grpc.unary_unary_rpc_method_handler, self._unary(handler.unary_unary, method)
        else:
            raise NotImplementedError(f"no gate for calls as {method}: one side alone streams")
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    def _unary(self, behaviour: Any, method: str) -> Any:
        async def guarded(request: Message, context: Context) -> Any:
            credential = await self._admit(context, method)
            settle(request, credential)
            current.set(credential)
            if method in _LONG:
                return await self._while_valid(credential, behaviour(request, context))
            return await behaviour(request, context)

        return guarded

    def _stream(self, behaviour: Any, method: str) -> Any:
        async def guarded(requests: AsyncIterator[Message], context: Context) -> AsyncIterator[Any]:
            credential = await self._admit(context, method)
            current.set(credential)
            frames = _Frames(requests, credential)
            release = self._keyring.hold(credential, frames.revoke)
            try:
                async with contextlib.aclosing(behaviour(frames, context)) as answers:
                    async for answer in answers:
                        yield answer
            finally:
                release()

        return guarded

    async def _admit(self, context: Context, method: str) -> Credential:
        """Who calls. Refused when the key is missing or wrong, or its role is not enough."""
        shown = _shown(context)
        if shown is None:
            raise unauthorized(_NO_KEY)
        credential = await self._keyring.credential(shown)
        needed = ROLES.get(method)
        if needed is None or credential.role < needed:
            role = "no role allows it" if needed is None else f"it needs a key with the role {needed.name.lower()}"
            raise denied(f"this key has the role {credential.role.name.lower()}, and {role}", method)
        return credential

    async def _while_valid(self, credential: Credential, work: Awaitable[Any]) -> Any:
        doing = asyncio.ensure_future(work)
        revoked = False

        def revoke() -> None:
            nonlocal revoked
            revoked = True
            doing.cancel()

        release = self._keyring.hold(credential, revoke)
        try:
            return await doing
        except asyncio.CancelledError:
            if not revoked:
                raise
            raise unauthorized(_REVOKED) from None
        finally:
            release()


class _Frames:
    """The frames of a stream, each within the namespace of its key, until the key is revoked."""

    def __init__(self, requests: AsyncIterator[Message], credential: Credential) -> None:
        self._requests = requests
        self._credential = credential
        self._revoked = False
        self._waiting: asyncio.Task[Any] | None = None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if self._revoked:
            raise unauthorized(_REVOKED)
        self._waiting = task = asyncio.current_task()
        try:
            frame = await anext(self._requests)
        except asyncio.CancelledError:
            if not self._revoked or task is None:
                raise
            task.uncancel()
            raise unauthorized(_REVOKED) from None
        finally:
            self._waiting = None
        settle(frame, self._credential)
        return frame

    def revoke(self) -> None:
        """Ends the stream: whoever waits for a frame is told why."""
        self._revoked = True
        if self._waiting is not None:
            self._waiting.cancel()


def _shown(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            text = value if isinstance(value, str) else value.decode("ascii", "replace")
            return text[len(_SCHEME) :].strip() if text[: len(_SCHEME)].lower() == _SCHEME else None
    return None
