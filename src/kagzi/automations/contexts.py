"""What handlers are given: one context for each phase, with what that phase may do. Anything else raises an error that
names the phase and the rule, and so does a context whose phase is over. What is published is kept back and committed
with the phase, or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Generator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec

from kagzi.automations import parameters
from kagzi.automations.events import LONGEST_TITLE, Event, Publications, checked_text, topics_of
from kagzi.automations.mutation import Mutation
from kagzi.automations.topics import Topics
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.inputs import Input

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun

P = ParamSpec("P")

MOST_PEEKED = 1_000

_RULES = {
    "peek": "only `prepare` looks at pending events",
    "get": "only `prepare` reads events",
    "publish": "only producers and `next` publish",
    "register_input": "only producers register inputs",
    "mutate": "only `mutate` changes the outside",
}


class WrongPhase(ConfigError):
    """A handler asked its context for what its phase may not do."""


class HandlerContext:
    """What every phase knows of its run."""

    phase: ClassVar[str]

    def __init__(self, run: HandlerRun) -> None:
        self._run = run
        self._over = False

    @property
    def automation(self) -> str:
        """The automation's name."""
        return self._run.handler.automation.name

    @property
    def handler(self) -> str:
        """The handler's name."""
        return self._run.handler.name

    @property
    def namespace(self) -> str:
        return self._run.host.namespace

    @property
    def run_id(self) -> str:
        return self._run.run_id

    @property
    def trigger(self) -> str:
        """Why the run was started: schedule, event, wake, manual, deploy, release or continuation."""
        return self._run.trigger

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs as `kagzi.automation.<name>.<handler>`, with the run's id."""
        return self._run.logger

    def now(self) -> datetime:
        """The time on the database's clock, which tests move."""
        return self._run.now()

    def close(self) -> None:
        """The phase is over."""
        self._over = True

    def _alive(self) -> HandlerRun:
        if self._over:
            raise WrongPhase(
                f"The {self.phase} phase of {self.handler!r} is over, and its context with it: await everything that "
                "uses it before the phase returns."
            )
        return self._run

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            rule = _RULES.get(name)
            if rule is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            handler = self._run.handler.name
            raise WrongPhase(f"ctx.{name} in the {self.phase} phase of {handler!r}: {rule}.")


class _Publishing(HandlerContext):
    """A phase that may publish."""

    def __init__(self, run: HandlerRun) -> None:
        super().__init__(run)
        self.publications = Publications()

    def _publish(self, topic: str | Iterable[str], id: str, payload: Any, input: Input | None) -> None:
        run = self._alive()
        topics = topics_of(topic, run.handler.publishes, "publishes to", self.handler)
        checked_text(id, "the id of an event", self.handler)
        encoded = None if payload is None else run.encode(payload, Any, "event")
        self.publications.publish(topics, id, encoded, input)


class ProducerContext(_Publishing):
    """What a producer may do: read the outside, register what it found there, and publish."""

    phase = "produce"

    def register_input(self, source: str, type: str, id: str, *, title: str = "") -> Input:
        """Says that something came from outside, so that what becomes of it can be found. Saying it again changes only
        its title.
        """
        self._alive()
        found = Input(
            checked_text(source, "the source of an input", self.handler),
            checked_text(type, "the type of an input", self.handler),
            checked_text(id, "the id of an input", self.handler),
        )
        checked_text(title, "the title of an input", self.handler, longest=LONGEST_TITLE, empty=True)
        self.publications.register(found, title)
        return found

    def publish(self, topic: str | Iterable[str], *, id: str, payload: Any = None, input: Input) -> None:
        """Publishes an event to one topic or several, when the run is committed. `id` is unique within a topic: an
        event that exists gets the new payload, and stays where it is.
        """
        if not isinstance(input, Input) or not self.publications.knows(input):
            raise ConfigError(
                f"Handler {self.handler!r} publishes {id!r} without saying what it came from: pass "
                "input=ctx.register_input(source, type, id)."
            )
        self._publish(topic, id, payload, input)


class PrepareContext(HandlerContext):
    """What `prepare` may do: read the outside and its topics."""

    phase = "prepare"

    def __init__(self, run: HandlerRun, topics: Topics) -> None:
        super().__init__(run)
        self._topics = topics

    async def peek(self, topic: str, limit: int = 100) -> list[Event]:
        """The oldest pending events of a topic, at most 1,000. Changes nothing."""
        self._alive()
        self._topic(topic)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_PEEKED:
            raise ConfigError(f"Handler {self.handler!r}: `limit` of peek must be 1 to {MOST_PEEKED}, not {limit!r}.")
        return await self._topics.peek(topic, limit)

    async def get(self, topic: str, ids: Sequence[str]) -> list[Event]:
        """Events of a topic by id, whatever their status, in the order of the ids. Those that do not exist are left
        out.
        """
        self._alive()
        self._topic(topic)
        asked = [ids] if isinstance(ids, str) else list(dict.fromkeys(ids))
        if len(asked) > MOST_PEEKED:
            raise ConfigError(f"Handler {self.handler!r}: get takes at most {MOST_PEEKED} ids, not {len(asked)}.")
        for one in asked:
            checked_text(one, "the id of an event", self.handler)
        return await self._topics.get(topic, asked) if asked else []

    def _topic(self, topic: str) -> None:
        topics_of(topic, self._run.handler.subscribes, "reads", self.handler)


class MutateContext(HandlerContext):
    """What `mutate` may do: ask for one change of the outside, as its last act."""

    phase = "mutate"

    def __init__(self, run: HandlerRun) -> None:
        super().__init__(run)
        self.asked: tuple[Mutation[..., Any], Payload] | None = None

    def mutate(self, tool: Mutation[P, Any], *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]:
        """Asks for a change of the outside. It is called once this phase has returned and the intent is on record;
        what it returns is in the outcome that `next` gets. To be awaited; a forgotten `await` loses nothing.
        """
        run = self._alive()
        if not isinstance(tool, Mutation):
            raise ConfigError(
                f"Handler {self.handler!r} mutates with {tool!r:.80}: put @mutation on the function and pass it with "
                "its arguments, as ctx.mutate(append_row, 'reports', row)."
            )
        if self.asked is not None:
            raise WrongPhase(
                f"A second ctx.mutate in the mutate phase of {self.handler!r} ({self.asked[0].name!r}, then "
                f"{tool.name!r}): a run changes the outside once. Publish an event in `next` for another consumer."
            )
        self.asked = (tool, run.encode_bytes(parameters.encode(tool.function, args, kwargs), "mutation"))
        return _Asked()


class _Asked:
    """What `await ctx.mutate(…)` waits for, which is nothing: the request is taken."""

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield


class NextContext(_Publishing):
    """What `next` may do: publish. What the reserved events came from is what these come from."""

    phase = "next"

    def __init__(self, run: HandlerRun, state: Any) -> None:
        super().__init__(run)
        # What `prepare` was given; returning another one from `next` stores that.
        self.state = state

    def publish(self, topic: str | Iterable[str], *, id: str, payload: Any = None) -> None:
        """Publishes an event to one topic or several, when the run is committed. `id` is unique within a topic: an
        event that exists gets the new payload, and stays where it is.
        """
        self._publish(topic, id, payload, None)
