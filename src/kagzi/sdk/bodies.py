"""Step bodies: the users' functions, run outside the run loop. Async ones on the worker's own loop, sync ones in a
thread; context variables travel along. A body has a time limit for each attempt; a thread that overruns it cannot be
stopped, so the attempt fails, its slot stays taken, and a warning names it.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import timedelta
from typing import Any

from kagzi.sdk.current import CurrentStep, current_step

log = logging.getLogger("kagzi.worker")

# Called on the worker's loop with the result or the error, and the time it took in microseconds.
Ended = Callable[[Any, BaseException | None, int], None]


class TimedOut(Exception):
    """The attempt took longer than the step's timeout."""


def run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    current: CurrentStep,
    timeout: timedelta | None,
    executor: Executor,
    ended: Ended,
) -> Callable[[], None]:
    """Begins a body. Answers how to stop it: an async one is cancelled, a thread is left to itself; either way `ended`
    is not called any more.
    """
    context = contextvars.copy_context()
    context.run(current_step.set, current)
    if is_async(function):
        return _AsyncBody(function(*arguments, **keywords), context, timeout, ended, current).stop
    return _ThreadBody(function, arguments, keywords, context, timeout, executor, ended, current).stop


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; also for methods, and for objects whose `__call__` does."""
    plain = getattr(function, "__func__", function)
    try:
        return _is_async(plain)
    except TypeError:
        # An object that cannot be hashed.
        return _is_async.__wrapped__(plain)


@functools.lru_cache(maxsize=4_096)
def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class _Body:
    __slots__ = ("_began", "_current", "_ended", "_limit", "_over")

    def __init__(self, ended: Ended, current: CurrentStep) -> None:
        self._ended = ended
        self._current = current
        self._began = time.perf_counter_ns()
        self._over = False
        self._limit: asyncio.TimerHandle | None = None

    def _end(self, result: Any, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        if self._limit is not None:
            self._limit.cancel()
        self._ended(result, error, (time.perf_counter_ns() - self._began) // 1_000)


class _AsyncBody(_Body):
    """A coroutine as a task of the worker's loop."""

    __slots__ = ("_task", "_timed_out")

    def __init__(
        self,
        coroutine: Any,
        context: contextvars.Context,
        timeout: timedelta | None,
        ended: Ended,
        current: CurrentStep,
    ) -> None:
        super().__init__(ended, current)
        loop = asyncio.get_running_loop()
        self._timed_out: timedelta | None = None
        self._task = loop.create_task(coroutine, context=context, name=f"step {current.step_id}")
        self._task.add_done_callback(self._done)
        if timeout is not None:
            self._limit = loop.call_later(timeout.total_seconds(), self._time_out, timeout)

    def _time_out(self, timeout: timedelta) -> None:
        self._timed_out = timeout
        self._task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            if self._timed_out is not None:
                self._end(None, TimedOut(f"the attempt took longer than {self._timed_out.total_seconds():g} s"))
            else:
                self._end(None, asyncio.CancelledError("the step's body was cancelled"))
            return
        error = task.exception()
        self._end(None if error is not None else task.result(), error)

    def stop(self) -> None:
        self._over = True
        if self._limit is not None:
            self._limit.cancel()
        self._task.cancel()


class _ThreadBody(_Body):
    """A plain function in a thread of the worker."""

    __slots__ = ()

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        context: contextvars.Context,
        timeout: timedelta | None,
        executor: Executor,
        ended: Ended,
        current: CurrentStep,
    ) -> None:
        super().__init__(ended, current)
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(executor, lambda: context.run(function, *arguments, **keywords))
        future.add_done_callback(self._done)
        if timeout is not None:
            self._limit = loop.call_later(timeout.total_seconds(), self._time_out, timeout)

    def _time_out(self, timeout: timedelta) -> None:
        log.warning(
            "the thread of step %r of run %s runs on after its timeout of %g s: it cannot be stopped",
            self._current.step_id,
            self._current.run_id,
            timeout.total_seconds(),
        )
        self._end(None, TimedOut(f"the attempt took longer than {timeout.total_seconds():g} s"))

    def _done(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            self._end(None, asyncio.CancelledError("the worker is stopping"))
            return
        error = future.exception()
        result = None if error is not None else future.result()
        if inspect.isawaitable(result):
            # A lambda around a coroutine function: run what it made where coroutines belong.
            inner = asyncio.ensure_future(result)
            inner.add_done_callback(self._done)
            return
        self._end(result, error)

    def stop(self) -> None:
        self._over = True
        if self._limit is not None:
            self._limit.cancel()
