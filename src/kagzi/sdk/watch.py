"""Waits for the ends of runs, any number of them over one stream. The stream is opened when somebody waits and closed
when nobody has for a while; when it breaks, another is opened, here or at the next server, and everything still awaited
is asked for again. Waiting changes nothing: whoever stops leaves the run alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from typing import TYPE_CHECKING, TypeAlias

import grpc

from kagzi.protocol.v1.workflow_pb2 import WatchWorkflowsRequest, WatchWorkflowsResponse
from kagzi.sdk import calls
from kagzi.sdk.errors import NotFound, ServerError, Unavailable
from kagzi.sdk.loop import require_outside
from kagzi.sdk.servers import Backoff, Server, Servers

if TYPE_CHECKING:
    Call: TypeAlias = grpc.aio.StreamStreamCall[WatchWorkflowsRequest, WatchWorkflowsResponse]

log = logging.getLogger("kagzi.client")

# Ids of one message.
_MOST_IDS = 10_000
# An unused stream is kept this long for the next one who waits.
_IDLE_SECS = 5.0

Ended = WatchWorkflowsResponse.Ended


class Watch:
    """The waiting of one client."""

    def __init__(self, servers: Servers, namespace: str, patience: float) -> None:
        self._servers = servers
        self._namespace = namespace
        self._patience = patience
        self._waiters: dict[str, set[asyncio.Future[Ended]]] = {}
        # What the server is to hear with the next message.
        self._fresh: dict[str, None] = {}
        self._gone: dict[str, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def ended(self, run_id: str) -> Ended:
        """How the run ended, once it has. NotFound when there is no such run; Unavailable when no server answers for as
        long as the client is patient.
        """
        require_outside("handle.result()")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended] = loop.create_future()
        waiters = self._waiters.get(run_id)
        if waiters is None:
            waiters = self._waiters[run_id] = set()
            self._tell(self._fresh, run_id)
        waiters.add(future)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="kagzi-watch")
        try:
            return await future
        finally:
            waiters.discard(future)
            if not waiters and self._waiters.get(run_id) is waiters:
                del self._waiters[run_id]
                self._tell(self._gone, run_id)

    async def close(self) -> None:
        """Ends the stream; whoever still waits is told that the client was closed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(Unavailable("the client was closed while it waited for a run"))

    def _tell(self, which: dict[str, None], run_id: str) -> None:
        which[run_id] = None
        other = self._gone if which is self._fresh else self._fresh
        other.pop(run_id, None)
        self._news.set()

    async def _run(self) -> None:
        """One stream after another while somebody waits."""
        backoff, lost_at = Backoff(), time.monotonic()
        try:
            while self._waiters:
                server = self._servers.current
                try:
                    await self._stream(server)
                    backoff, lost_at = Backoff(), time.monotonic()
                    continue
                except _Broken as broken:
                    if broken.heard:
                        backoff, lost_at = Backoff(), time.monotonic()
                    error = broken.error
                if not isinstance(error, Unavailable):
                    self._fail(error)
                    return
                self._servers.failed(server)
                if time.monotonic() - lost_at > self._patience:
                    self._fail(self._servers.gave_up(error, self._patience))
                    return
                log.info("the stream of run ends broke and is opened again: %s", error.message)
                await asyncio.sleep(backoff.next(error))
        except Unavailable as closed:
            self._fail(closed)
        except Exception as error:
            self._fail(Unavailable(f"the client stopped waiting ({type(error).__name__}: {error})"))
            raise
        finally:
            self._task = None

    async def _stream(self, server: Server) -> None:
        """Watches over one stream until nobody waits any more; raises _Broken when the stream ends before."""
        call = server.workflows.WatchWorkflows()
        self._fresh, self._gone = dict.fromkeys(self._waiters), {}
        self._news.set()
        talking = asyncio.create_task(self._talk(call), name="kagzi-watch-talk")
        listening = asyncio.create_task(self._listen(call), name="kagzi-watch-listen")
        try:
            await asyncio.wait({talking, listening}, return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                await listening
            else:
                # It stopped writing because nobody waits, or because the call broke, which listening tells.
                await talking
        finally:
            call.cancel()
            for task in (talking, listening):
                task.cancel()
            await asyncio.gather(talking, listening, return_exceptions=True)

    async def _talk(self, call: Call) -> None:
        """Tells the server what is awaited, everything of one moment in one message; returns when nothing is."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if self._waiters else _IDLE_SECS):
                    await self._news.wait()
            if not self._news.is_set() and not self._waiters:
                return
            self._news.clear()
            await asyncio.sleep(0)
            while self._fresh or self._gone:
                watch = [self._fresh.popitem()[0] for _ in range(min(len(self._fresh), _MOST_IDS))]
                unwatch = [self._gone.popitem()[0] for _ in range(min(len(self._gone), _MOST_IDS))]
                request = WatchWorkflowsRequest(namespace=self._namespace, watch=watch, unwatch=unwatch)
                try:
                    await call.write(request)
                except (grpc.RpcError, asyncio.InvalidStateError):
                    # The call is over; why is told to whoever listens.
                    await asyncio.Event().wait()

    async def _listen(self, call: Call) -> None:
        heard = False
        try:
            await call.wait_for_connection()
            heard = True
            async for frame in call:
                for ended in frame.ended:
                    self._resolve(ended.run_id, ended)
                for run_id in frame.unknown:
                    self._resolve(run_id, NotFound(f"there is no run {run_id!r}", subject=run_id))
        except grpc.RpcError as failed:
            raise _Broken(calls.error_from(failed), heard=heard) from None
        raise _Broken(Unavailable("the server ended the stream"), heard=heard)

    def _resolve(self, run_id: str, how: Ended | NotFound) -> None:
        for future in self._waiters.pop(run_id, ()):
            if not future.done():
                future.set_exception(copy.copy(how)) if isinstance(how, NotFound) else future.set_result(how)
        if not self._waiters:
            self._news.set()

    def _fail(self, error: ServerError) -> None:
        for waiters in self._waiters.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(copy.copy(error))
        self._waiters.clear()


class _Broken(Exception):
    """A stream ended although somebody waits; `heard` says whether its server had answered at all."""

    def __init__(self, error: ServerError, *, heard: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.heard = heard
