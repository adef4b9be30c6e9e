"""Publishing: inputs, events and their deliveries, from a handler run or from outside. An event is known by automation,
topic and id; published again its payload is replaced and nothing is revived. Whoever calls holds the automations, and
chooses what runs next afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import EventPublication, InputKey, InputRegistration
from kagzi.store.queries import Queries

_sql = Queries("publications.sql")
_register = _sql.bind("register")
_publish = _sql.bind("publish", columns=("automation", "created", "updated"))


@dataclass(frozen=True, slots=True)
class Publication:
    """What one run, or one call from outside, publishes into its automation."""

    automation: str
    inputs: Sequence[InputRegistration]
    events: Sequence[EventPublication]
    # The run that publishes; None for somebody outside.
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many events, counted in each topic, were new, and how many were published before."""

    created: int = 0
    updated: int = 0


def input_id(key: InputKey) -> str:
    """The id of an input, made of what names it: registering it twice needs no look."""
    parts = f"{key.source}\x1f{key.type}\x1f{key.id}"
    return str(UUID(bytes=hashlib.sha256(parts.encode()).digest()[:16]))


async def publish(connection: Connection, namespace: str, given: Sequence[Publication]) -> dict[str, Counts]:
    """Publishes for automations that the caller has locked; each at most once in `given`."""
    await _register_all(connection, namespace, given)
    events = [event for one in given for event in _events(one)]
    if not events:
        return {}
    found = await _publish.fetch(
        connection,
        namespace=namespace,
        automations=[one.automation for one, _, _ in events],
        topics=[topic for _, topic, _ in events],
        event_ids=[event.event_id for _, _, event in events],
        payloads=[event.payload.data if event.HasField("payload") else None for _, _, event in events],
        encodings=[event.payload.encoding or None for _, _, event in events],
        run_ids=[one.run_id for one, _, _ in events],
        input_ids=[input_id(event.input) if event.HasField("input") else None for _, _, event in events],
    )
    return {row["automation"]: Counts(row["created"], row["updated"]) for row in found}


async def _register_all(connection: Connection, namespace: str, given: Sequence[Publication]) -> None:
    # Of several for one input the last title stays.
    inputs = {
        (one.automation, input_id(registration.key)): (one, registration)
        for one in given
        for registration in one.inputs
    }
    if not inputs:
        return
    await _register.execute(
        connection,
        namespace=namespace,
        automations=[automation for automation, _ in inputs],
        input_ids=[found for _, found in inputs],
        sources=[registration.key.source for _, registration in inputs.values()],
        types=[registration.key.type for _, registration in inputs.values()],
        keys=[registration.key.id for _, registration in inputs.values()],
        titles=[registration.title for _, registration in inputs.values()],
        run_ids=[one.run_id for one, _ in inputs.values()],
    )


def _events(given: Publication) -> Iterable[tuple[Publication, str, EventPublication]]:
    """Every event in every topic once, where it was published first with what was published last."""
    last: dict[tuple[str, str], EventPublication] = {}
    for event in given.events:
        for topic in event.topics:
            last[topic, event.event_id] = event
    return [(given, topic, event) for (topic, _), event in last.items()]
