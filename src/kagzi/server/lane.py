"""A lane of the batcher: operations wait here for the next flush, and one flush is under way at a time. While it
commits the next batch gathers; a lone operation flushes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.store.operation import Operation

# How long a batch may go on gathering while operations keep arriving.
_GATHER_SECS = 0.005


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation that was taken, whom to tell when it has its answer, and the room it needs meanwhile."""

    operation: Operation
    done: Callable[[Operation], None]
    size: int


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
        self._wakeup = Wakeup()

    def put(self, entry: Entry) -> None:
        """Takes an operation for the next flush."""
        namespace = entry.operation.namespace
        queue = self._queues.get(namespace)
        if queue is None:
            queue = self._queues[namespace] = deque()
        queue.append(entry)
        self._size += 1
        self._wakeup.set()

    def take(self) -> list[Entry]:
        """What was never flushed; for the end."""
        entries = [entry for queue in self._queues.values() for entry in queue]
        self._queues.clear()
        self._size = 0
        return entries

    async def run(self) -> None:
        while True:
            if not self._size:
                await self._wakeup.wait()
            await self._gather()
            if self._size:
                await self._next()

    async def _gather(self) -> None:
        """Lets a burst arrive whole: goes on while every turn of the loop brings more, for a few milliseconds."""
        until = time.monotonic() + _GATHER_SECS
        seen = -1
        while seen < self._size < self._most and time.monotonic() < until:
            seen = self._size
            await asyncio.sleep(0)

    async def _next(self) -> None:
        namespace, queue = self._queues.popitem(last=False)
        entries = [queue.popleft() for _ in range(min(len(queue), self._most))]
        if queue:
            # Behind the others, so that no namespace starves another.
            self._queues[namespace] = queue
        self._size -= len(entries)
        await self._flush(namespace, entries)
