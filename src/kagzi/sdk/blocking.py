"""Async methods as plain ones: an event loop in a thread of its own, and what turns the methods of an async class into
those of its twin without `await`. A twin holds the thread as `_thread` and the async object as `_twin`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from kagzi.sdk.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")


class Thread:
    """An event loop in a thread, which begins with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Runs `work` there and waits for it."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Ends the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                threading.Thread(target=_serve, args=(self._loop,), name="kagzi-client", daemon=True).start()
            elif self._process != os.getpid():
                raise ConfigError(
                    "This SyncClient was used before the process was forked, and its thread stayed behind. Make it, or "
                    "use it first, in each worker process: after the fork."
                )
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    with contextlib.closing(loop):
        loop.run_forever()


class Blocking(Generic[P, R]):
    """A coroutine method of the async side, as a plain method of its twin here."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, R]:
        return lambda *args, **kwargs: instance._thread.run(  # noqa: SLF001 - every twin has one
            self._method(instance._twin, *args, **kwargs)  # noqa: SLF001
        )


class Iterating(Generic[P, R]):
    """A method of the async side that finds things one by one, as a plain method of its twin here."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, Iterator[R]]:
        return lambda *args, **kwargs: each(
            instance._thread,  # noqa: SLF001 - every twin has one
            self._method(instance._twin, *args, **kwargs),  # noqa: SLF001
        )


def each(thread: Thread, found: AsyncIterator[R]) -> Iterator[R]:
    """What an async iterator finds, one by one."""
    with contextlib.suppress(StopAsyncIteration):
        while True:
            yield thread.run(anext(found))  # type: ignore[arg-type]  # of an async generator it is a coroutine
