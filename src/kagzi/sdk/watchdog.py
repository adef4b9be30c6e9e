"""The watchdog: notices that something blocks the worker's event loop, and says by name what and where. It is asked by
another thread, now and then; it stops nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType

log = logging.getLogger("kagzi.worker")

# A loop that does not answer for so long is blocked.
_BLOCKED = 1.0
_NOT_USERS = (
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")),
    f"{Path(__file__).resolve().parent.parent}/",
    "<",
)


class Watchdog:
    """Watches the running event loop of the thread that makes it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._asked_at = time.monotonic()
        self._looked_at = self._asked_at
        self._answered = True
        self._warned = False

    def look(self) -> None:
        """Warns, once for each time, when the loop has not come round since it was last asked to."""
        now = time.monotonic()
        gap, self._looked_at = now - self._looked_at, now
        if self._answered:
            self._answered = self._warned = False
            self._asked_at = now
            with contextlib.suppress(RuntimeError):
                # The loop may be closed by now.
                self._loop.call_soon_threadsafe(self._answer)
        elif gap > _BLOCKED:
            # The one who looks stood still as well: the process was stopped, not its loop blocked.
            self._asked_at = now
        elif now - self._asked_at > _BLOCKED and not self._warned:
            self._warned = True
            self._warn(now - self._asked_at)

    def _answer(self) -> None:
        self._answered = True

    def _warn(self, seconds: float) -> None:
        task = asyncio.current_task(self._loop)
        log.warning(
            "the event loop is blocked for %.1f s by %s at %s: no other run of this worker gets on. Make the step a "
            "plain `def`, which runs in a thread, or await what blocks",
            seconds,
            repr(task.get_name()) if task is not None else "code outside of steps",
            _where(sys._current_frames().get(self._thread)),  # noqa: SLF001 - the documented way to another thread
        )


def _where(frame: FrameType | None) -> str:
    """The innermost line of the user's own code."""
    innermost = frame
    while frame is not None and frame.f_code.co_filename.startswith(_NOT_USERS):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
