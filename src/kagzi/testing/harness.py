"""The environment of a test: a server on a database of its own, workers in the same process, a client, and a clock that
the test moves. Everything is real but the time. Two environments share nothing but the PostgreSQL that serves them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from kagzi.sdk import duration
from kagzi.sdk.client import Client
from kagzi.sdk.codec import Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunInfo
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError, KagziError
from kagzi.sdk.handle import Handle
from kagzi.sdk.request import StartOptions
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from kagzi.testing.clock import VirtualClock
from kagzi.testing.crew import Hand, crew
from kagzi.testing.databases import databases
from kagzi.testing.logs import routed
from kagzi.testing.rest import Rest

I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output

# A run that nothing moves for so long, and nothing will soon, is not going to end by itself.
_PATIENCE = 5.0
_SOON = timedelta(minutes=1)


class Standstill(KagziError):
    """The awaited run waits for time or for a message, and nothing in the environment moves."""


class EnvironmentOptions(TypedDict, total=False):
    """The keyword arguments of `environment(...)`."""

    workflows: Iterable[Workflow[Any, Any]]
    automations: Iterable[object]
    # How many runs each worker holds at once.
    concurrency: int
    # How many runs that wait stay in memory. With 0 every wait replays the run, which finds code that does not replay.
    residents: int
    # What happens to payloads on their way, for worker and client alike.
    codecs: Sequence[Codec]


class Environment:
    """A server, its workers and a client, for one test. Made by `environment(...)`."""

    def __init__(
        self, server: Server, workers: Sequence[Hand], client: _Client, clock: VirtualClock, rest: Rest
    ) -> None:
        self.client: Client = client
        # Where the server listens, for further clients and workers.
        self.url = server.address
        # Where its database is, for `kagzi.sql` and for looking inside.
        self.database_url = server.database.url
        self._server = server
        self._clock = clock
        self._rest = rest
        self._starting = client.starting
        self._workflows = {name for worker in workers for name in worker.workflows}
        self._skipping = asyncio.Lock()

    @overload
    async def run(self, workflow: Workflow[None, O], input: None = None, **options: Unpack[StartOptions]) -> O: ...

    @overload
    async def run(self, workflow: Workflow[I, O], input: I, **options: Unpack[StartOptions]) -> O: ...

    @overload
    async def run(self, workflow: str, input: Any = None, **options: Unpack[StartOptions]) -> Any: ...

    async def run(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> Any:
        """Starts a run, with the options of `client.start`, and waits for its result. Raises RunFailed or RunCancelled;
        Standstill when it waits for something that nobody is about to bring.
        """
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        if name not in self._workflows:
            raise ConfigError(
                f"Workflow {name!r} is not part of this environment, so nothing would run it: add it, as "
                f"environment(workflows=[{', '.join([*sorted(self._workflows), str(name)])}])."
            )
        handle = await self.client.start(workflow, input, **options)
        while True:
            try:
                return await handle.result(timeout=_PATIENCE)
            except TimeoutError:
                await self._look_after(handle)

    async def skip(self, length: Duration) -> None:
        """Moves the clock on. Whatever becomes due on the way happens in its order and at its time, and comes to rest
        before the clock moves further: timers, timeouts of signals, retries, deadlines, delayed starts, schedules,
        producers, `wake_at` and backoff of automations.
        """
        span = duration.parse(length)
        async with self._skipping:
            await self._started()
            await self._rest.come()
            until = self._clock.now() + span
            while True:
                reached = await self._clock.hop(until)
                if reached is not None:
                    self._server.dispatcher.clock.observe(reached)
                    self._server.dispatcher.heard(None)
                    self._server.alarm.look()
                await self._rest.come()
                if reached is not None and reached >= until:
                    return

    async def settle(self) -> None:
        """Waits until everything rests: each run has ended, or waits for time or for a message."""
        await self.skip(0)

    def now(self) -> datetime:
        """The time on the environment's clock."""
        return self._clock.now()

    async def _started(self) -> None:
        """Whoever was about to start a run when the clock was asked to move has started it."""
        await asyncio.sleep(0)
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def _look_after(self, handle: Handle[Any]) -> None:
        """Raises Standstill if it is certain that nothing will happen soon."""
        if self._skipping.locked():
            return
        coming = await self._rest.look()
        run = await handle.describe()
        if coming is None or run.status.ended:
            return
        if coming.upcoming is None or coming.upcoming - self.now() > _SOON:
            raise Standstill(_reason(run))


