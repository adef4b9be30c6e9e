"""`Automation`: a named set of handlers that talk through durable topics. Declaring does nothing but remember; a worker
that is given the automation checks it, deploys it, and runs its handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from kagzi.automations import checks
from kagzi.automations.checks import Finding
from kagzi.automations.fingerprint import fingerprint
from kagzi.automations.handlers import Consumer, Handler, Producer, limit, topics
from kagzi.automations.run import HandlerRun
from kagzi.automations.timing import Timing
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.sdk.definition import check_name
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.host import Host
from kagzi.sdk.served import Served

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")

_NAME_BYTES = 127


class Automation:
    """Handlers under one name. Within one automation one handler runs at a time; automations run side by side.

    `queue`: the queue of the workers that run it; else that of the worker it is given to. `accepts`: topics to which
    others publish, with `client.automations.publish`, so that none of its own handlers has to.
    """

    def __init__(self, name: str, *, queue: str | None = None, accepts: str | Sequence[str] = ()) -> None:
        check_name(name, "an automation's name", _NAME_BYTES)
        if queue is not None:
            check_name(queue, "queue")
        self.name = name
        self.queue = queue
        self.accepts = topics(accepts, "accepts")
        self.handlers: list[Handler] = []

    def __repr__(self) -> str:
        return f"<Automation {self.name!r}: {', '.join(handler.name for handler in self.handlers) or 'no handlers'}>"

    def producer(
        self,
        *,
        publishes: str | Sequence[str] = (),
        every: Duration | None = None,
        cron: str | None = None,
        text: str | None = None,
        timezone: str = "",
        name: str | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]:
        """Declares a producer: `@inbox.producer(every="5m", publishes=["email.received"])` on a function of a
        ProducerContext and the producer's state, which returns its new state. When it runs is said with one of
        `every`, `cron` and `text`, as for schedules.
        """

        def declare(function: F) -> F:
            if not callable(function) or inspect.isclass(function):
                raise ConfigError(f"@{self.name}.producer goes on a function, not on {function!r}")
            self._add(
                Producer(
                    automation=self,
                    name=_name(name, function),
                    function=function,
                    timing=Timing(every=every, cron=cron, text=text, timezone=timezone),
                    publishes=topics(publishes, "publishes"),
                    timeout=limit(timeout),
                )
            )
            return function

        return declare

    def consumer(
        self,
        *,
        subscribe: str | Sequence[str] = (),
        publishes: str | Sequence[str] = (),
        name: str | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[C], C]:
        """Declares a consumer: `@inbox.consumer(subscribe=["email.received"])` on a class with `prepare`, and perhaps
        `mutate` and `next`. `timeout` is for each of its phases.
        """

        def declare(source: C) -> C:
            self._add(
                Consumer(
                    automation=self,
                    name=_name(name, source),
                    source=source,
                    subscribes=topics(subscribe, "subscribe"),
                    publishes=topics(publishes, "publishes"),
                    timeout=limit(timeout),
                )
            )
            return source

        return declare

    def _add(self, handler: Handler) -> None:
        self.handlers.append(handler)
        self.__dict__.pop("definition_hash", None)

    def check(self) -> list[Finding]:
        """What is wrong with it, and what is probably not meant; empty when all is well."""
        return checks.check(self)

    def checked(self) -> Automation:
        """Itself, when nothing is wrong with it. ConfigError with every rule that is broken."""
        wrong = [finding for finding in self.check() if finding.is_error]
        if wrong:
            told = "".join(f"\n  {finding}" for finding in wrong)
            raise ConfigError(f"Automation {self.name!r} cannot run:{told}")
        return self

    @cached_property
    def definition_hash(self) -> str:
        """Changes when a declaration or the code around it does."""
        sources = [handler.source for handler in self.handlers]
        return fingerprint([handler.definition() for handler in self.handlers], sources)

    def definition(self, queue: str) -> pb.AutomationDefinition:
        """As a worker of this queue deploys it."""
        return pb.AutomationDefinition(
            name=self.name,
            definition_hash=self.definition_hash,
            task_queue=queue,
            handlers=[handler.definition() for handler in self.handlers],
            accepts=self.accepts,
        )

    def served(self) -> Sequence[Served]:
        """Its handlers, as a worker runs them."""
        return [_Served(self, handler) for handler in self.handlers]


class _Served:
    """One handler among the types that a worker serves."""

    def __init__(self, automation: Automation, handler: Handler) -> None:
        self.name = f"{automation.name}.{handler.name}"
        self.version = ""
        self.definition_hash = automation.definition_hash
        self._handler = handler

    def execute(self, delivery: Delivery, host: Host) -> HandlerRun:
        """The execution of one delivered run."""
        return HandlerRun(delivery, self._handler, host)


def _name(given: str | None, source: object) -> str:
    found = given or getattr(source, "__name__", None) or type(source).__name__
    check_name(found, "a handler's name", _NAME_BYTES)
    if "." in found:
        raise ConfigError(f"a handler's name holds no dot: {found!r}")
    return found
