"""The link: a worker's stream to whichever server of its list answers. It says hello with all that the worker holds,
gives credit for free slots, writes one frame for everything that was sent in a turn of the loop, and puts deliveries
together. A stream that ends is followed by another, here or at the next server; only a server that refuses the very
first hello ends it. It decides nothing about runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import grpc

from kagzi import faults
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.sdk import calls
from kagzi.sdk.certificates import Tls
from kagzi.sdk.deployment import Deployments
from kagzi.sdk.errors import ServerError, Unavailable
from kagzi.sdk.outbox import Outbox

if TYPE_CHECKING:
    from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceAsyncStub

log = logging.getLogger("kagzi.worker")

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.ConnectRequest, pb.ConnectResponse]"

# Silence of 15 s closes a stream.
_KEEP_ALIVE = 5.0
_WELCOME_WITHIN = 15.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 1.0
# A stream that lived this long met something new when it ended, not the same thing again.
_STEADY = 1.0


class Listener(Protocol):
    """Who hears what the server says. Called from plain callbacks of the event loop."""

    @property
    def room(self) -> int:
        """How many runs it could hold beyond those it holds."""
        ...

    def hello(self) -> pb.Hello: ...

    def welcomed(self, welcome: pb.RegisterResponse, sent_at: float, /) -> None: ...

    def arriving(self, delivery: pb.Delivery, /) -> None:
        """The first part of a delivery."""
        ...

    def arrived(self, delivery: pb.Delivery, /) -> None:
        """The whole of it."""
        ...

    def vanished(self, token: str, /) -> None:
        """The stream ended before the whole of it."""
        ...

    def told(self, run: pb.Held, facts: Sequence[pb.Fact], /) -> None: ...

    def evicted(self) -> list[pb.Held]:
        """Suspended runs that it does not keep any more although a server believes so; each once."""
        ...

    def lost(self, run: pb.Held, /) -> None: ...

    def asked_to_drain(self) -> None: ...


class Link:
    """One stream at a time. `targets` are tried in turn."""

    def __init__(
        self,
        targets: Sequence[str],
        listener: Listener,
        outbox: Outbox,
        deployments: Deployments,
        *,
        api_key: str | None = None,
        tls: Tls = None,
    ) -> None:
        self._targets = targets
        self._listener = listener
        self._outbox = outbox
        self._deployments = deployments
        # On the call itself: an interceptor would put a queue and two tasks before every frame.
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._tls = tls
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._call: Call | None = None
        self._again = False
        self._wakeup = asyncio.Event()
        self._alive_until = 0.0
        # What the server may still deliver on this stream.
        self._credit = 0
        self._delivered: list[pb.Held] = []
        self._parts: dict[str, pb.Delivery] = {}
        # Set once a server has answered, or could not be reached: from then on only time will tell.
        self.tried = asyncio.Event()
        self.connected = False
        self._ever_welcomed = False
        # Why a server would not put the worker's automations in force, the first time it was asked to.
        self._refusal: ServerError | None = None

    def wake(self) -> None:
        """There may be something to write."""
        self._wakeup.set()

    def reconnect(self) -> None:
        """Begins a new stream, which has no credits yet and says hello anew."""
        if self._call is not None:
            self._again = True
            self._call.cancel()

    async def run(self) -> None:
        """Keeps a stream until it is cancelled. Raises ServerError if the first hello is refused for good."""
        targets = itertools.cycle(self._targets)
        target = next(targets)
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            error = await self._try(target)
            self.tried.set()
            if self._again:
                self._again = False
                continue
            self._complain(target, error, again=not self.connected and pause > _FIRST_PAUSE)
            if self.connected and time.monotonic() - began > _STEADY:
                pause = _FIRST_PAUSE
            self.connected = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)
            target = next(targets)

    async def close(self) -> None:
        """Gives up the connections. To be called once `run` has ended."""
        for channel in self._channels.values():
            await channel.close()

    async def deregister(self, request: pb.DeregisterRequest, timeout: float) -> bool:
        """Says goodbye at the first server that listens; whether one did."""
        for target in self._targets:
            with contextlib.suppress(grpc.RpcError):
                await self._stub(target).Deregister(request, timeout=timeout, metadata=self._metadata)
                return True
        return False

    def _channel(self, target: str) -> grpc.aio.Channel:
        channel = self._channels.get(target)
        if channel is None:
            channel = self._channels[target] = calls.channel(target, tls=self._tls)
        return channel

    def _stub(self, target: str) -> WorkerServiceAsyncStub:
        return WorkerServiceStub(self._channel(target))

    async def _try(self, target: str) -> ServerError | None:
        """One stream from hello to its end, and why it ended: None when the server simply closed it."""
        call: Call = self._stub(target).Connect(metadata=self._metadata)
        self._call = call
        self.connected = False
        try:
            await self._converse(call, target)
        except grpc.RpcError as rpc_error:
            error = calls.error_from(rpc_error, target)
            if not self._ever_welcomed and not _passes(error):
                raise error from rpc_error
            return error
        except TimeoutError:
            return Unavailable(f"{target} did not answer hello within {_WELCOME_WITHIN:g} s")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not call.cancelled():
                raise
        except Exception:
            log.exception("the stream to %s met a defect", target)
        finally:
            self._call = None
            call.cancel()
            # After the frames that are still to be heard.
            asyncio.get_running_loop().call_soon(self._end)
        if self._refusal is not None:
            raise self._refusal
        return None

    async def _converse(self, call: Call, target: str) -> None:
        loop = asyncio.get_running_loop()
        sent_at = time.monotonic()
        async with asyncio.timeout(_WELCOME_WITHIN):
            # A call that failed at once cannot be written to; reading says why.
            with contextlib.suppress(asyncio.InvalidStateError):
                await call.write(pb.ConnectRequest(hello=self._listener.hello()))
            frame = await call.read()
        if not isinstance(frame, pb.ConnectResponse):
            return
        log.info("connected to %s", target)
        self._ever_welcomed = self.connected = True
        # Runs are pumped by what a frame brings, which is only allowed outside of tasks.
        loop.call_soon(self._welcome, frame, sent_at)
        pump = asyncio.create_task(self._pump(call), name="kagzi-link-pump")
        # Without its pump a stream would be silent; without its stream a pump has nothing to do.
        pump.add_done_callback(lambda _: call.cancel())
        deploying = asyncio.create_task(self._deploy(call, target), name="kagzi-link-deploy")
        try:
            while isinstance(frame, pb.ConnectResponse):
                loop.call_soon(self._hear, frame, call)
                frame = await call.read()
        finally:
            for task in (pump, deploying):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _deploy(self, call: Call, target: str) -> None:
        try:
            await self._deployments.put_in_force(self._channel(target), self._metadata)
        except ServerError as error:
            if self._deployments.in_force:
                log.warning("an automation could not be deployed again: %s", error)
            else:
                # Told by `run`, which ends with it.
                self._refusal = error
                call.cancel()
                return
        self.tried.set()

    def _welcome(self, frame: pb.ConnectResponse, sent_at: float) -> None:
        self._credit = 0
        self._alive_until = 0.0
        self._delivered.clear()
        self._outbox.rewind()
        self._listener.welcomed(frame.welcome, sent_at)

    def _end(self) -> None:
        for token in self._parts:
            self._listener.vanished(token)
        self._parts.clear()

    async def _pump(self, call: Call) -> None:
        """Writes frames. While one is written the next one gathers."""
        loop = asyncio.get_running_loop()
        more = True
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                if not more:
                    timer = loop.call_at(self._alive_until, self.wake)
                    await self._wakeup.wait()
                    timer.cancel()
                self._wakeup.clear()
                frame, more = self._frame()
                if frame.ByteSize() or loop.time() >= self._alive_until:
                    self._alive_until = loop.time() + _KEEP_ALIVE
                    if faults.ON:
                        faults.reach("worker.frame")
                    await call.write(frame)

    def _frame(self) -> tuple[pb.ConnectRequest, bool]:
        frame = pb.ConnectRequest(delivered=self._delivered, evicted=self._listener.evicted())
        self._delivered.clear()
        credit = self._listener.room - self._credit
        if credit > 0:
            frame.credit = credit
            self._credit += credit
        more = self._outbox.fill(frame)
        return frame, more

    def _hear(self, frame: pb.ConnectResponse, call: Call) -> None:
        if call is not self._call:
            # Of an older stream: what it delivered is put back, what it answered is asked again.
            return
        listener = self._listener
        if frame.accepted or frame.answers:
            self._outbox.hear(frame)
        for run in frame.lease_lost:
            listener.lost(run)
        for wake in frame.wakes:
            listener.told(wake.run, wake.facts)
        for cancel in frame.cancels:
            listener.told(cancel.run, (pb.Fact(cancel_requested=cancel.request),))
        for delivery in frame.deliveries:
            self._deliver(delivery)
        if frame.drain:
            listener.asked_to_drain()
        if self._outbox.turned_away:
            call.cancel()

    def _deliver(self, part: pb.Delivery) -> None:
        whole = self._parts.get(part.claim_token)
        if whole is None:
            # Each run costs one credit, and its slot is taken from now on.
            self._credit -= 1
            whole = part
            self._listener.arriving(part)
            if part.more:
                self._parts[part.claim_token] = part
        else:
            whole.history.extend(part.history)
        if not part.more:
            self._parts.pop(part.claim_token, None)
            whole.more = False
            self._delivered.append(pb.Held(run_id=whole.run_id, claim_token=whole.claim_token))
            self._wakeup.set()
            self._listener.arrived(whole)

    def _complain(self, target: str, error: ServerError | None, *, again: bool) -> None:
        """Says once why there is no stream; what follows until there is one is for those who look closely."""
        why = "the stream ended" if error is None else error.message.rstrip(".")
        log.log(logging.DEBUG if again else logging.WARNING, "no stream to %s: %s. Trying on", target, why)


def _passes(error: ServerError) -> bool:
    """Whether it is a matter of time, as opposed to a refusal that stays."""
    return isinstance(error, Unavailable) or error.code == "INTERNAL"