class _Client(Client):
    """A client whose starts under way are known."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.starting: set[asyncio.Future[None]] = set()

    async def start(self, workflow: Any, input: Any = None, **options: Unpack[StartOptions]) -> Handle[Any]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.starting.add(done)
        try:
            return await super().start(workflow, input, **options)
        finally:
            self.starting.discard(done)
            done.set_result(None)


@contextlib.asynccontextmanager
async def environment(
    *,
    workflows: Iterable[Workflow[Any, Any]] = (),
    automations: Iterable[object] = (),
    concurrency: int = 100,
    residents: int | None = None,
    codecs: Sequence[Codec] = (),
) -> AsyncIterator[Environment]:
    """A server with an empty database and workers for these workflows and automations, while the block lasts:
    `async with kagzi.testing.environment(workflows=[order]) as env: ...`.
    """
    workflows, automations = tuple(workflows), tuple(automations)
    if not workflows and not automations:
        raise ConfigError("An environment needs workflows to run: pass them, as environment(workflows=[order]).")
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(routed())
        url = await stack.enter_async_context(databases.fresh())
        server = Server(_SETTINGS, url)
        stirred = asyncio.Event()
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        workers = crew(
            server.address,
            stirred,
            workflows=workflows,
            automations=automations,
            concurrency=concurrency,
            residents=residents,
            namespace=_NAMESPACE,
            codecs=codecs,
        )
        for worker in workers:
            await stack.enter_async_context(worker)
        client = _Client(server.address, namespace=_NAMESPACE, codecs=codecs)
        await stack.enter_async_context(client)
        clock = VirtualClock(server.database)
        yield Environment(server, workers, client, clock, Rest(server, clock, workers, stirred))


_NAMESPACE = "default"
# Not what the environment's variables say, which are those of another server.
_SETTINGS = Settings.model_construct(
    server_port=0,
    # A debugger may stop everything for as long as it likes; nobody else is there to take a run over.
    worker_visibility_timeout_secs=3_600.0,
    worker_heartbeat_interval_secs=10.0,
    # What ended a month ago, in skipped time, is still there to be looked at.
    retention_runs_secs=0.0,
    retention_events_secs=0.0,
)


def _reason(run: RunInfo) -> str:
    subject = f"Run {run.run_id} of {run.type!r}"
    waiting = run.waiting
    if isinstance(waiting, Mapping):
        return f"{subject} stands still: {waiting.get('message', waiting)}."
    if not waiting:
        return (
            f"{subject} is {run.status} and no worker of this environment takes it from queue {run.queue!r}: check its "
            "queue and version against those of the environment's workflows."
        )
    steps = ", ".join(_wait(one) for one in waiting)
    return (
        f"{subject} waits for {steps}, and nothing else moves. Begin it with `handle = await env.client.start(...)`, "
        "bring what it waits for (`await env.skip('24h')`, `await handle.signal(...)`; for a child: see that its "
        "workflow is part of the environment), then `await handle.result()`."
    )


def _wait(one: Mapping[str, Any]) -> str:
    kind = str(one.get("kind", "step")).lower().replace("child_workflow", "child").replace("function", "step")
    until = f" until {one['until']}" if one.get("until") else ""
    return f"the {kind} {one.get('step')!r}{until}"
