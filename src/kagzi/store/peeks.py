"""What a consumer's `prepare` looks at: pending events of the topics it subscribes to, and events by id. Only before
its `prepare` was committed, under the fence of its run; changes nothing, however often it is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import DeliveryStatus, GotEvents, HandlerEvent, PeekedEvents, PeekedTopic
from kagzi.store import errors, rows
from kagzi.store.operation import Operation
from kagzi.store.queries import Queries
from kagzi.store.standings import Ground, Standing

_sql = Queries("peeks.sql")
# An event as it is seen; `found` counts what was there, one more than was asked for at most.
PEEKED = ("event_id", "attempts", "arrival", "created_at", "payload", "payload_encoding", "found")
_peek = _sql.bind("peek", columns=("number", *PEEKED))
_GOT = ("number", "place", "event_id", "status", "attempts", "created_at", "payload_encoding", "payload", "cut")
_get = _sql.bind("get", columns=_GOT)

DELIVERY_STATUS = {name.removeprefix("DELIVERY_"): value for name, value in DeliveryStatus.items() if value}
DEFAULT_LIMIT = 100
# What one answer may hold, so that it fits into a frame.
_ROOM = 900_000
# What travels of each topic with a run, unasked: enough for who takes one at a time, little for who wants more anyway.
GLANCE = 3
GLANCE_ROOM = 64 * 1024
GLANCED_TOPICS = 8


async def peek(connection: Connection, namespace: str, group: Sequence[Operation], ground: Ground) -> None:
    """Answers the oldest pending events of a topic."""
    asked = _permitted(group, await ground.of(group))
    limits = [operation.body.limit or DEFAULT_LIMIT for operation, _ in asked]
    found = await _peek.fetch(
        connection,
        namespace=namespace,
        automations=[standing.automation for _, standing in asked],
        consumers=[standing.handler for _, standing in asked],
        topics=[operation.body.topic for operation, _ in asked],
        limits=limits,
        after=[int(operation.body.cursor or 0) for operation, _ in asked],
        room=_ROOM,
    )
    answers = {number: list(rows) for number, rows in groupby(found, key=lambda row: row["number"])}
    for number, (operation, _) in enumerate(asked, 1):
        events, cursor = _page(answers.get(number, []), operation.body.topic)
        operation.answer = PeekedEvents(events=events, next_cursor=cursor)


def _page(shown: Sequence[Record], topic: str) -> tuple[list[HandlerEvent], str]:
    """The events in these rows, and where to go on; nowhere when nothing more is pending."""
    more = bool(shown) and shown[0]["found"] > len(shown)
    return [_event(row, topic, "PENDING") for row in shown], str(shown[-1]["arrival"]) if more else ""


async def glance(
    connection: Connection, namespace: str, consumers: Sequence[tuple[str, str, Sequence[str]]]
) -> dict[tuple[str, str], list[PeekedTopic]]:
    """The first pending events of each topic, for (automation, consumer, topics): few a `prepare` needs to see more."""
    asked = [(automation, name, topic) for automation, name, topics in consumers for topic in topics[:GLANCED_TOPICS]]
    if not asked:
        return {}
    found = await _peek.fetch(
        connection,
        namespace=namespace,
        automations=[automation for automation, _, _ in asked],
        consumers=[name for _, name, _ in asked],
        topics=[topic for _, _, topic in asked],
        limits=[GLANCE] * len(asked),
        after=[0] * len(asked),
        room=GLANCE_ROOM,
    )
    answers = {number: list(rows) for number, rows in groupby(found, key=lambda row: row["number"])}
    seen: dict[tuple[str, str], list[PeekedTopic]] = defaultdict(list)
    for number, (automation, name, topic) in enumerate(asked, 1):
        seen[automation, name].append(peeked(topic, answers.get(number, [])))
    return seen


def peeked(topic: str, shown: Sequence[Record]) -> PeekedTopic:
    """What these rows show of a topic."""
    events, cursor = _page(shown, topic)
    return PeekedTopic(topic=topic, events=events, next_cursor=cursor)


async def get(connection: Connection, namespace: str, group: Sequence[Operation], ground: Ground) -> None:
    """Answers events by id, whatever became of them."""
    asked = _permitted(group, await ground.of(group))
    wanted = [
        (number, standing, operation.body.topic, event_id)
        for number, (operation, standing) in enumerate(asked)
        for event_id in dict.fromkeys(operation.body.event_ids)
    ]
    found = await _get.fetch(
        connection,
        namespace=namespace,
        numbers=[number for number, _, _, _ in wanted],
        automations=[standing.automation for _, standing, _, _ in wanted],
        consumers=[standing.handler for _, standing, _, _ in wanted],
        topics=[topic for _, _, topic, _ in wanted],
        event_ids=[event_id for _, _, _, event_id in wanted],
        room=_ROOM,
    )
    answers = {number: list(rows) for number, rows in groupby(found, key=lambda row: row["number"])}
    for number, (operation, _) in enumerate(asked):
        there = answers.get(number, [])
        known = {row["event_id"] for row in there}
        operation.answer = GotEvents(
            events=[_event(row, operation.body.topic, row["status"]) for row in there if not row["cut"]],
            missing=[event_id for event_id in dict.fromkeys(operation.body.event_ids) if event_id not in known],
            remaining=[row["event_id"] for row in there if row["cut"]],
        )


def _permitted(group: Sequence[Operation], standings: dict[str, Standing]) -> list[tuple[Operation, Standing]]:
    """Those that may look; the others are refused by the rule they break."""
    asked = []
    for operation in group:
        standing = standings[operation.run_id]
        topic = operation.body.topic
        name = f"{standing.automation}.{standing.handler}"
        if standing.kind != "CONSUMER" or standing.prepared:
            message = f"{name} may look at events only in `prepare`, before that is committed"
            operation.answer = errors.precondition(message, operation.run_id).detail
        elif topic not in standing.subscribes:
            message = f"{name} does not subscribe to the topic {topic!r}: add it to `subscribe`"
            operation.answer = errors.precondition(message, topic, "topic").detail
        else:
            asked.append((operation, standing))
    return asked


def _event(row: Any, topic: str, status: str | None) -> HandlerEvent:
    event = HandlerEvent(
        topic=topic,
        event_id=row["event_id"],
        payload=rows.payload(row["payload"], row["payload_encoding"]),
        attempts=row["attempts"] or 0,
        created_at=rows.timestamp(row["created_at"]),
    )
    if status:
        event.status = DELIVERY_STATUS[status]
    return event
