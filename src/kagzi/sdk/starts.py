"""Gathers the starts of one moment into one call. While a call is under way the next one gathers; a lone start goes at
once. A start whose answer was lost is sent again with the same run id, here or at another server, until its caller's
patience is over. Each start succeeds, fails or waits by itself: one that the server puts off keeps no other.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kagzi.protocol.v1.workflow_pb2 import (
    StartWorkflowRequest,
    StartWorkflowResponse,
    StartWorkflowsRequest,
    StartWorkflowsResponse,
)
from kagzi.sdk import calls
from kagzi.sdk.errors import ServerError, Unavailable
from kagzi.sdk.loop import require_outside
from kagzi.sdk.servers import CLOSED, Backoff, Servers

# A call is cut here; a start that is larger travels alone.
_MOST_STARTS = 1_000
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Start:
    request: StartWorkflowRequest
    answered: asyncio.Future[StartWorkflowResponse]
    size: int
    until: float


class Starts:
    """The starts of one client."""

    def __init__(self, servers: Servers, namespace: str, patience: float) -> None:
        self._servers = servers
        self._namespace = namespace
        self._patience = patience
        self._waiting: deque[_Start] = deque()
        self._sending: asyncio.Task[None] | None = None
        # Put off by the server, until they are sent again.
        self._resting: dict[int, tuple[_Start, asyncio.TimerHandle]] = {}

    async def start(self, request: StartWorkflowRequest) -> StartWorkflowResponse:
        """Starts a run, together with whatever else is started now."""
        require_outside("client.start()")
        loop = asyncio.get_running_loop()
        start = _Start(request, loop.create_future(), request.ByteSize(), time.monotonic() + self._patience)
        self._put(start)
        return await start.answered

    def _put(self, start: _Start) -> None:
        self._waiting.append(start)
        if self._sending is None:
            self._sending = start.answered.get_loop().create_task(self._send(), name="kagzi-starts")

    async def close(self) -> None:
        """Ends; starts without an answer may or may not have happened."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        for start, timer in self._resting.values():
            timer.cancel()
            self._refuse([start], Unavailable("the client was closed", code=CLOSED))
        self._resting.clear()

    async def _send(self) -> None:
        backoff = Backoff()
        batch: list[_Start] = []
        try:
            while self._waiting:
                # One turn of the loop: everybody who starts something in this moment comes along.
                await asyncio.sleep(0)
                batch = self._take()
                trouble = await self._ask(batch) if batch else None
                if trouble is None:
                    backoff = Backoff()
                    continue
                self._waiting.extendleft(reversed(self._patient(batch, trouble)))
                await asyncio.sleep(backoff.next(trouble))
        except BaseException as error:
            # Nobody is left waiting for an answer that cannot come.
            stopped = Unavailable(f"the client stopped before the server answered ({type(error).__name__})")
            self._refuse([*batch, *self._waiting], stopped)
            self._waiting.clear()
            raise
        finally:
            self._sending = None

    def _take(self) -> list[_Start]:
        batch: list[_Start] = []
        size = 0
        while self._waiting and len(batch) < _MOST_STARTS:
            start = self._waiting[0]
            if batch and size + start.size > _MOST_BYTES:
                break
            self._waiting.popleft()
            # Whose caller was cancelled meanwhile is left out.
            if not start.answered.done():
                batch.append(start)
                size += start.size
        return batch

    async def _ask(self, batch: Sequence[_Start]) -> Unavailable | None:
        """Sends a batch and answers its callers; when nobody answered, says why."""
        request = StartWorkflowsRequest(namespace=self._namespace, starts=[start.request for start in batch])
        try:
            response = await self._servers.once(lambda server: server.workflows.StartWorkflows, request)
        except ServerError as error:
            if isinstance(error, Unavailable) and error.code != CLOSED:
                return error
            self._refuse(batch, error)
            return None
        self._answer(batch, response)
        return None

    def _answer(self, batch: Sequence[_Start], response: StartWorkflowsResponse) -> None:
        for start, result in zip(batch, response.results, strict=True):
            if start.answered.done():
                continue
            if result.HasField("started"):
                start.answered.set_result(result.started)
                continue
            error = calls.error_from_detail(result.error)
            if isinstance(error, Unavailable):
                self._rest(start, error)
            else:
                start.answered.set_exception(error)

    def _rest(self, start: _Start, trouble: Unavailable) -> None:
        """The server puts this one off, by itself."""
        for patient in self._patient([start], trouble):
            pause = Backoff().next(trouble)
            timer = patient.answered.get_loop().call_later(pause, self._return, patient)
            self._resting[id(patient)] = (patient, timer)

    def _return(self, start: _Start) -> None:
        del self._resting[id(start)]
        self._put(start)

    def _patient(self, starts: Sequence[_Start], trouble: Unavailable) -> list[_Start]:
        """Those that may still be sent again; the others are told that nobody answered."""
        now = time.monotonic()
        self._refuse([start for start in starts if start.until <= now], self._servers.gave_up(trouble, self._patience))
        return [start for start in starts if start.until > now]

    @staticmethod
    def _refuse(starts: Sequence[_Start], error: ServerError) -> None:
        for start in starts:
            if not start.answered.done():
                # Each caller raises an error of its own: a shared one would collect all their tracebacks.
                start.answered.set_exception(copy.copy(error))
