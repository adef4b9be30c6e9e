"""Events as people see them: what was published, for whom, what became of it and what it came from. Reads alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import Event, InputKey
from kagzi.store import rows
from kagzi.store.peeks import DELIVERY_STATUS
from kagzi.store.queries import Queries

_sql = Queries("events.sql")
_list = _sql.bind(
    "list",
    columns=("topic", "event_id", "payload", "payload_encoding", "run_id", "created_at", "updated_at", "found"),
)
_deliveries = _sql.bind(
    "deliveries",
    columns=("topic", "event_id", "consumer", "status", "run_id", "attempts", "updated_at", "run_ids"),
)
_causes = _sql.bind("causes", columns=("topic", "event_id", "source", "type", "key"))

# What one page may hold of payloads.
_ROOM = 3 * 1024 * 1024

Key = tuple[str, str]


async def list_(connection: Connection, namespace: str, automation: str, **filters: Any) -> tuple[list[Event], bool]:
    """A page of events, newest first, and whether there are more. `filters` are the query's parameters."""
    found = await _list.fetch(connection, namespace=namespace, automation=automation, room=_ROOM, **filters)
    shown = await events_of(connection, namespace, automation, found)
    return shown, bool(found) and found[0]["found"] > len(found)


async def events_of(connection: Connection, namespace: str, automation: str, found: Sequence[Record]) -> list[Event]:
    """The events in these rows, with deliveries and inputs."""
    keys = [(row["topic"], row["event_id"]) for row in found]
    delivered: dict[Key, list[Record]] = defaultdict(list)
    for row in await deliveries(connection, namespace, automation, keys):
        delivered[row["topic"], row["event_id"]].append(row)
    caused: dict[Key, list[InputKey]] = defaultdict(list)
    given = {"topics": [topic for topic, _ in keys], "event_ids": [event_id for _, event_id in keys]}
    for row in await _causes.fetch(connection, namespace=namespace, automation=automation, **given):
        key = InputKey(source=row["source"], type=row["type"], id=row["key"])
        caused[row["topic"], row["event_id"]].append(key)
    return [_event(row, delivered[key], caused[key]) for row, key in zip(found, keys, strict=True)]


async def deliveries(connection: Connection, namespace: str, automation: str, keys: Sequence[Key]) -> list[Record]:
    """What became of these events for each consumer."""
    return await _deliveries.fetch(
        connection,
        namespace=namespace,
        automation=automation,
        topics=[topic for topic, _ in keys],
        event_ids=[event_id for _, event_id in keys],
    )


def _event(row: Record, delivered: Sequence[Record], inputs: Sequence[InputKey]) -> Event:
    return Event(
        topic=row["topic"],
        event_id=row["event_id"],
        payload=rows.payload(row["payload"], row["payload_encoding"]),
        run_id=rows.identity(row["run_id"]),
        inputs=inputs,
        deliveries=[
            Event.Delivery(
                consumer=one["consumer"],
                status=DELIVERY_STATUS[one["status"]],
                run_id=rows.identity(one["run_id"]),
                attempts=one["attempts"],
                updated_at=rows.timestamp(one["updated_at"]),
            )
            for one in delivered
        ],
        created_at=rows.timestamp(row["created_at"]),
        updated_at=rows.timestamp(row["updated_at"]),
    )
