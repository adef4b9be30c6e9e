"""Step bodies: the users' functions, run outside the run loop. Async ones on the worker's own loop, sync ones in a
thread; context variables travel along. A body has a time limit for each attempt; a thread that overruns it cannot be
stopped, so the attempt fails, its slot stays taken, and a warning names it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from kagzi import faults
from kagzi.sdk.current import CurrentStep, current_step
from kagzi.sdk.errors import NotApplied

log = logging.getLogger("kagzi.worker")

# Called on the worker's loop with the result or the error, and the time it took in microseconds.
Ended = Callable[[Any, BaseException | None, int], None]

# A body that may not begin looks again after this.
_RECHECK_SECS = 0.05


def run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    *,
    current: CurrentStep,
    timeout: timedelta | None,
    executor: concurrent.futures.Executor,
    ended: Ended,
    may_begin: Callable[[], bool],
    context: contextvars.Context | None = None,
) -> Callable[[], None]:
    """Begins a body, in a copy of the context given, or of the caller's. Before its first line there may be a queue,
    or a worker that stands still: whether it `may_begin` is asked where it does, and one that may not waits. Answers
    how to stop it: a coroutine is cancelled, a thread that has begun is left to itself; either way `ended` is not
    called any more.
    """
    if faults.ON:
        faults.reach("worker.begin")
    body = _Body(current, context, timeout, ended, may_begin)
    if is_async(function):
        body.begin(function, arguments, keywords)
    else:
        body.begin_in_thread(executor, function, arguments, keywords)
    return body.stop


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it makes a coroutine; also for methods, and for objects whose `__call__` does."""
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, FunctionType) and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True
    return inspect.iscoroutinefunction(function) or (
        not isinstance(function, FunctionType) and inspect.iscoroutinefunction(type(function).__call__)
    )


class NeverBegan(TimeoutError, NotApplied):
    """The time of an attempt was over before its body began: it certainly changed nothing."""


# On record as whoever asks for a timeout expects it.
NeverBegan.__name__ = TimeoutError.__name__


class _Body:
    """One body, from its beginning to its end, its time limit, or its stop."""

    __slots__ = (
        "_began",
        "_context",
        "_current",
        "_ended",
        "_entered",
        "_limit",
        "_loop",
        "_may_begin",
        "_over",
        "_task",
        "_thread",
        "_timed_out",
        "_timeout",
    )

    def __init__(
        self,
        current: CurrentStep,
        context: contextvars.Context | None,
        timeout: timedelta | None,
        ended: Ended,
        may_begin: Callable[[], bool],
    ) -> None:
        self._current = current
        self._ended = ended
        self._may_begin = may_begin
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context() if context is None else context.copy()
        self._context.run(current_step.set, current)
        self._began = time.perf_counter_ns()
        self._over = self._timed_out = self._entered = False
        self._task: asyncio.Task[Any] | None = None
        self._thread: concurrent.futures.Future[Any] | None = None
        self._limit: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._limit = self._loop.call_later(timeout.total_seconds(), self._time_out)

    def begin(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Runs a coroutine function on the worker's loop."""
        try:
            coroutine = self._context.run(function, *arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - mostly arguments that do not fit: the body's error like any other
            self._loop.call_soon(self._end, None, error)
        else:
            self._await(coroutine)

    def begin_in_thread(
        self,
        executor: concurrent.futures.Executor,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        """Runs a plain function in a thread."""
        if self._over:
            return

        def begin() -> Any:
            if not self._may_begin():
                return _NOT_YET
            self._entered = True
            return self._context.run(function, *arguments, **keywords)

        def again() -> None:
            self.begin_in_thread(executor, function, arguments, keywords)

        self._thread = executor.submit(begin)
        self._thread.add_done_callback(partial(self._thread_done, again))

    def _thread_done(self, again: Callable[[], None], thread: concurrent.futures.Future[Any]) -> None:
        # In the thread. The loop of a worker that has stopped is closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._returned, again, thread)

    def _returned(self, again: Callable[[], None], thread: concurrent.futures.Future[Any]) -> None:
        if thread.cancelled():
            return
        error = thread.exception()
        result = None if error is not None else thread.result()
        if result is _NOT_YET:
            self._loop.call_later(_RECHECK_SECS, again)
            return
        if not inspect.isawaitable(result):
            self._end(result, error)
        elif not self._over:
            # A lambda around a coroutine function: what it made runs where coroutines belong.
            self._await(result)
        elif inspect.iscoroutine(result):
            result.close()

    def _await(self, awaitable: Awaitable[Any]) -> None:
        name = f"step {self._current.step_id}"
        self._task = self._loop.create_task(self._work(awaitable), context=self._context, name=name)
        self._task.add_done_callback(self._awoken)

    async def _work(self, awaitable: Awaitable[Any]) -> Any:
        try:
            while not self._may_begin():  # noqa: ASYNC110 - heartbeats renew leases, and tell nobody
                await asyncio.sleep(_RECHECK_SECS)
        except asyncio.CancelledError:
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        self._entered = True
        try:
            return await awaitable
        except (SystemExit, KeyboardInterrupt) as error:
            # Lets no body end a worker that holds a hundred other runs: these two would leave the loop itself.
            return _Exit(error)

    def _awoken(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            error = task.exception()
            result: Any = None if error is not None else task.result()
            if isinstance(result, _Exit):
                self._end(None, result.error)
            else:
                self._end(result, error)
        elif self._timed_out:
            self._end(None, self._late())
        else:
            self._end(None, asyncio.CancelledError("the step's body was cancelled"))

    def _time_out(self) -> None:
        if self._task is not None:
            self._timed_out = True
            self._task.cancel()
            return
        # One that has a thread may be about to enter.
        if self._thread is not None and not self._thread.cancel() and not self._thread.done():
            self._entered = True
            log.warning(
                "the thread of step %r of run %s runs on after its timeout of %s: it cannot be stopped",
                self._current.step_id,
                self._current.run_id,
                self._timeout,
            )
        self._end(None, self._late())

    def _late(self) -> TimeoutError:
        assert self._timeout is not None
        limit = f"{self._timeout.total_seconds():g} s"
        if self._entered:
            return TimeoutError(f"the attempt took longer than {limit}")
        return NeverBegan(f"the attempt had to wait, and its {limit} were over before its body began")

    def _end(self, result: Any, error: BaseException | None) -> None:
        if self._over:
            return
        self._over = True
        if self._limit is not None:
            self._limit.cancel()
        if faults.ON:
            faults.reach("worker.ended")
        self._ended(result, error, (time.perf_counter_ns() - self._began) // 1_000)

    def stop(self) -> None:
        """Stops it: a body that waits for a thread never begins."""
        self._over = True
        if self._limit is not None:
            self._limit.cancel()
        if self._thread is not None:
            self._thread.cancel()
        if self._task is not None:
            self._task.cancel()


# What a thread returns that may not begin its function.
_NOT_YET = object()


@dataclass(frozen=True, slots=True)
class _Exit:
    """A body that wanted to end the process."""

    error: BaseException
