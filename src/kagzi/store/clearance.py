"""What automations leave behind, once it was kept long enough: events with their deliveries and causes, inputs, and the
names of handlers that are gone. A look finds what nobody needs without a lock; the removal holds the automation and
judges again, so that any number of servers may do it at once. It never removes an event that a consumer has still to
take, or has taken and not finished with, nor what is left of such an event's past. Mutations go with their runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import standings
from kagzi.store.queries import Queries

_sql = Queries("clearance.sql")
_outlived = _sql.bind("outlived", columns=("namespace", "name"))
_old_events = _sql.bind("old_events", columns=("topic", "event_id", "created_at", "done"))
_remove_events = _sql.bind("remove_events")
_old_inputs = _sql.bind("old_inputs", columns=("input_id", "created_at", "source", "type", "key", "done"))
_remove_inputs = _sql.bind("remove_inputs")
_forget_handlers = _sql.bind("forget_handlers")

# What a list is walked along: when something came, and its name.
Place = tuple[Any, ...]
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Kept:
    """An automation, and for how long things are kept where its namespace says nothing; 0 is for ever."""

    namespace: str
    automation: str
    keep: timedelta


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a look found: the keys of what nobody needs, and where the next look begins; None at the end."""

    done: Sequence[Place]
    place: Place | None


Look = Callable[[Connection, Kept, Place | None, int], Awaitable[Stretch]]
# Answers how many it deleted; None when somebody else has the automation.
Remove = Callable[[Connection, Kept, Sequence[Place]], Awaitable[int | None]]


async def outlived(connection: Connection, keep: timedelta) -> list[Kept]:
    """Automations in which something may be removed."""
    found = await _outlived.fetch(connection, keep_ms=keep // timedelta(milliseconds=1))
    return [Kept(row["namespace"], row["name"], keep) for row in found]


async def old_events(connection: Connection, kept: Kept, place: Place | None, look_at: int) -> Stretch:
    """The next old events behind a place; each look reads `look_at` of them at most."""
    at, topic, event_id = place or (_BEGINNING, "", "")
    found = await _old_events.fetch(
        connection, **_given(kept), after_at=at, after_topic=topic, after_id=event_id, look_at=look_at
    )
    return _stretch(found, look_at, key=("topic", "event_id"), place=("created_at", "topic", "event_id"))


async def remove_events(connection: Connection, kept: Kept, keys: Sequence[Place]) -> int | None:
    """Deletes those of these events that nobody needs, with deliveries and causes."""
    if not await _take(connection, kept):
        return None
    topics, event_ids = zip(*keys, strict=True)
    return await _remove_events.execute(connection, **_given(kept), topics=topics, event_ids=event_ids)


async def old_inputs(connection: Connection, kept: Kept, place: Place | None, look_at: int) -> Stretch:
    """The next old inputs behind a place; each look reads `look_at` of them at most."""
    at, source, type_, key = place or (_BEGINNING, "", "", "")
    found = await _old_inputs.fetch(
        connection,
        **_given(kept),
        after_at=at,
        after_source=source,
        after_type=type_,
        after_key=key,
        look_at=look_at,
    )
    return _stretch(found, look_at, key=("input_id",), place=("created_at", "source", "type", "key"))


async def remove_inputs(connection: Connection, kept: Kept, keys: Sequence[Place]) -> int | None:
    """Deletes those of these inputs of which no event is left."""
    if not await _take(connection, kept):
        return None
    return await _remove_inputs.execute(connection, **_given(kept), input_ids=[input_id for (input_id,) in keys])


async def forget_handlers(connection: Connection, kept: Kept) -> int | None:
    """Deletes the names of handlers that are gone and that nothing refers to."""
    if not await _take(connection, kept):
        return None
    return await _forget_handlers.execute(connection, **_given(kept))


async def _take(connection: Connection, kept: Kept) -> bool:
    return bool(await standings.take(connection, kept.namespace, [kept.automation]))


def _given(kept: Kept) -> dict[str, Any]:
    keep_ms = kept.keep // timedelta(milliseconds=1)
    return {"namespace": kept.namespace, "automation": kept.automation, "keep_ms": keep_ms}


def _stretch(found: Sequence[Record], look_at: int, *, key: Sequence[str], place: Sequence[str]) -> Stretch:
    done = [tuple(row[name] for name in key) for row in found if row["done"]]
    return Stretch(done, tuple(found[-1][name] for name in place) if len(found) == look_at else None)


# Events first: with the last of them an input has nothing left.
SHELVES: Sequence[tuple[Look, Remove]] = ((old_events, remove_events), (old_inputs, remove_inputs))
