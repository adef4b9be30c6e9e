"""Mutations: the functions by which consumers change the outside. A mutation is on record before it is called, and is
called once; when nobody knows whether it happened its reconciler is asked, and it is never repeated on a guess.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from kagzi.automations.handlers import limit
from kagzi.sdk.definition import check_name, result_of
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

# The phase whose code runs here, in words; empty outside of phases and inside a mutation.
open_phase: ContextVar[str] = ContextVar("kagzi_open_phase", default="")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mutation(Generic[P, R]):
    """A function that changes something outside, for `ctx.mutate`. Made by `@mutation`."""

    function: Callable[P, Any]
    name: str
    timeout: timedelta | None = None
    # A list, so that `.reconcile` can follow the declaration.
    reconcilers: list[Callable[..., Any]] = field(default_factory=list)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        phase = open_phase.get()
        if phase:
            raise ConfigError(
                f"{phase} calls the mutation {self.name!r} itself, which nobody would have on record: ask for it with "
                f"`await ctx.mutate({self.name}, ...)` in `mutate`."
            )
        return self.function(*args, **kwargs)

    @property
    def result(self) -> Any:
        """What it is declared to return."""
        return result_of(self.function)

    def reconcile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declares how to find out whether the mutation happened. Called with the idempotency key and the arguments;
        returns Applied(result), Absent or Unclear.
        """
        if not callable(function):
            raise ConfigError(f"@{self.name}.reconcile goes on a function, not on {function!r}")
        if self.reconcilers:
            raise ConfigError(f"mutation {self.name!r} has a reconciler already")
        self._check_reconciler(function)
        self.reconcilers.append(function)
        return function

    def _check_reconciler(self, function: Callable[..., Any]) -> None:
        """It is called when something went wrong already: that it takes its arguments has to be known before."""
        try:
            taken = list(inspect.signature(self.function).parameters.values())
            given = inspect.signature(function)
        except (TypeError, ValueError):
            return
        positional = [each.name for each in taken if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        named = {each.name: None for each in taken if each.kind is each.KEYWORD_ONLY}
        try:
            given.bind("key", *positional, **named)
        except TypeError as error:
            arguments = ", ".join(["key", *positional, *named])
            raise ConfigError(
                f"The reconciler of {self.name!r} is called with the idempotency key and then with what {self.name!r} "
                f"was called with, as ({arguments}): {error}"
            ) from None


class _Decorator(Protocol):
    """`@mutation(…)`: keeps the types of the function it is put on."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Mutation[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Mutation[P, R]: ...

    def __call__(self, function: Any, /) -> Any: ...


@overload
def mutation(function: Callable[P, Coroutine[Any, Any, R]], /) -> Mutation[P, R]: ...


@overload
def mutation(function: Callable[P, R], /) -> Mutation[P, R]: ...


@overload
def mutation(*, name: str | None = None, timeout: Duration | None = None) -> _Decorator: ...


def mutation(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, timeout: Duration | None = None
) -> Any:
    """Declares a mutation: `@mutation` or `@mutation(name=…, timeout=…)`. Under its name it is found again after a
    crash, to be reconciled.
    """

    def declare(function: Callable[..., Any]) -> Mutation[..., Any]:
        if not callable(function) or inspect.isclass(function):
            raise ConfigError(f"@mutation goes on a function, not on {function!r}")
        called = getattr(function, "__name__", "") if name is None else name
        check_name(called, "name")
        made: Mutation[..., Any] = Mutation(function, called, timeout=limit(timeout))
        _declared[called].add(made)
        return made

    return declare if function is None else declare(function)


# By name. Weak: a tool made inside a function goes with it.
_declared: defaultdict[str, weakref.WeakSet[Mutation[..., Any]]] = defaultdict(weakref.WeakSet)


def find(name: str, near: Callable[..., Any]) -> Mutation[..., Any] | None:
    """The mutation that a handler knows under this name: the one its code refers to, else the one declared nearest to
    it. ConfigError when two are as near, for to ask the wrong reconciler would be worse than to ask none.
    """
    referred = {each for each in _references(near) if each.name == name}
    if len(referred) == 1:
        return referred.pop()
    known = list(_declared.get(name, ()))
    place = _place(near)
    found = sorted(known, key=lambda each: _distance(_place(each.function), place))
    if len(found) > 1:
        first, second = (_place(each.function) for each in found[:2])
        if _distance(first, place) == _distance(second, place):
            raise ConfigError(
                f"Two mutations are called {name!r} ({'.'.join(first)} and {'.'.join(second)}): name one of them with "
                "@mutation(name=...)."
            )
    return found[0] if found else None


def _references(function: Callable[..., Any]) -> Iterator[Mutation[..., Any]]:
    """The mutations that a function refers to by a variable."""
    plain = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(plain, "__code__", None)
    if code is None:
        return
    for cell in plain.__closure__ or ():
        # A cell is empty while what it stands for is not assigned yet.
        with contextlib.suppress(ValueError):
            if isinstance(cell.cell_contents, Mutation):
                yield cell.cell_contents
    for variable in code.co_names:
        value = plain.__globals__.get(variable)
        if isinstance(value, Mutation):
            yield value


def _place(function: Callable[..., Any]) -> tuple[str, ...]:
    plain = inspect.unwrap(function)
    plain = plain if hasattr(plain, "__qualname__") else type(plain)
    return (plain.__module__, *plain.__qualname__.split("."))


def _distance(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return len(one) + len(other) - 2 * shared
