"""What users declare: workflows and steps. A declaration is checked where it is written: its names, its options, and
that its annotations can be encoded. Calling a decorated function calls the function itself, so that it stays
testable; a step that is called so in workflow code is refused, because nothing would be recorded.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import reprlib
import typing
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from kagzi.sdk import duration, payload
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError, PayloadError
from kagzi.sdk.fingerprint import fingerprint
from kagzi.sdk.loop import require_outside
from kagzi.sdk.retry import Retry

if TYPE_CHECKING:
    from kagzi.sdk.context import Context

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
I = TypeVar("I")  # noqa: E741 - a workflow's input, beside its output O
O = TypeVar("O")  # noqa: E741 - a workflow's output, beside its input I

_NAME_BYTES = 255


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[P, R]):
    """A function that runs once and whose result is kept. Made by `@step`."""

    function: Callable[P, Any]
    retry: Retry | None = None
    timeout: timedelta | None = None
    effect: bool = False
    # Asked what became of an effect whose outcome is unknown; a list, so that `.reconcile` can follow the declaration.
    reconcilers: list[Callable[..., Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "step")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the function, for tests and for other steps. In a workflow it would run anew with every replay."""
        require_outside(f"calling the step {self.name!r} directly", f"await ctx.step({self.name!r}, {self.name}, ...)")
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Step[P, R]: ...

    @overload
    def __get__(self: Step[Concatenate[Any, Q], R], instance: object, owner: type) -> Step[Q, R]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        """As a method: the step of one object."""
        if instance is None:
            return self
        bound = [_bound(reconciler, instance, owner) for reconciler in self.reconcilers]
        return replace(self, function=_bound(self.function, instance, owner), reconcilers=bound)

    def with_options(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> Step[P, R]:
        """The same step with other options, for one call."""
        return replace(
            self,
            retry=self.retry if retry is None else _checked_retry(retry),
            timeout=self.timeout if timeout is None else duration.named(timeout, "timeout"),
        )

    def reconcile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declares how to find out whether the effect happened. Called with the idempotency key and the arguments;
        returns Applied(result), Absent or Unclear.
        """
        if not self.effect:
            raise ConfigError(f"step {self.name!r} needs no reconciler: only @step(effect=True) can be in doubt")
        if self.reconcilers:
            raise ConfigError(f"step {self.name!r} has a reconciler already")
        self.reconcilers.append(function)
        return function


def _bound(function: Callable[..., Any], instance: object, owner: type) -> Callable[..., Any]:
    bind = getattr(function, "__get__", None)
    return function if bind is None else bind(instance, owner)


@overload
def step(function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...


@overload
def step(*, retry: Retry | None = None, timeout: Duration | None = None, effect: bool = False) -> _StepDecorator: ...


def step(
    function: Callable[..., Any] | None = None,
    /,
    *,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    effect: bool = False,
) -> Any:
    """Declares a step: `@step` or `@step(retry=…, timeout=…, effect=…)`."""

    def declare(function: Callable[..., Any]) -> Step[..., Any]:
        if isinstance(function, Workflow):
            raise ConfigError(f"{function.name!r} is a workflow: run it with ctx.run_child, and not as a step")
        if not callable(function):
            raise ConfigError(
                f"@step goes on a function, not on {function!r}: a step has its name from ctx.step(name, function, ...)"
            )
        _check_annotation(getattr(function, "__name__", "step"), "returns", result_of(function))
        made: Step[..., Any] = Step(
            function,
            retry=None if retry is None else _checked_retry(retry),
            timeout=None if timeout is None else duration.named(timeout, "timeout"),
            effect=effect,
        )
        return made

    return declare if function is None else declare(function)


class _StepDecorator(typing.Protocol):
    """`@step(…)`: keeps the types of the function it is put on."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...

    def __call__(self, function: Any, /) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Workflow(Generic[I, O]):
    """A function that survives crashes. Made by `@workflow`."""

    function: Callable[..., Awaitable[Any]]
    name: str
    queue: str | None = None
    version: str = ""
    retry: Retry | None = None
    step_retry: Retry | None = None
    timeout: timedelta | None = None
    strict_inputs: bool = False
    takes_input: bool = False
    input: Any = None
    output: Any = None
    # Its input has a default, which a run gets that is started without.
    has_default: bool = False

    @property
    def definition_hash(self) -> str:
        """Another hash means other code: a run that this code could not go on with may be tried with that."""
        return fingerprint(self.function)

    def leaves_out(self, given: Any) -> bool:
        """Whether a run is started without input, to get the default."""
        return given is None and self.has_default

    def __call__(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self.function(*args, **kwargs)


# First the one with an input: a function whose input has a default fits both.
@overload
def workflow(function: Callable[[Context, I], Awaitable[O]], /) -> Workflow[I, O]: ...


@overload
def workflow(function: Callable[[Context], Awaitable[O]], /) -> Workflow[None, O]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    queue: str | None = None,
    version: str = "",
    retry: Retry | None = None,
    step_retry: Retry | None = None,
    timeout: Duration | None = None,
    strict_inputs: bool = False,
) -> _WorkflowDecorator: ...


def workflow(
    function: Callable[..., Awaitable[Any]] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | None = None,
    version: str = "",
    retry: Retry | None = None,
    step_retry: Retry | None = None,
    timeout: Duration | None = None,
    strict_inputs: bool = False,
) -> Any:
    """Declares a workflow: `@workflow` or `@workflow(name=…, queue=…, version=…, retry=…, …)`."""

    def declare(function: Callable[..., Awaitable[Any]]) -> Workflow[Any, Any]:
        if isinstance(function, str):
            raise ConfigError(f"the options of a workflow have names: @workflow(name={function!r})")
        called = str(name or getattr(function, "__name__", ""))
        check_name(called, "name")
        if not inspect.iscoroutinefunction(function):
            raise ConfigError(f"workflow {called!r} must be an `async def` function that takes a Context")
        takes_input, given, has_default = _input_of(called, function)
        output = result_of(function)
        _check_annotation(called, "takes", given)
        _check_annotation(called, "returns", output)
        if queue is not None:
            check_name(queue, "queue")
        if version:
            check_name(version, "version")
        return Workflow(
            function,
            called,
            queue=queue,
            version=version,
            retry=None if retry is None else _checked_retry(retry),
            step_retry=None if step_retry is None else _checked_retry(step_retry),
            timeout=None if timeout is None else duration.named(timeout, "timeout"),
            strict_inputs=strict_inputs,
            takes_input=takes_input,
            input=given,
            output=output,
            has_default=has_default,
        )

    return declare if function is None else declare(function)


class _WorkflowDecorator(typing.Protocol):
    """`@workflow(…)`: keeps the types of the function it is put on."""

    @overload
    def __call__(self, function: Callable[[Context, I], Awaitable[O]], /) -> Workflow[I, O]: ...

    @overload
    def __call__(self, function: Callable[[Context], Awaitable[O]], /) -> Workflow[None, O]: ...

    def __call__(self, function: Any, /) -> Any: ...


def as_step(function: Callable[..., Any]) -> Step[..., Any]:
    """Any function as a step; a declared one as it is."""
    if isinstance(function, Step):
        return function
    if inspect.iscoroutine(function):
        function.close()
    if not callable(function):
        raise ConfigError(
            f"a step runs a function, not {function!r}: pass its name, the function and the arguments separately, as "
            "ctx.step('charge', charge, card)"
        )
    return Step(function)


def result_of(function: Callable[..., Any]) -> Any:
    """What a function is annotated to return; Any when it does not say, which takes plain values alone."""
    plain = getattr(function, "__func__", function)
    try:
        return _results[plain]
    except (KeyError, TypeError):
        found = _annotations(plain).get("return", Any)
        # An object that cannot be hashed, or referred to weakly, is asked again each time.
        with contextlib.suppress(TypeError):
            _results[plain] = found
        return found


# Weak: a function made for one call may hold a large value.
_results: weakref.WeakKeyDictionary[Callable[..., Any], Any] = weakref.WeakKeyDictionary()


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    plain = inspect.unwrap(function)
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not (inspect.isroutine(plain) or inspect.isclass(plain)):
        plain = type(plain).__call__
    try:
        found = typing.get_type_hints(plain, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # A name that exists only for type checkers: the value is then encoded by what it is.
        found = {}
    return found


def _input_of(name: str, function: Callable[..., Any]) -> tuple[bool, Any, bool]:
    """Whether a workflow takes an input, what it is annotated to be, and whether it has a default."""
    parameters = list(inspect.signature(function).parameters.values())
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(parameter.kind not in plain for parameter in parameters):
        raise ConfigError(
            f"workflow {name!r} must take a Context and at most one input, as "
            f"`async def {name}(ctx: Context, order: Order)`:"
            " put several values into one dataclass"
        )
    if len(parameters) == 1:
        return False, None, False
    has_default = parameters[1].default is not inspect.Parameter.empty
    return True, _annotations(function).get(parameters[1].name, Any), has_default


def _check_annotation(name: str, verb: str, annotation: Any) -> None:
    """Raises PayloadError here, where the type is declared, and not in the middle of a run."""
    if annotation is not None:
        try:
            payload.plan(annotation)
        except PayloadError as error:
            error.add_note(f"{name!r} {verb} it")
            raise


def check_name(name: str, field_name: str, most: int = _NAME_BYTES) -> None:
    """Raises ConfigError unless it is a name that can be stored."""
    # Printable first: what is not may have no bytes.
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > most:
        raise ConfigError(f"{field_name} must be 1 to {most} bytes of printable text, got {reprlib.repr(name)}")


def _checked_retry(retry: Retry) -> Retry:
    if not isinstance(retry, Retry):
        raise ConfigError(f"retry must be a Retry(...), got {retry!r}")
    return retry
