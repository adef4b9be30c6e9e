"""Schedules that somebody's open transaction keeps from firing. Each is tried again by itself, beside those that can
fire, then less and less often: nobody waits with it, or for it. What goes wrong is told by whoever fires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from kagzi.store.errors import Unreachable
from kagzi.store.firing import Held

_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 5.0
# Each keeps a connection while it waits for the lock. Those that were tried before are tried one by one, so that those
# which only came with them, and will fire, do not stand behind them.
_NEW_AT_ONCE = 3
_OLD_AT_ONCE = 1


class Aside:
    """`fire` fires templates of a namespace, or raises Held; `settled` is called when one need not be tried again."""

    def __init__(self, fire: Callable[[str, Sequence[str]], Awaitable[int]], settled: Callable[[], None]) -> None:
        self._fire = fire
        self._settled = settled
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._new = asyncio.Semaphore(_NEW_AT_ONCE)
        self._old = asyncio.Semaphore(_OLD_AT_ONCE)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def put(self, namespace: str, template_ids: Sequence[str]) -> None:
        """Takes those that were held when they were fired together: one is to blame, the others fire at once."""
        for template_id in template_ids:
            if template_id not in self._tasks:
                work = self._until_it_fires(namespace, template_id)
                self._tasks[template_id] = asyncio.create_task(work, name="kagzi-schedule-aside")

    async def stop(self) -> None:
        """Tries no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _until_it_fires(self, namespace: str, template_id: str) -> None:
        pause = 0.0
        try:
            while await self._is_held(namespace, template_id, self._old if pause else self._new):
                pause = min(max(2 * pause, _FIRST_PAUSE), _LONGEST_PAUSE)
                await asyncio.sleep(pause)
        except Unreachable:
            # Whoever finds the database again finds the schedule too.
            pass
        finally:
            del self._tasks[template_id]
            self._settled()

    async def _is_held(self, namespace: str, template_id: str, turns: asyncio.Semaphore) -> bool:
        async with turns:
            try:
                await self._fire(namespace, [template_id])
            except Held:
                return True
        return False
