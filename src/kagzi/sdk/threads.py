"""Threads for sync step bodies. Unlike those of `concurrent.futures` they do not keep the process from ending: a body
that cannot be stopped must not hold up a worker that has given its run back. They are made when needed and kept.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Threads(Executor):
    """At most `most` bodies at a time; the others wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        with self._lock:
            if self._closed:
                raise RuntimeError("the worker has stopped")
            future: Future[T] = Future()
            self._work.put((future, lambda: function(*args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._count < self._most:
                self._count += 1
                threading.Thread(target=self._run, name=f"kagzi-step-{self._count}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: ARG002 - of Executor
        """Lets idle threads go. Bodies that run are never waited for."""
        with self._lock:
            self._closed = True
            for _ in range(self._count):
                self._work.put(None)

    def _run(self) -> None:
        while True:
            try:
                task = self._work.get_nowait()
            except queue.Empty:
                self._idle.release()
                task = self._work.get()
            if task is None:
                return
            future, body = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(body())
                except BaseException as error:  # noqa: BLE001 - whatever it is belongs to who asked
                    future.set_exception(error)
            # A waiting thread keeps nothing alive.
            del task, future, body
