"""The client without `await`, for Django, Flask and scripts: every call runs on the async client, on an event loop in a
thread of its own. Any number of threads may share one. A call that is interrupted (Ctrl-C) is given up, and the run
goes on. It adds nothing of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from kagzi.sdk.automations import Automations
from kagzi.sdk.blocking import Blocking, Iterating, Thread, each
from kagzi.sdk.client import Client, ClientOptions
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunInfo
from kagzi.sdk.duration import Duration
from kagzi.sdk.handle import Handle
from kagzi.sdk.listing import RunFilter
from kagzi.sdk.request import StartOptions
from kagzi.sdk.schedule_request import ScheduleOptions, TriggerOptions
from kagzi.sdk.schedules import ScheduleHandle, Schedules

I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output


class SyncHandle(Generic[O]):
    """One run: `kagzi.Handle` without `await`."""

    def __init__(self, thread: Thread, twin: Handle[O]) -> None:
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

    describe = Blocking(Handle.describe)
    steps = Blocking(Handle.steps)
    step = Blocking(Handle.step)
    explain = Blocking(Handle.explain)
    state = Blocking(Handle.state)
    signal = Blocking(Handle.signal)
    cancel = Blocking(Handle.cancel)
    terminate = Blocking(Handle.terminate)
    resume = Blocking(Handle.resume)
    resolve = Blocking(Handle.resolve)


class SyncAutomations:
    """The automations of a namespace: `client.automations` without `await`."""

    def __init__(self, thread: Thread, twin: Automations) -> None:
        self._thread = thread
        self._twin = twin

    get = Blocking(Automations.get)
    run_now = Blocking(Automations.run_now)
    pause = Blocking(Automations.pause)
    resume = Blocking(Automations.resume)
    retry_blocked = Blocking(Automations.retry_blocked)
    resolve_mutation = Blocking(Automations.resolve_mutation)
    publish = Blocking(Automations.publish)
    publish_many = Blocking(Automations.publish_many)
    input = Blocking(Automations.input)
    skip_input = Blocking(Automations.skip_input)
    list = Iterating(Automations.list)
    events = Iterating(Automations.events)
    inputs = Iterating(Automations.inputs)


class SyncScheduleHandle:
    """One schedule: `client.schedules.handle(id)` without `await`."""

    def __init__(self, thread: Thread, twin: ScheduleHandle) -> None:
        self._thread = thread
        self._twin = twin
        self.id = twin.id

    def __repr__(self) -> str:
        return f"<Sync{repr(self._twin)[1:]}"

    @property
    def template_run_id(self) -> str | None:
        """What its runs carry; as far as this handle has seen it."""
        return self._twin.template_run_id

    def trigger(self, **options: Unpack[TriggerOptions]) -> SyncHandle[Any] | None:
        """Starts one run now; None when the previous one has not ended and the policy leaves it out."""
        started = self._thread.run(self._twin.trigger(**options))
        return None if started is None else SyncHandle(self._thread, started)

    describe = Blocking(ScheduleHandle.describe)
    pause = Blocking(ScheduleHandle.pause)
    resume = Blocking(ScheduleHandle.resume)
    update = Blocking(ScheduleHandle.update)
    delete = Blocking(ScheduleHandle.delete)
    next_fires = Blocking(ScheduleHandle.next_fires)
    backfill = Blocking(ScheduleHandle.backfill)
    history = Iterating(ScheduleHandle.history)


class SyncSchedules:
    """The schedules of a namespace: `client.schedules` without `await`."""

    def __init__(self, thread: Thread, twin: Schedules) -> None:
        self._thread = thread
        self._twin = twin

    def create(
        self, id: str, workflow: Workflow[Any, Any] | str, input: Any = None, **options: Unpack[ScheduleOptions]
    ) -> SyncScheduleHandle:
        """Creates a schedule; options as in `client.schedules.create`."""
        made = self._thread.run(self._twin.create(id, workflow, input, **options))
        return SyncScheduleHandle(self._thread, made)

    def handle(self, id: str) -> SyncScheduleHandle:
        """The handle of a schedule; nothing is asked of the server."""
        return SyncScheduleHandle(self._thread, self._twin.handle(id))

    get = Blocking(Schedules.get)
    preview = Blocking(Schedules.preview)
    list = Iterating(Schedules.list)


class SyncClient:
    """Starts runs and finds them again: `kagzi.Client` without `await`, as `with SyncClient() as client: ...`."""

    def __init__(self, url: str | None = None, **options: Unpack[ClientOptions]) -> None:
        self._thread = Thread()
        self._twin = Client(url, **options)
        self.automations = SyncAutomations(self._thread, self._twin.automations)
        self.schedules = SyncSchedules(self._thread, self._twin.schedules)

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
        return each(self._thread, self._twin.runs(limit=limit, **which))
