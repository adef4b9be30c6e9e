"""What the timer of automations looks at: who is due by time alone, and when the next one is. It reads across
namespaces without a lock, then starts one namespace at a time under the locks of the automations, so that any number of
servers may do it at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from asyncpg.connection import Connection

from kagzi.store import choice, standings
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("alarms.sql")
_due = _sql.bind("due", columns=("namespace", "automation"))
_stranded = _sql.bind("stranded", columns=("namespace", "automation"))
_next_due = _sql.bind("next_due", columns=("now", "at"))


async def due(connection: Connection, batch: int, *, stranded: bool) -> dict[str, list[str]]:
    """Automations with a handler that may start, by namespace; with `stranded` also what nobody has chosen."""
    found = await _due.fetch(connection, batch=batch)
    if stranded:
        found = [*found, *await _stranded.fetch(connection, batch=batch)]
    grouped: defaultdict[str, set[str]] = defaultdict(set)
    for row in found:
        grouped[row["namespace"]].add(row["automation"])
    return {namespace: sorted(names) for namespace, names in grouped.items()}


async def start(connection: Connection, namespace: str, names: Sequence[str]) -> tuple[int, Outcome]:
    """Starts what is next in those of these automations that nobody holds; answers how many runs that are."""
    outcome = Outcome()
    held = await standings.take(connection, namespace, names)
    return await choice.begin(connection, namespace, held, outcome), outcome


async def next_due(connection: Connection) -> tuple[datetime, datetime | None]:
    """The database's time, and when a handler is due next."""
    row = await _next_due.first(connection)
    assert row is not None
    return row["now"], row["at"]
