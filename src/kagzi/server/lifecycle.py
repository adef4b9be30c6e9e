"""The one lifecycle of every background loop: started once, supervised, stopped once. A loop that crashes
is logged by name and started again after a growing pause; it never ends in silence. Stopping lets a loop
finish what it does for a moment, then cancels it, and returns only when it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

log = structlog.get_logger(__name__)

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# A loop that ran this long before it crashed met something new, not the same thing again.
_STEADY = 30.0


class Wakeup:
    """Wakes one waiter. Any number of calls before it looks are one."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wakes the waiter, now or as soon as it waits."""
        self._event.set()

    async def wait(self, timeout: float | None = None) -> bool:
        """Waits to be woken, and answers whether it was before `timeout` seconds had passed."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        finally:
            self._event.clear()
        return True


class Loop:
    """A background loop. Subclasses give it a name and `run`, which returns once `stopping` is set, or is
    cancelled.
    """

    name = "loop"

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.crashes = 0
        self._task: asyncio.Task[None] | None = None
        self._pausing = False

    @property
    def alive(self) -> bool:
        """Whether it works, as opposed to not started, ended, or pausing after a crash."""
        return self._task is not None and not self._task.done() and not self._pausing

    def start(self) -> None:
        """Begins. Starting a loop twice is a defect."""
        if self._task is not None:
            raise RuntimeError(f"the loop {self.name} was started already")
        self._task = asyncio.create_task(self._supervise(), name=f"kagzi-{self.name}")

    async def stop(self, grace: float = 0.0) -> None:
        """Ends. What `run` does may take `grace` seconds to finish; then it is cancelled."""
        self.stopping.set()
        if self._task is None:
            return
        if grace > 0:
            await asyncio.wait({self._task}, timeout=grace)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def run(self) -> None:
        """What the loop does. A crash begins it again."""
        raise NotImplementedError

    async def _supervise(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE
        while not self.stopping.is_set():
            began = clock()
            try:
                await self.run()
                return
            except Exception:
                self.crashes += 1
                if clock() - began > _STEADY:
                    pause = _FIRST_PAUSE
                log.exception("loop_crashed", loop=self.name, crashes=self.crashes, pause=pause)
            self._pausing = True
            await self.pause(pause)
            self._pausing = False
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def pause(self, seconds: float) -> None:
        """Waits, unless the loop is asked to stop meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()
