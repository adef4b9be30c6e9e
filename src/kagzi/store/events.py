"""Events as people see them: what was published, for whom, what became of it and what it came from. Reads alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
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
_looked = _sql.bind(
    "looked",
    columns=("topic", "event_id", "payload", "payload_encoding", "run_id", "created_at", "updated_at", "wanted"),
)
_deliveries = _sql.bind(
    "deliveries",
    columns=("topic", "event_id", "consumer", "status", "run_id", "attempts", "updated_at", "run_ids"),
)
_causes = _sql.bind("causes", columns=("topic", "event_id", "source", "type", "key"))

# Inputs of an event that are shown, and where a page may not cost more than it shows.
_INPUTS = 100
FEW_INPUTS = 4
# What one page may hold of payloads.
_ROOM = 3 * 1024 * 1024

Key = tuple[str, str]
# When an event was first published, its topic and id: its place in the list.
Place = tuple[datetime, str, str]


async def list_(
    connection: Connection, namespace: str, automation: str, **filters: Any
) -> tuple[list[Event], Place | None]:
    """A page of events, newest first, and the last of them, unless none follows it. `filters` are the query's
    parameters.
    """
    found = await _list.fetch(connection, namespace=namespace, automation=automation, room=_ROOM, **filters)
    delivered = await deliveries(connection, namespace, automation, found)
    shown = await events_of(connection, namespace, automation, found, delivered)
    more = bool(found) and found[0]["found"] > len(found)
    return shown, (found[-1]["created_at"], found[-1]["topic"], found[-1]["event_id"]) if more else None


async def look(
    connection: Connection, namespace: str, automation: str, *, count: int, look_at: int, **filters: Any
) -> tuple[list[Event], Place | None]:
    """At most `count` events of the `look_at` newest, and the last one that was looked at, unless none follows it."""
    looked = await _looked.fetch(connection, namespace=namespace, automation=automation, look_at=look_at, **filters)
    wanted = [number for number, row in enumerate(looked) if row["wanted"]][:count]
    # A full page ends with its last event; what follows that one was not looked at, as far as the next page knows.
    end = wanted[-1] if len(wanted) == count else len(looked) - 1
    over = end + 1 == len(looked) < look_at
    place = None if over else (looked[end]["created_at"], looked[end]["topic"], looked[end]["event_id"])
    shown = [looked[number] for number in wanted]
    delivered = await deliveries(connection, namespace, automation, shown)
    return await events_of(connection, namespace, automation, shown, delivered, most_inputs=FEW_INPUTS), place


async def events_of(
    connection: Connection,
    namespace: str,
    automation: str,
    found: Sequence[Record],
    delivered: Sequence[Record],
    *,
    most_inputs: int = _INPUTS,
) -> list[Event]:
    """The events in these rows, with their deliveries and at most `most_inputs` inputs each."""
    keys = [(row["topic"], row["event_id"]) for row in found]
    became: dict[Key, list[Record]] = defaultdict(list)
    for row in delivered:
        became[row["topic"], row["event_id"]].append(row)
    caused: dict[Key, list[InputKey]] = defaultdict(list)
    given = {"topics": [topic for topic, _ in keys], "event_ids": [event_id for _, event_id in keys]}
    named = {"namespace": namespace, "automation": automation}
    for row in await _causes.fetch(connection, **named, **given, most=most_inputs):
        key = InputKey(source=row["source"], type=row["type"], id=row["key"])
        caused[row["topic"], row["event_id"]].append(key)
    return [_event(row, became[key], caused[key]) for row, key in zip(found, keys, strict=True)]


async def deliveries(connection: Connection, namespace: str, automation: str, found: Sequence[Record]) -> list[Record]:
    """What became of the events in these rows for each consumer."""
    return await _deliveries.fetch(
        connection,
        namespace=namespace,
        automation=automation,
        topics=[row["topic"] for row in found],
        event_ids=[row["event_id"] for row in found],
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
