"""A lane of the batcher: operations wait here for the next flush, and one flush is under way at a time. While it
commits the next batch gathers; a lone operation flushes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.store.operation import Operation

# How long a batch may go on gathering while every turn of the loop brings more.
_GATHER_SECS = 0.005
# Calls arrive one by one, a hundred in 50 ms. So many that wait are the head of a crowd when the last crowd was larger,
# or when they are twice as many as went before. It is let in until it is as large, or nobody came for a moment. What
# came in frames, many at a time, never waits for calls.
_CROWD = 3
_CROWD_GAP_SECS = 0.008
_CROWD_SECS = 0.06


class Entry(NamedTuple):
    """An operation that was taken, whom to tell when it has its answer, and the room it needs meanwhile."""

    operation: Operation
    done: Callable[[Operation], None]
    size: int
    # It came in a call of its own, and others may be on their way behind it.
    alone: bool = False


Flush = Callable[[str, Sequence[Entry]], Awaitable[None]]


class Lane(Loop):
    """Flushes what was put into it, one namespace at a time, in the order it came."""

    def __init__(self, number: int, most: int, flush: Flush) -> None:
        super().__init__()
        self.name = f"lane-{number}"
        self._most = most
        self._flush = flush
        self._queues: OrderedDict[str, deque[Entry]] = OrderedDict()
        self._size = 0
        # Of these, operations that came in calls of their own.
        self._calls = 0
        self._flushed = 0
        self._crowd = 0
        self._wakeup = Wakeup()
        # When the flush under way began, on the monotonic clock; 0 when there is none.
        self.since = 0.0

    def put(self, entry: Entry) -> None:
        """Takes an operation for the next flush."""
        namespace = entry.operation.namespace
        queue = self._queues.get(namespace)
        if queue is None:
            queue = self._queues[namespace] = deque()
        queue.append(entry)
        self._size += 1
        self._calls += entry.alone
        self._wakeup.set()

    def take(self) -> list[Entry]:
        """What was never flushed; for the end."""
        entries = [entry for queue in self._queues.values() for entry in queue]
        self._queues.clear()
        self._size = self._calls = 0
        return entries

    async def run(self) -> None:
        while True:
            if not self._size:
                await self._wakeup.wait()
            await self._gather()
            if self._size:
                await self._next()

    async def _gather(self) -> None:
        """Lets a burst of calls arrive whole. What comes alone, or no faster than it is flushed, waits for nothing, and
        neither does what came in a frame: while its commit is under way the next frame is on its way.
        """
        until = time.monotonic() + _GATHER_SECS
        seen = -1
        while seen < self._size < self._most and self._calls == self._size and time.monotonic() < until:
            seen = self._size
            await asyncio.sleep(0)
        await self._let_in(self._expected())

    async def _let_in(self, expected: int) -> None:
        until = time.monotonic() + _CROWD_SECS
        seen = -1
        while seen < self._calls < expected and self._calls == self._size and time.monotonic() < until:
            seen = self._calls
            await asyncio.sleep(_CROWD_GAP_SECS)

    def _expected(self) -> int:
        """How many calls to wait for; 0 for none."""
        if self._calls < max(_CROWD, self._size):
            return 0
        if self._calls < self._crowd:
            return self._crowd
        return self._most if self._calls >= 2 * self._flushed else 0

    async def _next(self) -> None:
        namespace, queue = self._queues.popitem(last=False)
        entries = [queue.popleft() for _ in range(min(len(queue), self._most))]
        if queue:
            # Behind the others, so that no namespace starves another.
            self._queues[namespace] = queue
        self._size -= len(entries)
        calls = sum(entry.alone for entry in entries)
        self._calls -= calls
        self._crowd = max(calls, self._crowd * 3 // 4)
        self._flushed = len(entries)
        self.since = time.monotonic()
        try:
            await self._flush(namespace, entries)
        finally:
            self.since = 0.0
