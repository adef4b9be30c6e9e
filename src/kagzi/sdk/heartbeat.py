"""Heartbeats: a thread with a connection of its own renews the leases of what the worker really holds, so that code
which blocks the event loop cannot starve them. It goes on while servers are away, at the next one of the list, and
writes nothing but leases. What it hears is told on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import grpc

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.sdk import calls
from kagzi.sdk.certificates import Tls
from kagzi.sdk.lease import Lease, Leases
from kagzi.sdk.watchdog import Watchdog

log = logging.getLogger("kagzi.worker")

# How often the event loop is looked at between heartbeats.
_TICK = 0.25
# A heartbeat that failed is tried again after a tenth of its interval, within these.
_SHORTEST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_SHORTEST_PATIENCE = 0.5


class Listener(Protocol):
    """Who hears what a heartbeat was answered. Called from plain callbacks of the event loop."""

    def beaten(self, named: Sequence[Lease], answer: pb.HeartbeatResponse, /) -> None:
        """The leases that a heartbeat named are renewed, or lost."""
        ...

    def forgotten(self) -> None:
        """No server knows this worker any more."""
        ...


class Heartbeat:
    """Renews `leases` from `start`, once there is a welcome, until `stop`."""

    def __init__(
        self,
        targets: Sequence[str],
        leases: Leases,
        listener: Listener,
        *,
        namespace: str,
        api_key: str | None = None,
        tls: Tls = None,
    ) -> None:
        self._leases = leases
        self._listener = listener
        self._namespace = namespace
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs = self._connect(targets, api_key, tls)
        self._stub: WorkerServiceStub | None = None
        self._welcome: pb.RegisterResponse | None = None
        self._wakeup = threading.Event()
        self._asked = False
        self._stopping = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="kagzi-heartbeat", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begins; to be called on the event loop, which is watched from now on."""
        self._loop = asyncio.get_running_loop()
        self._watchdog = Watchdog(self._loop)
        self._thread.start()

    def welcomed(self, welcome: pb.RegisterResponse) -> None:
        """The worker is known under this id. What it holds is renewed at once."""
        self._welcome = welcome
        self.soon()

    def soon(self) -> None:
        """Sends a heartbeat now rather than when it is due."""
        self._asked = True
        self._wakeup.set()

    def stop(self) -> None:
        """Ends, also a call under way."""
        self._stopping = True
        self._wakeup.set()
        for channel in list(self._channels.values()):
            channel.close()
        self._thread.join(timeout=1.0)

    def _connect(self, targets: Sequence[str], api_key: str | None, tls: Tls) -> Iterator[WorkerServiceStub]:
        """The servers in turn, each with one channel."""
        for target in itertools.cycle(targets):
            channel = self._channels.get(target)
            if channel is None:
                channel = self._channels[target] = calls.sync_channel(target, api_key=api_key, tls=tls)
            yield WorkerServiceStub(channel)

    def _run(self) -> None:
        due = 0.0
        while True:
            self._wakeup.wait(max(0.0, min(_TICK, due - time.monotonic())) if self._welcome is not None else _TICK)
            self._wakeup.clear()
            if self._stopping:
                return
            try:
                self._watchdog.look()
                welcome = self._welcome
                if welcome is not None and (self._asked or time.monotonic() >= due):
                    self._asked = False
                    due = time.monotonic() + self._beat(welcome)
            except Exception:
                # Without this thread every lease would run out.
                log.exception("a heartbeat met a defect")
                due = time.monotonic() + _LONGEST_PAUSE

    def _beat(self, welcome: pb.RegisterResponse) -> float:
        """One heartbeat; answers the time until the next."""
        interval = welcome.heartbeat_interval_ms / 1_000
        named = self._leases.all()
        request = pb.HeartbeatRequest(
            namespace=self._namespace,
            worker_id=welcome.worker_id,
            held=[pb.Held(run_id=lease.run_id, claim_token=lease.token) for lease in named],
        )
        if self._stub is None:
            self._stub = next(self._stubs)
        sent_at = time.monotonic()
        try:
            answer = self._stub.Heartbeat(request, timeout=max(interval, _SHORTEST_PATIENCE))
        except (grpc.RpcError, ValueError) as error:
            # A ValueError: the channel was closed, for the worker stops.
            return 0.0 if self._stopping else self._failed(error, interval)
        self._leases.renewed(named, answer, sent_at)
        if self._failing:
            log.info("heartbeats are answered again")
            self._failing = False
        self._tell(self._listener.beaten, named, answer)
        return interval * random.uniform(0.9, 1.0)

    def _failed(self, error: Exception, interval: float) -> float:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            # Silent for too long, or cleared away. The hello of a new stream makes it known again.
            self._welcome = None
            self._tell(self._listener.forgotten)
            return 0.0
        why = calls.error_from(error) if isinstance(error, grpc.RpcError) else error
        log.log(logging.DEBUG if self._failing else logging.WARNING, "a heartbeat failed, trying on: %s", why)
        self._failing = True
        self._stub = next(self._stubs)
        return min(max(interval / 10, _SHORTEST_PAUSE), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)

    def _tell(self, listener: Callable[..., None], *heard: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            # The loop may be closed by now.
            self._loop.call_soon_threadsafe(listener, *heard)
