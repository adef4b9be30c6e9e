"""What a workflow's code sees of its run. Every wait is a step on record; everything else derives from the run
itself, so that replayed code sees what it saw the first time.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random as standard_random
import sys
import uuid as standard_uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, overload

from kagzi.protocol.v1.common_pb2 import (
    CHILD_WORKFLOW,
    FUNCTION,
    SIGNAL,
    SLEEP,
    STEP_FAILED,
    Payload,
    RetryPolicy,
)
from kagzi.protocol.v1.worker_pb2 import StartChild
from kagzi.sdk import duration
from kagzi.sdk.children import ChildHandle, child_request
from kagzi.sdk.definition import Step, Workflow, as_step, result_of
from kagzi.sdk.duration import Duration
from kagzi.sdk.endings import ContinueAsNew
from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.history import OWN, Request
from kagzi.sdk.pending import Pending
from kagzi.sdk.retry import Retry
from kagzi.sdk.values import input_hash

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output


class Selected(NamedTuple):
    """What `ctx.select` saw first: its keyword or its place among the arguments, and its value."""

    which: Any
    value: Any


class Context:
    """One run, for the code that is that run."""

    __slots__ = ("_run",)

    def __init__(self, run: Execution) -> None:
        self._run = run

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def workflow_type(self) -> str:
        return self._run.workflow_type

    @property
    def namespace(self) -> str:
        return self._run.host.namespace

    @property
    def attempt(self) -> int:
        """Which try of the whole workflow this is, from 1."""
        return self._run.delivery.attempts + 1

    @property
    def scheduled_for(self) -> datetime | None:
        """The slot of the schedule that fired the run."""
        delivery = self._run.delivery
        return delivery.scheduled_for.ToDatetime(UTC) if delivery.HasField("scheduled_for") else None

    @property
    def labels(self) -> dict[str, str]:
        return dict(self._run.delivery.labels)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Silent while the code repeats what it did before."""
        return _RunLogger(logging.getLogger(f"kagzi.workflow.{self.workflow_type}"), self._run)

    @overload
    async def step(self, name: str, function: Step[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Runs a function once and keeps its result. Raises StepFailed when it has used up its tries."""
        run = self._run
        declared = as_step(function)
        request = run.ledger.request(_name(name), FUNCTION, _where())
        retry = declared.retry or run.definition.step_retry
        pending = Pending(
            request,
            run.loop.create_future(),
            lambda output: run.values.decode(output, result_of(declared.function), "step"),
            step=declared,
            arguments=args,
            keywords=kwargs,
            retry=None if retry is None else _policy(retry),
            input_hash=input_hash(run.delivery.seed, args, kwargs),
        )
        _compare_input(run, request, pending.input_hash)
        return await run.request(pending)

    async def sleep(self, name: str, delay: Duration) -> None:
        """Waits for a time of any length; its end is fixed when it is first reached."""
        milliseconds = duration.milliseconds(delay)
        request = self._run.ledger.request(_name(name), SLEEP, _where())
        await self._wait(Pending(request, self._run.loop.create_future(), _nothing, duration_ms=milliseconds))

    async def sleep_until(self, name: str, moment: datetime) -> None:
        """Waits until a moment; one in the past is over at once."""
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ConfigError(f"sleep_until({name!r}, …) needs a datetime with a time zone, got {moment!r}")
        request = self._run.ledger.request(_name(name), SLEEP, _where())
        due_us = (moment - _EPOCH) // timedelta(microseconds=1)
        await self._wait(Pending(request, self._run.loop.create_future(), _nothing, due_us=max(0, due_us)))

    @overload
    async def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> T | None: ...

    @overload
    async def receive(self, name: str, type: None = None, /, *, timeout: Duration | None = None) -> Any: ...

    async def receive(self, name: str, type: Any = None, /, *, timeout: Duration | None = None) -> Any:
        """The next signal of a name, whether it was sent before or comes later; None when `timeout` is over."""
        run = self._run
        request = run.ledger.request(_name(name), SIGNAL, _where())
        pending = Pending(
            request,
            run.loop.create_future(),
            lambda output: run.values.decode(output, type, "signal"),
            target=name,
            duration_ms=None if timeout is None else duration.milliseconds(timeout),
        )
        return await self._wait(pending)

    @overload
    async def run_child(self, name: str, workflow: Workflow[None, O], /, **options: Any) -> O: ...

    @overload
    async def run_child(self, name: str, workflow: Workflow[I, O], input: I, /, **options: Any) -> O: ...

    @overload
    async def run_child(self, name: str, workflow: str, input: Any = None, /, **options: Any) -> Any: ...

    async def run_child(self, name: str, workflow: Any, input: Any = None, /, **options: Any) -> Any:
        """Starts another run and waits for its result. Raises RunFailed or RunCancelled."""
        return await self._wait(self._child(name, workflow, input, start_only=False, options=options))

    async def start_child(
        self, name: str, workflow: Workflow[Any, O] | str, input: Any = None, /, **options: Any
    ) -> ChildHandle[O]:
        """Starts another run and goes on; its handle can be waited for later."""
        pending = self._child(name, workflow, input, start_only=True, options=options)
        run_id = await self._wait(pending)
        return ChildHandle(self, name, run_id, workflow)

    def _child(self, name: str, workflow: Any, input: Any, *, start_only: bool, options: dict[str, Any]) -> Pending:
        run = self._run
        child, output = child_request(run, workflow, input, options)
        request = run.ledger.request(_name(name), CHILD_WORKFLOW, _where(3))
        message = StartChild(step_id=request.step_id, position=request.position, child=child, start_only=start_only)
        pending = Pending(request, run.loop.create_future(), _nothing, start_child=message)
        if request.record is not None:
            pending.child_run_id = request.record.child_run_id
        if start_only:
            pending.decode = lambda _: pending.child_run_id
        else:
            pending.decode = lambda given: run.values.decode(given, output, "output", child.workflow_type)
        return pending

    async def wait_child(self, handle: ChildHandle[O]) -> O:
        """The result of a child that was started before."""
        run = self._run
        request = run.ledger.request(f"{handle.name}.result", CHILD_WORKFLOW, _where())
        pending = Pending(
            request,
            run.loop.create_future(),
            lambda given: run.values.decode(given, handle.output, "output", handle.workflow_type),
            child_run_id=handle.run_id,
            target=handle.workflow_type,
        )
        result: O = await self._wait(pending)
        return result

    async def select(self, *waits: Awaitable[Any], **named: Awaitable[Any]) -> Selected:
        """The first of several waits; the others are dropped, and stay dropped in replay."""
        entries: list[tuple[Any, Awaitable[Any]]] = [*enumerate(waits), *named.items()]
        if not entries:
            raise ConfigError(
                "ctx.select needs at least one wait, as ctx.select(ctx.receive('yes'), ctx.sleep('late', '1h'))"
            )
        tasks = {which: asyncio.ensure_future(wait) for which, wait in entries}
        try:
            await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        which = next(which for which, task in tasks.items() if not task.cancelled())
        return Selected(which, tasks[which].result())

    def now(self) -> datetime:
        """The time, on the database's clock, as it was when the code first asked."""
        return datetime.fromtimestamp(self._run.readings.read_clock() / 1_000_000, UTC)

    def uuid(self) -> standard_uuid.UUID:
        """A random UUID that is the same in every replay."""
        return standard_uuid.UUID(bytes=self._derive("uuid", 16), version=4)

    def random(self) -> standard_random.Random:
        """A source of random numbers that are the same in every replay."""
        return standard_random.Random(self._derive("random", 32))

    def _derive(self, what: str, size: int) -> bytes:
        count = self._run.readings.count(what)
        seed = self._run.delivery.seed.to_bytes(8, "big", signed=True)
        return hashlib.blake2b(f"{what}/{count}".encode(), digest_size=size, key=seed).digest()

    async def set_state(self, document: Any) -> None:
        """Publishes a small JSON document that clients read with `handle.state()`."""
        try:
            text = json.dumps(document, allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            raise PayloadError(f"The state of a run is a JSON document: {error}.") from error
        self._run.readings.set_state(text)

    def patched(self, id: str) -> bool:
        """Whether new code may take its new path: true unless the run passed here before it was there."""
        return self._run.readings.patched(_name(id))

    def continue_as_new(self, input: Any = None) -> NoReturn:
        """Ends this run and goes on as a new one, with an empty history."""
        raise ContinueAsNew(input)

    async def _wait(self, pending: Pending) -> Any:
        return await self._run.request(pending)


class _RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs with the run's id, and nothing while the code repeats what it did."""

    def __init__(self, logger: logging.Logger, run: Execution) -> None:
        super().__init__(logger, {"run_id": run.run_id, "workflow": run.workflow_type})
        self._run = run

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        return not self._run.replaying and super().isEnabledFor(level)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _nothing(_: Payload | None) -> None:
    return None


def _name(name: str) -> str:
    if not isinstance(name, str) or not name or len(name.encode(errors="replace")) > 200 or not name.isprintable():
        raise ConfigError(f"a step's name is 1 to 200 bytes of printable text, got {name!r}")
    if "#" in name or name.startswith(OWN):
        raise ConfigError(
            f"a step's name holds no '#' and does not begin with '{OWN}': {name!r}. Repeated names are counted for you"
        )
    return name


def _where(depth: int = 2) -> str:
    """Where in the workflow's code a step is asked for."""
    frame = sys._getframe(depth)  # noqa: SLF001 - the documented way to a caller's line without building a traceback
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _policy(retry: Retry) -> RetryPolicy:
    return RetryPolicy(
        maximum_attempts=retry.max_attempts,
        initial_interval_ms=retry.initial_ms,
        backoff_coefficient=retry.backoff,
        maximum_interval_ms=retry.max_interval_ms,
    )


def _compare_input(run: Execution, request: Request, given: int) -> None:
    record = request.record
    if record is None or not record.input_hash or not given or record.input_hash == given:
        return
    if record.status == STEP_FAILED and not record.completed_seq:
        return
    run.readings.input_changed(request)
