"""Frames on their way to one worker. Whatever is there when a frame can be written travels in it; a frame is cut at 1
MiB, and what is larger travels alone. What waits is bounded: a worker that does not read is not answered for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.server.lifecycle import Wakeup

FRAME_BYTES = 1 << 20
# As much may wait to be written before the stream is read on.
_MOST_BYTES = 16 << 20


class Outlet:
    """Gathers what a worker is to be told."""

    def __init__(self) -> None:
        self._frame = pb.ConnectResponse()
        self._size = 0
        self._full: deque[tuple[pb.ConnectResponse, int]] = deque()
        self._bytes = 0
        self._ready = Wakeup()
        self._drained = asyncio.Event()
        self._drained.set()

    def frame(self, size: int) -> pb.ConnectResponse:
        """The frame to add something of this size to."""
        if self._size and self._size + size > FRAME_BYTES:
            self._cut()
        self._size += size
        self._bytes += size
        if self._bytes > _MOST_BYTES:
            self._drained.clear()
        self._ready.set()
        return self._frame

    def _cut(self) -> None:
        self._full.append((self._frame, self._size))
        self._frame = pb.ConnectResponse()
        self._size = 0

    def take(self) -> pb.ConnectResponse | None:
        """The next frame to write; None when nothing waits."""
        if not self._full:
            if not self._size:
                return None
            self._cut()
        frame, size = self._full.popleft()
        self._bytes -= size
        if self._bytes <= _MOST_BYTES:
            self._drained.set()
        return frame

    async def ready(self) -> None:
        """Waits until there may be something to write, or somebody called `wake`."""
        await self._ready.wait()

    def wake(self) -> None:
        """Whoever waits to write is to look up."""
        self._ready.set()

    async def room(self) -> None:
        """Waits until the worker has read enough of what it was sent."""
        await self._drained.wait()
