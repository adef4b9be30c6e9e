"""Events and inputs as handlers see them, and the publications of one phase, which are kept back until the phase is
committed. The same event published twice is one publication: the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk.automation_info import DeliveryStatus
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.inputs import Input

LONGEST_NAME = 255
LONGEST_TITLE = 1_000
MOST_PUBLICATIONS = 10_000


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a topic, as a consumer sees it."""

    topic: str
    id: str
    payload: Any
    # Where it is for this consumer; None when it was never delivered to it.
    status: DeliveryStatus | None
    # How often it was given back after a failure.
    attempts: int
    published_at: datetime


class Publications:
    """What one phase publishes and registers."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, str], tuple[Payload | None, Input | None]] = {}
        self._titles: dict[Input, str] = {}

    def publish(self, topics: Sequence[str], event_id: str, payload: Payload | None, source: Input | None) -> None:
        """Takes an event for each of the topics."""
        event = (payload, source)
        for topic in topics:
            self._events[topic, event_id] = event
        if len(self._events) > MOST_PUBLICATIONS:
            raise ConfigError(
                f"One run publishes at most {MOST_PUBLICATIONS} events: publish what is left in the next run."
            )

    def register(self, source: Input, title: str) -> None:
        """Takes an input; the last title counts."""
        self._titles[source] = title
        if len(self._titles) > MOST_PUBLICATIONS:
            raise ConfigError(f"One run registers at most {MOST_PUBLICATIONS} inputs: leave the rest to the next run.")

    def knows(self, source: Input) -> bool:
        """Whether the input was registered in this phase."""
        return source in self._titles

    def inputs(self) -> list[pb.InputRegistration]:
        """The inputs as they travel."""
        return [pb.InputRegistration(key=source.key(), title=title) for source, title in self._titles.items()]

    def events(self) -> list[pb.EventPublication]:
        """The events as they travel."""
        made: dict[int, pb.EventPublication] = {}
        for (topic, event_id), event in self._events.items():
            # What one call published to several topics travels once.
            publication = made.get(id(event))
            if publication is None:
                payload, source = event
                key = None if source is None else source.key()
                publication = made[id(event)] = pb.EventPublication(event_id=event_id, payload=payload, input=key)
            publication.topics.append(topic)
        return list(made.values())


def event_of(given: pb.HandlerEvent, payload: Any) -> Event:
    """An event of the wire with its decoded payload."""
    status = pb.DeliveryStatus.Name(given.status).removeprefix("DELIVERY_")
    return Event(
        topic=given.topic,
        id=given.event_id,
        payload=payload,
        status=DeliveryStatus(status) if given.status else None,
        attempts=given.attempts,
        published_at=given.created_at.ToDatetime(UTC),
    )


def topics_of(given: str | Iterable[str], declared: Iterable[str], verb: str, handler: str) -> list[str]:
    """The topics that a call names, one or several. ConfigError unless the handler declares each of them."""
    asked = [given] if isinstance(given, str) else list(given)
    allowed = list(declared)
    if not asked:
        raise ConfigError(f"Handler {handler!r} {verb} no topic: name one of {_listed(allowed)}.")
    for topic in asked:
        if topic not in allowed:
            raise ConfigError(
                f"Handler {handler!r} {verb} {topic!r}, which it does not declare: it has {_listed(allowed)}. Add the "
                "topic to its decorator."
            )
    return list(dict.fromkeys(asked))


def checked_text(text: Any, what: str, handler: str, *, longest: int = LONGEST_NAME, empty: bool = False) -> str:
    """A name or title that can be stored. ConfigError that names the handler and what is wrong otherwise."""
    if not isinstance(text, str) or not (text or empty) or "\0" in text or len(text.encode(errors="replace")) > longest:
        size = f"{'at most' if empty else '1 to'} {longest} bytes"
        raise ConfigError(f"Handler {handler!r}: {what} must be text of {size} without NUL, and not {text!r:.80}.")
    return text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
