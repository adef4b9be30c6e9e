"""The servers a client talks to: one at a time, the next one when it does not answer. Every request of the SDK carries
the ids that make it recognisable, so a request whose answer was lost is simply sent again, here or there. A server that
says when to come back is taken at its word.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import grpc

from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceStub
from kagzi.protocol.v1.schedule_pb2_grpc import WorkflowScheduleServiceStub
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import calls
from kagzi.sdk.certificates import Tls
from kagzi.sdk.errors import ServerError, Unavailable
from kagzi.sdk.loop import require_outside

if TYPE_CHECKING:
    from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceAsyncStub
    from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceAsyncStub
    from kagzi.protocol.v1.schedule_pb2_grpc import WorkflowScheduleServiceAsyncStub
    from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceAsyncStub

Request = TypeVar("Request")
Response = TypeVar("Response")

_CALL = "a call of a Client"
# The code of an error that no other try can mend.
CLOSED = "CLOSED"
# One try; longer than a server waits for its database before it says that it cannot reach it.
TRY_SECS = 20.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Server:
    """One server and what it can be asked."""

    target: str
    channel: grpc.aio.Channel
    workflows: WorkflowServiceAsyncStub
    admin: AdminServiceAsyncStub
    automations: AutomationServiceAsyncStub
    schedules: WorkflowScheduleServiceAsyncStub


class Backoff:
    """Growing pauses between tries, spread so that clients do not come back all at once."""

    __slots__ = ("_pause",)

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE

    def next(self, error: ServerError | None = None) -> float:
        """Seconds to wait now; what the server asked for, if it did."""
        pause = self._pause * random.uniform(0.5, 1.0)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        if error is not None and error.retry_after is not None:
            return max(pause, error.retry_after.total_seconds() * random.uniform(1.0, 1.2))
        return pause


class Servers:
    """The servers of one client. Channels are made when they are first needed, on the loop that needs them."""

    def __init__(self, targets: Sequence[str], *, api_key: str | None = None, tls: Tls = None) -> None:
        self.targets = tuple(targets)
        self._api_key = api_key
        self._tls = tls
        self._made: dict[str, Server] = {}
        self._at = 0
        self._closed = False

    @property
    def current(self) -> Server:
        """The server to talk to now."""
        if self._closed:
            raise Unavailable("the client was closed", code=CLOSED)
        target = self.targets[self._at]
        server = self._made.get(target)
        if server is None:
            channel = calls.channel(target, api_key=self._api_key, tls=self._tls)
            server = Server(
                target,
                channel,
                workflows=WorkflowServiceStub(channel),
                admin=AdminServiceStub(channel),
                automations=AutomationServiceStub(channel),
                schedules=WorkflowScheduleServiceStub(channel),
            )
            self._made[target] = server
        return server

    def failed(self, server: Server) -> None:
        """The server did not answer: the next one is asked from now on."""
        if server.target == self.targets[self._at]:
            self._at = (self._at + 1) % len(self.targets)

    async def once(
        self, method: Callable[[Server], grpc.aio.UnaryUnaryMultiCallable[Request, Response]], request: Request
    ) -> Response:
        """Makes one try at the current server. Raises a ServerError; after Unavailable the next one is current."""
        server = self.current
        try:
            return await method(server)(request, timeout=TRY_SECS)
        except grpc.RpcError as failed:
            error = calls.error_from(failed, server.target)
            if isinstance(error, Unavailable) and error.code == "UNAVAILABLE":
                self.failed(server)
            raise error from None

    async def ask(
        self,
        method: Callable[[Server], grpc.aio.UnaryUnaryMultiCallable[Request, Response]],
        request: Request,
        *,
        patience: float,
    ) -> Response:
        """Makes a call, again for `patience` seconds while nobody answers it."""
        require_outside(_CALL)
        until = time.monotonic() + patience
        backoff = Backoff()
        while True:
            try:
                return await self.once(method, request)
            except Unavailable as error:
                pause = backoff.next(error)
                if error.code == CLOSED or time.monotonic() + pause > until:
                    raise self.gave_up(error, patience) from None
            await asyncio.sleep(pause)

    def gave_up(self, error: Unavailable, patience: float) -> Unavailable:
        """What a caller is told after the last try."""
        if error.code != "UNAVAILABLE":
            return error
        others = f" Tried: {', '.join(self.targets)}." if len(self.targets) > 1 else ""
        return Unavailable(
            f"{error.message.rstrip('.')}.{others} Kept trying for {patience:g} s. Start a server with `kagzi dev`, or "
            "say where it is: KAGZI_URL, or the client's first argument",
            retry_after=error.retry_after,
        )

    async def close(self) -> None:
        """Ends all calls and connections."""
        self._closed = True
        made, self._made = self._made, {}
        for server in made.values():
            await server.channel.close()
