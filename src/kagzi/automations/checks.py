"""The rules that a declaration must keep, checked before anything runs. Every finding names the handler and the rule,
and all of them are told at once. Nothing here calls the users' code or a server.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kagzi.automations.handlers import PHASES, Consumer, Handler, Producer
from kagzi.sdk import payload
from kagzi.sdk.bodies import is_async
from kagzi.sdk.errors import PayloadError

if TYPE_CHECKING:
    from kagzi.automations.automation import Automation

# What each phase is called with, after `self`.
_TAKES = {
    "prepare": ("ctx", "state"),
    "mutate": ("ctx", "prepared"),
    "next": ("ctx", "prepared", "outcome"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a declaration has wrong, or probably did not mean."""

    level: Literal["error", "warning"]
    # The handler it is about; empty when it is about the automation.
    handler: str
    # The name of the rule.
    rule: str
    message: str

    @property
    def is_error(self) -> bool:
        """Whether the automation cannot run so."""
        return self.level == "error"

    def __str__(self) -> str:
        about = f"{self.handler}: " if self.handler else ""
        return f"{about}{self.message} (rule: {self.rule})"


def check(automation: Automation) -> list[Finding]:
    """Everything that is to be said about an automation."""
    return [*_whole(automation), *(finding for handler in automation.handlers for finding in _one(handler))]


def _whole(automation: Automation) -> Iterator[Finding]:
    handlers = automation.handlers
    if not handlers:
        yield _error("", "handlers", "it has no handlers: declare a producer or a consumer")
    for name, count in Counter(handler.name for handler in handlers).items():
        if count > 1:
            yield _error(name, "names", f"{count} handlers have this name: rename one, as with name='{name}2'")
    published = {topic for handler in handlers for topic in handler.publishes} | set(automation.accepts)
    subscribed = {topic for handler in handlers for topic in handler.subscribes}
    for handler in handlers:
        for topic in handler.subscribes:
            if topic not in published:
                yield _error(
                    handler.name,
                    "publisher",
                    f"it subscribes to {topic!r}, to which nobody publishes: correct the name, or say "
                    f"Automation({automation.name!r}, accepts=[{topic!r}]) if it is published from outside",
                )
        for topic in handler.publishes:
            if topic not in subscribed:
                yield Finding("warning", handler.name, "subscriber", f"nobody subscribes to {topic!r}")
    for topic in automation.accepts:
        if topic not in subscribed:
            yield Finding("warning", "", "subscriber", f"nobody subscribes to {topic!r}, which it accepts")


def _one(handler: Handler) -> Iterator[Finding]:
    if isinstance(handler, Producer):
        yield from _producer(handler)
    else:
        yield from _consumer(handler)
    try:
        payload.plan(handler.state)
    except PayloadError as error:
        yield _error(handler.name, "state", f"its state cannot be stored: {error}")


def _producer(handler: Producer) -> Iterator[Finding]:
    if not handler.publishes:
        yield _error(handler.name, "publishes", "a producer publishes something: say publishes=[...]")
    problem = handler.timing.problem()
    if problem:
        yield _error(handler.name, "schedule", problem)
    if not _takes(handler.function, 2):
        yield _error(handler.name, "signature", "a producer takes a context and its state: `def poll(ctx, state)`")
    if _yields(handler.function):
        yield _error(handler.name, "signature", "a producer returns its state and yields nothing: use ctx.publish(...)")


def _consumer(handler: Consumer) -> Iterator[Finding]:
    if not handler.subscribes:
        yield _error(handler.name, "subscribes", "a consumer subscribes to something: say subscribe=[...]")
    if not handler.has("prepare"):
        yield _error(handler.name, "prepare", "a consumer has a `prepare`, which says what it wants to do")
    if handler.publishes and not handler.has("next"):
        yield _error(handler.name, "next", "it declares what it publishes and has no `next`, where that is done")
    for phase in PHASES:
        function = handler.phase(phase)
        if function is None:
            continue
        names = _TAKES[phase]
        written = ", ".join(("self", *names))
        if not _takes(function, len(names) + (1 if inspect.isclass(handler.source) else 0)):
            yield _error(handler.name, "signature", f"`{phase}` is written `def {phase}({written})`")
        if _yields(function):
            yield _error(handler.name, "signature", f"`{phase}` returns what it has to say, and yields nothing")
        elif phase != "next" and not is_async(function):
            yield _error(handler.name, "async", f"`{phase}` is an `async def`, for it awaits its context")
    if inspect.isclass(handler.source) and not _takes(handler.source, 0):
        yield _error(handler.name, "signature", "its class is made without arguments: give an object of it instead")


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        # Written in C: nobody can tell.
        return True
    return True


def _yields(function: Callable[..., Any]) -> bool:
    plain = inspect.unwrap(getattr(function, "__func__", function))
    return inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain)


def _error(handler: str, rule: str, message: str) -> Finding:
    return Finding("error", handler, rule, message)
