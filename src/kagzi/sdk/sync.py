"""The client without `await`, for Django, Flask and scripts: every call runs on the async client, on an event loop in a
thread of its own. Any number of threads may share one. A call that is interrupted (Ctrl-C) is given up, and the run
goes on. It adds nothing of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from kagzi.sdk.automations import Automations
from kagzi.sdk.client import Client, ClientOptions
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunInfo
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.handle import Handle
from kagzi.sdk.listing import RunFilter
from kagzi.sdk.request import StartOptions

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output


class _Thread:
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


class _Blocking(Generic[P, R]):
    """A coroutine method of the async side, as a plain method of its twin here."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, R]:
        return lambda *args, **kwargs: instance._thread.run(  # noqa: SLF001 - both classes of this module have one
            self._method(instance._twin, *args, **kwargs)  # noqa: SLF001
        )


class _Iterating(Generic[P, R]):
    """A method of the async side that finds things one by one, as a plain method of its twin here."""

    def __init__(self, method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[P, Iterator[R]]:
        return lambda *args, **kwargs: _each(
            instance._thread,  # noqa: SLF001 - every class of this module has one
            self._method(instance._twin, *args, **kwargs),  # noqa: SLF001
        )


def _each(thread: _Thread, found: AsyncIterator[R]) -> Iterator[R]:
    with contextlib.suppress(StopAsyncIteration):
        while True:
            yield thread.run(anext(found))  # type: ignore[arg-type]  # of an async generator it is a coroutine


class SyncHandle(Generic[O]):
    """One run: `kagzi.Handle` without `await`."""

    def __init__(self, thread: _Thread, twin: Handle[O]) -> None:
        self._thread = thread
        self._twin = twin
        self.run_id = twin.run_id
        self.already_exists = twin.already_exists

    def __repr__(self) -> str:
        return f"<Sync{repr(self._twin)[1:]}"

    def result(self, *, timeout: Duration | None = None) -> O:
        """What the run returns, once it has ended. Raises RunFailed, RunCancelled, and TimeoutError after `timeout`."""
        return self._thread.run(self._twin.result(timeout=timeout))

    def retry(self) -> SyncHandle[O]:
        """A new run with the history before the failed step of this FAILED or CANCELLED one."""
        return SyncHandle(self._thread, self._thread.run(self._twin.retry()))

    def fork(self, step: str, *, outputs: Mapping[str, Any] | None = None, input: Any = None) -> SyncHandle[O]:
        """A new run with the history before `step`, with other outputs of earlier steps or another input if given."""
        return SyncHandle(self._thread, self._thread.run(self._twin.fork(step, outputs=outputs, input=input)))

    describe = _Blocking(Handle.describe)
    steps = _Blocking(Handle.steps)
    explain = _Blocking(Handle.explain)
    state = _Blocking(Handle.state)
    signal = _Blocking(Handle.signal)
    cancel = _Blocking(Handle.cancel)
    terminate = _Blocking(Handle.terminate)
    resume = _Blocking(Handle.resume)
    resolve = _Blocking(Handle.resolve)


class SyncAutomations:
    """The automations of a namespace: `client.automations` without `await`."""

    def __init__(self, thread: _Thread, twin: Automations) -> None:
        self._thread = thread
        self._twin = twin

    get = _Blocking(Automations.get)
    run_now = _Blocking(Automations.run_now)
    pause = _Blocking(Automations.pause)
    resume = _Blocking(Automations.resume)
    retry_blocked = _Blocking(Automations.retry_blocked)
    resolve_mutation = _Blocking(Automations.resolve_mutation)
    publish = _Blocking(Automations.publish)
    publish_many = _Blocking(Automations.publish_many)
    input = _Blocking(Automations.input)
    skip_input = _Blocking(Automations.skip_input)
    list = _Iterating(Automations.list)
    events = _Iterating(Automations.events)
    inputs = _Iterating(Automations.inputs)


class SyncClient:
    """Starts runs and finds them again: `kagzi.Client` without `await`, as `with SyncClient() as client: ...`."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._thread = _Thread()
        self._twin = Client(url, **options)
        self.automations = SyncAutomations(self._thread, self._twin.automations)

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._twin.namespace

    def __repr__(self) -> str:
        return f"<Sync{repr(self._twin)[1:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection and ends the thread; runs go on."""
        self._thread.run(self._twin.close())
        self._thread.stop()

    @overload
    def start(
        self, workflow: Workflow[None, O], input: None = None, **options: Unpack[StartOptions]
    ) -> SyncHandle[O]: ...

    @overload
    def start(self, workflow: Workflow[I, O], input: I, **options: Unpack[StartOptions]) -> SyncHandle[O]: ...

    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> SyncHandle[Any]: ...

    def start(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> SyncHandle[Any]:
        """Starts a run of a workflow, given as the decorated function or by name; options as in `Client.start`."""
        return SyncHandle(self._thread, self._thread.run(self._twin.start(workflow, input, **options)))

    @overload
    def execute(self, workflow: Workflow[None, O], input: None = None, **options: Unpack[StartOptions]) -> O: ...

    @overload
    def execute(self, workflow: Workflow[I, O], input: I, **options: Unpack[StartOptions]) -> O: ...

    @overload
    def execute(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> Any: ...

    def execute(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Starts a run, as `start` does, and waits for its result. Raises RunFailed or RunCancelled."""
        return self._thread.run(self._twin.execute(workflow, input, **options))

    @overload
    def handle(self, run_id: str, workflow: Workflow[Any, O]) -> SyncHandle[O]: ...

    @overload
    def handle(self, run_id: str, workflow: str | None = None) -> SyncHandle[Any]: ...

    def handle(self, run_id: str, workflow: Any = None) -> SyncHandle[Any]:
        """The handle of a run; nothing is asked of the server. With its workflow, results come back as declared."""
        return SyncHandle(self._thread, self._twin.handle(run_id, workflow))

    @overload
    def find(self, id: str, workflow: Workflow[Any, O]) -> SyncHandle[O]: ...

    @overload
    def find(self, id: str, workflow: None = None) -> SyncHandle[Any]: ...

    def find(self, id: str, workflow: Any = None) -> SyncHandle[Any]:
        """The active run with the `id` its caller gave it, else the newest that had it. NotFound when there is none."""
        return SyncHandle(self._thread, self._thread.run(self._twin.find(id, workflow)))

    def runs(self, *, limit: int | None = None, **which: Unpack[RunFilter]) -> Iterator[RunInfo]:
        """Runs, newest first, without inputs and outputs; filters as in `Client.runs`."""
        return _each(self._thread, self._twin.runs(limit=limit, **which))
