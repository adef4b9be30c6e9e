"""Handlers as they are declared: a producer is a function with a schedule, a consumer a class with `prepare`, and
perhaps `mutate` and `next`. A handler is what a worker runs: it has a type of its own among the worker's, and makes
the execution of each of its runs. Nothing here calls the users' code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kagzi.automations.signatures import declared
from kagzi.automations.timing import Timing
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.sdk import duration
from kagzi.sdk.definition import check_name
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError

if TYPE_CHECKING:
    from kagzi.automations.automation import Automation

PHASES = ("prepare", "mutate", "next")


@dataclass(frozen=True, slots=True, eq=False)
class Producer:
    """Looks at the outside on a schedule and publishes. Made by `@automation.producer(…)`."""

    automation: Automation
    name: str
    function: Callable[..., Any]
    timing: Timing
    publishes: tuple[str, ...]
    timeout: timedelta | None = None

    subscribes: tuple[str, ...] = ()

    @property
    def source(self) -> Any:
        """The users' own object, whose code it is."""
        return self.function

    @property
    def state(self) -> Any:
        """What its state is declared to be."""
        return declared(self.function).at(1)

    def definition(self) -> pb.HandlerDefinition:
        """As it is deployed."""
        return pb.HandlerDefinition(
            name=self.name,
            kind=pb.HANDLER_PRODUCER,
            timing=self.timing.wire(),
            timezone=self.timing.zone,
            publishes=self.publishes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Consumer:
    """Acts on events. Made by `@automation.consumer(…)`."""

    automation: Automation
    name: str
    # A class, of which every phase gets an object of its own; or an object, which is used as it is.
    source: Any
    subscribes: tuple[str, ...]
    publishes: tuple[str, ...] = ()
    timeout: timedelta | None = None

    def phase(self, name: str) -> Callable[..., Any] | None:
        """One of its phases as it is written, for looking at; None when it has none."""
        found = getattr(self.source, name, None)
        return found if callable(found) else None

    def bound(self, name: str) -> Callable[..., Any]:
        """One of its phases, to be called. What a phase keeps in `self` another one never sees, so that a run which
        was taken over by another worker goes like one that was not.
        """
        holder = self.source() if inspect.isclass(self.source) else self.source
        method: Callable[..., Any] = getattr(holder, name)
        return method

    def has(self, name: str) -> bool:
        """Whether it has the phase."""
        return self.phase(name) is not None

    @property
    def state(self) -> Any:
        """What its state is declared to be."""
        prepare = self.phase("prepare")
        # A method of a class still has its `self` in front.
        return Any if prepare is None else declared(prepare).at(2 if inspect.isclass(self.source) else 1)

    def definition(self) -> pb.HandlerDefinition:
        """As it is deployed."""
        return pb.HandlerDefinition(
            name=self.name,
            kind=pb.HANDLER_CONSUMER,
            publishes=self.publishes,
            subscribes=self.subscribes,
            mutates=self.has("mutate"),
        )


Handler = Producer | Consumer


def topics(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    """Topics as they are declared: one, or several. ConfigError for what can be no topic."""
    if not isinstance(given, Iterable):
        raise ConfigError(f"{where} must be a topic or a list of topics, got {given!r:.80}")
    listed = (given,) if isinstance(given, str) else tuple(given)
    for topic in listed:
        check_name(topic, f"a topic of {where}")
    return tuple(dict.fromkeys(listed))


def limit(timeout: Duration | None) -> timedelta | None:
    """The time a phase or a mutation may take. ConfigError for one in which nothing can be done."""
    given = None if timeout is None else duration.named(timeout, "timeout")
    if given == timedelta(0):
        raise ConfigError(f"timeout={timeout!r} leaves no time: leave it out, or give what it may take, as '30s'")
    return given
