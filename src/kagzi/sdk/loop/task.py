"""Tasks and futures whose order in a set is the same in every process.

asyncio keeps tasks in sets (`TaskGroup`, `wait`, `as_completed`) and walks through them. Hashed by address,
as Python does it, siblings are cancelled in another order each time; here they are hashed by the order of
their creation. A set walks by number modulo its own size: mostly that order, and always the same one. Two
sets stay out of reach: that of `asyncio.all_tasks()`, filled in no fixed order, and one of futures that
`gather` returned.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_TASKS_MODULE = vars(sys.modules["asyncio.tasks"])
# How many errors that were raised while another was handled are looked through.
_DEEPEST = 100


class Numbered:
    """Hashed by its number, once it has one.

    Up to Python 3.13 asyncio puts each task, while it is being made, into one weak set for the whole process.
    Hashed by number there, the first tasks of all runs collide (measured at 8,000 runs in memory: 169 instead
    of 17 µs to begin one). So the number comes after the making. That set is walked, never looked up in.
    """

    number: int | None = None

    def __hash__(self) -> int:
        return id(self) if self.number is None else self.number


class RunTask(Numbered, asyncio.Task[T]):
    """A task of a run loop."""

    # Members of asyncio's class that its type stubs leave out.
    _fut_waiter: asyncio.Future[Any] | None
    _must_cancel: bool
    # Since it was last cancelled it waited for something without handling that: it goes on.
    _went_on = False
    # Told, once, when it goes on although it was cancelled.
    got_over: "Callable[[RunTask[Any]], None] | None" = None

    def cancel(self, msg: Any | None = None) -> bool:
        self._went_on = False
        loop: Any = self.get_loop()
        loop.cancels = True
        return super().cancel(msg)

    @property
    def cleans_up(self) -> bool:
        """Whether it was cancelled, and has not gone on since."""
        return self.cancelling() > 0 and not self._went_on

    def about_to_wait(self) -> None:
        """Its code asks for something to wait for. Outside of the `except` and `finally` of a cancel it goes on."""
        if not (self._went_on or self._must_cancel or (self.cancelling() and _handles_a_cancel())):
            self._went_on = True
            if self.got_over is not None:
                self.got_over(self)

    def interrupt(self, error: BaseException) -> bool:
        """Fail the future this task waits for, and say whether there was one.

        A task that awaits another task is not interrupted: it hears from that one.
        """
        future = self._fut_waiter
        if not isinstance(future, asyncio.Future) or isinstance(future, asyncio.Task) or future.done():
            return False
        future.set_exception(error)
        return True

    def abandon(self) -> bool:
        """Close the coroutine of a task that no interruption ended, and say whether it is closed now."""
        coroutine: Any = self.get_coro()
        try:
            coroutine.close()
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 - what its cleanup raised; nobody is left to hear it
            return getattr(coroutine, "cr_frame", None) is None
        return True

    def forget(self) -> None:
        """Let go of the traceback, which Python 3.12 and 3.13 keep in the task until its outcome is read."""
        if self.done():
            with contextlib.suppress(BaseException):
                self.result()


def _handles_a_cancel() -> bool:
    """Whether the code that runs is in an `except` or a `finally` that a CancelledError led to, however deep."""
    error = sys.exception()
    # Bounded, because nothing keeps users from tying a circle.
    for _ in range(_DEEPEST):
        if error is None or isinstance(error, asyncio.CancelledError):
            break
        error = error.__context__
    return isinstance(error, asyncio.CancelledError)


class RunFuture(Numbered, asyncio.Future[Any]):
    """A future of a run loop."""


def made_by_as_completed(frame: FrameType) -> bool:
    """Whether `frame` is asyncio's own code, at work for `as_completed`.

    That puts what it is given into a set first: bare coroutines would start in the order of their addresses.
    """
    caller: FrameType | None = frame
    while caller is not None and caller.f_globals is _TASKS_MODULE:
        if caller.f_code.co_qualname in {"as_completed", "_AsCompletedIterator.__init__"}:
            return True
        caller = caller.f_back
    return False
