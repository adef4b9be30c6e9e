"""What a workflow's code sees of its run. Every wait is a step on record; everything else derives from the run
itself, so that replayed code sees what it saw the first time.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import random as standard_random
import uuid as standard_uuid
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Collection, Coroutine
from datetime import UTC, datetime, timedelta
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, ParamSpec, TypeVar, Unpack, overload

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, FUNCTION, SIGNAL, SLEEP, STEP_FAILED, Payload
from kagzi.protocol.v1.worker_pb2 import StartChild
from kagzi.sdk import tracing
from kagzi.sdk.children import ChildHandle, ChildOptions, child_request
from kagzi.sdk.definition import Step, Workflow, as_step, result_of
from kagzi.sdk.duration import Duration
from kagzi.sdk.endings import ContinueAsNew
from kagzi.sdk.errors import ConfigError, KagziError
from kagzi.sdk.history import OWN, Request
from kagzi.sdk.loop import Dropped
from kagzi.sdk.payload import plan
from kagzi.sdk.pending import Pending
from kagzi.sdk.request import retry_policy
from kagzi.sdk.source import caller
from kagzi.sdk.values import input_hash, state_text
from kagzi.sdk.waits import bounded_ms

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - a workflow's input
O = TypeVar("O")  # noqa: E741 - a workflow's output


class OutsideWorkflow(KagziError):
    """A Context was used by something else than the code it belongs to."""

    def __init__(self) -> None:
        super().__init__(
            "This ctx belongs to the code of a workflow, and was used outside of it: in a step's body, in another "
            "thread, or after the run. Call it in the workflow, and pass a body what it needs as arguments."
        )


class Selected(NamedTuple):
    """What `ctx.select` saw first: its keyword or its place among the arguments, and its value."""

    which: Any
    value: Any


class Context:
    """One run, for the code that is that run. The methods that wait are plain functions that make coroutines: they note
    the line they are called from, also when the coroutine then runs as a task.
    """

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
        return {key: value for key, value in self._run.delivery.labels.items() if key not in tracing.LABELS}

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Silent while the code repeats what it did before."""
        return self._run.logger

    # Not Coroutine[Any, Any, R]: of those, asyncio.gather would infer nothing.
    @overload
    def step(
        self, name: str, function: Step[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...

    @overload
    def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...

    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[object, None, R]: ...

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Runs a function once and keeps its result. Raises StepFailed when it has used up its tries."""
        return self._step(self._inside(), *caller(), name, as_step(function), args, kwargs)

    async def _step(
        self,
        run: Execution,
        code: CodeType,
        line: int,
        name: str,
        step: Step[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        request = run.ledger.request(_name(name), FUNCTION, code, line)
        retry = step.retry or run.definition.step_retry
        pending = Pending(
            request,
            run.loop.create_future(),
            lambda output: run.values.decode(output, result_of(step.function), "step"),
            step=step,
            arguments=args,
            keywords=kwargs,
            retry=None if retry is None else retry_policy(retry),
            input_hash=input_hash(run.delivery.seed, args, kwargs),
        )
        if request.record is not None:
            _compare_input(run, request, pending.input_hash)
        return await run.result(pending)

    def sleep(self, name: str, delay: Duration) -> Coroutine[Any, Any, None]:
        """Waits for a time of any length up to ten years; its end is fixed when it is first reached."""
        return self._sleep(self._inside(), *caller(), name, bounded_ms(delay, "delay"), None)

    def sleep_until(self, name: str, moment: datetime) -> Coroutine[Any, Any, None]:
        """Waits until a moment; one in the past is over at once."""
        if not isinstance(moment, datetime) or moment.tzinfo is None:
            raise ConfigError(f"sleep_until({name!r}, …) needs a datetime with a time zone, got {moment!r}")
        if moment >= _LATEST:
            raise ConfigError(f"sleep_until({name!r}, …) cannot wait beyond the year 2199, got {moment!r}")
        due_us = max(0, (moment - _EPOCH) // timedelta(microseconds=1))
        return self._sleep(self._inside(), *caller(), name, None, due_us)

    async def _sleep(
        self, run: Execution, code: CodeType, line: int, name: str, duration_ms: int | None, due_us: int | None
    ) -> None:
        request = run.ledger.request(_name(name), SLEEP, code, line)
        future = run.loop.create_future()
        await run.result(Pending(request, future, _nothing, duration_ms=duration_ms, due_us=due_us))

    @overload
    def receive(
        self, name: str, type: type[T], /, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, T | None]: ...

    @overload
    def receive(
        self, name: str, type: None = None, /, *, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, Any]: ...

    def receive(self, name: str, type: Any = None, /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, Any]:
        """The next signal of a name, whether it was sent before or comes later; None when `timeout` is over."""
        plan(type)
        timeout_ms = None if timeout is None else bounded_ms(timeout, "timeout")
        return self._receive(self._inside(), *caller(), name, type, timeout_ms)

    async def _receive(
        self, run: Execution, code: CodeType, line: int, name: str, type: Any, timeout_ms: int | None
    ) -> Any:
        pending = Pending(
            run.ledger.request(_name(name), SIGNAL, code, line),
            run.loop.create_future(),
            lambda output: run.values.decode(output, type, "signal"),
            target=name,
            duration_ms=timeout_ms,
        )
        return await run.result(pending)

    @overload
    def run_child(
        self, name: str, workflow: Workflow[None, O], /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, O]: ...

    @overload
    def run_child(
        self, name: str, workflow: Workflow[I, O], input: I, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, O]: ...

    @overload
    def run_child(
        self, name: str, workflow: str, input: Any = None, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, Any]: ...

    def run_child(
        self, name: str, workflow: Any, input: Any = None, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, Any]:
        """Starts another run and waits for its result. Raises RunFailed or RunCancelled."""
        return self._run_child(self._inside(), *caller(), name, workflow, input, options)

    async def _run_child(
        self, run: Execution, code: CodeType, line: int, name: str, workflow: Any, input: Any, options: ChildOptions
    ) -> Any:
        child, output = child_request(run, workflow, input, options)
        request = run.ledger.request(_name(name), CHILD_WORKFLOW, code, line)
        pending = _child(run, request, StartChild(child=child))
        pending.decode = lambda given: run.values.decode(given, output, "output", child.workflow_type)
        return await run.result(pending)

    @overload
    def start_child(
        self, name: str, workflow: Workflow[None, O], /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, ChildHandle[O]]: ...

    @overload
    def start_child(
        self, name: str, workflow: Workflow[I, O], input: I, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, ChildHandle[O]]: ...

    @overload
    def start_child(
        self, name: str, workflow: str, input: Any = None, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, ChildHandle[Any]]: ...

    def start_child(
        self, name: str, workflow: Any, input: Any = None, /, **options: Unpack[ChildOptions]
    ) -> Coroutine[Any, Any, ChildHandle[Any]]:
        """Starts another run and goes on; its handle can be waited for later."""
        return self._start_child(self._inside(), *caller(), name, workflow, input, options)

    async def _start_child(
        self, run: Execution, code: CodeType, line: int, name: str, workflow: Any, input: Any, options: ChildOptions
    ) -> ChildHandle[Any]:
        child, _ = child_request(run, workflow, input, options)
        request = run.ledger.request(_name(name), CHILD_WORKFLOW, code, line)
        pending = _child(run, request, StartChild(child=child, start_only=True))
        pending.decode = lambda _: pending.child_run_id
        return ChildHandle(run, name, await run.result(pending), workflow)

    async def select(self, *waits: Awaitable[Any], **named: Awaitable[Any]) -> Selected:
        """The first of several waits; the others are dropped, and stay dropped in replay."""
        entries: list[tuple[Any, Awaitable[Any]]] = [*enumerate(waits), *named.items()]
        if not entries:
            raise ConfigError(
                "ctx.select needs at least one wait, as ctx.select(ctx.receive('yes'), ctx.sleep('late', '1h'))"
            )
        for which, wait in entries:
            if not inspect.isawaitable(wait):
                raise ConfigError(
                    f"ctx.select waits for what can be awaited, as ctx.receive('yes'); {which!r} is {wait!r}"
                )
        tasks = {which: asyncio.ensure_future(wait) for which, wait in entries}
        try:
            done, _ = await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        except Dropped:
            # The run leaves this worker, which the waits hear by themselves.
            raise
        except BaseException:
            await _end(tasks.values())
            raise
        await _end(tasks.values())
        which = next(which for which, task in tasks.items() if task in done)
        return Selected(which, tasks[which].result())

    def now(self) -> datetime:
        """The time, on the database's clock, as it was when the code first asked."""
        return _EPOCH + timedelta(microseconds=self._inside().readings.read_clock())

    def uuid(self) -> standard_uuid.UUID:
        """A random UUID that is the same in every replay."""
        return standard_uuid.UUID(bytes=self._derive("uuid", 16), version=4)

    def random(self) -> standard_random.Random:
        """A source of random numbers that are the same in every replay."""
        return standard_random.Random(self._derive("random", 32))

    def _derive(self, what: str, size: int) -> bytes:
        run = self._inside()
        count = run.readings.count(what)
        seed = run.delivery.seed.to_bytes(8, "big", signed=True)
        return hashlib.blake2b(f"{what}/{count}".encode(), digest_size=size, key=seed).digest()

    async def set_state(self, document: Any) -> None:
        """Publishes a small JSON document that clients read with `handle.state()`. It is for people and queries, and is
        stored as it is: codecs, and with them encryption, are for inputs, outputs and signals.
        """
        self._inside().readings.set_state(state_text(document))

    def patched(self, id: str) -> bool:
        """Whether new code may take its new path: true unless the run passed here before it was there."""
        return self._inside().readings.patched(_name(id))

    def continue_as_new(self, input: Any = None) -> NoReturn:
        """Ends this run and goes on as a new one, with an empty history."""
        definition = self._inside().definition
        if input is not None and not definition.takes_input:
            raise ConfigError(f"Workflow {definition.name!r} takes no input, and was given {type(input).__name__}.")
        raise ContinueAsNew(input)

    def _inside(self) -> Execution:
        """The run, for its own code. Code that is being closed hears so again, whatever it asks for."""
        run = self._run
        if _get_running_loop() is not run.loop:
            raise OutsideWorkflow
        if run.loop.dropped:
            raise Dropped
        return run


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)


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


def _child(run: Execution, request: Request, message: StartChild) -> Pending:
    message.step_id = request.step_id
    message.position = request.position
    pending = Pending(request, run.loop.create_future(), _nothing, start_child=message)
    if request.record is not None:
        pending.child_run_id = request.record.child_run_id
    return pending


def _compare_input(run: Execution, request: Request, given: int) -> None:
    record = request.record
    if record is None or not record.input_hash or not given or record.input_hash == given:
        return
    if record.status == STEP_FAILED and not record.completed_seq:
        return
    run.readings.input_changed(request)


async def _end(tasks: Collection[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
