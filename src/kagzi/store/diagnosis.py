"""What a doctor looks at in a database: settings, clocks, dead rows, open transactions, and work that stands still.
Reads alone, over all namespaces, on a connection of its own that gives up on what takes too long. It judges nothing.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

import asyncpg
from asyncpg.connection import Connection

from kagzi.store import notices
from kagzi.store.queries import Queries

_sql = Queries("diagnosis.sql")
_durability = _sql.bind("durability", columns=("name", "setting"))
_clock = _sql.bind("clock", columns=("engine", "database", "pid", "version", "number"))
_dead_rows = _sql.bind("dead_rows", columns=("name", "live", "dead", "vacuumed_at"))
_long_transactions = _sql.bind("long_transactions", columns=("pid", "program", "since"))
_overdue = _sql.bind("overdue", columns=("kind", "namespace", "subject", "since"))
_orphans = _sql.bind("orphans", columns=("namespace", "automation", "count", "subject"))
_long_histories = _sql.bind("long_histories", columns=("namespace", "subject", "workflow_type", "steps"))

# One look may take so long, and is given up then; a doctor must not be a burden.
_LOOK_SECS = 15.0
# Long enough for a busy machine; only where nothing is heard is all of it waited for.
_NOTICE_SECS = 5.0


@dataclass(frozen=True, slots=True)
class Clock:
    """The times and names of a database. `behind_pooler`: another process answers than the one that was greeted."""

    engine: datetime
    database: datetime
    version: str
    number: int
    behind_pooler: bool


@dataclass(frozen=True, slots=True)
class DeadRows:
    """A table with more dead rows than live ones."""

    table: str
    live: int
    dead: int
    vacuumed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """Something that stands still: which, whose, and since when."""

    namespace: str
    subject: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Orphans:
    """Events of an automation that are reserved for a run which has ended."""

    namespace: str
    automation: str
    count: int
    run_id: str


@dataclass(frozen=True, slots=True)
class LongHistory:
    """A live run with many steps on record."""

    namespace: str
    run_id: str
    workflow_type: str
    steps: int


async def connect(url: str) -> Connection:
    """A connection for a doctor, with no more settings than a pooler lets through."""
    return await asyncpg.connect(
        url,
        timeout=10,
        command_timeout=_LOOK_SECS,
        statement_cache_size=0,
        server_settings={"application_name": "kagzi-doctor"},
    )


async def durability(connection: Connection) -> dict[str, str]:
    """Settings by name."""
    return {row["name"]: row["setting"] for row in await _durability.fetch(connection)}


async def clock(connection: Connection) -> Clock:
    """What time it is there, and who answers."""
    [row] = await _clock.fetch(connection)
    return Clock(
        engine=row["engine"],
        database=row["database"],
        version=row["version"],
        number=row["number"],
        behind_pooler=row["pid"] != connection.get_server_pid(),
    )


async def dead_rows(connection: Connection, most: int) -> list[DeadRows]:
    """Tables with more than `most` dead rows, and more of them than live ones."""
    found = await _dead_rows.fetch(connection, most=most)
    return [DeadRows(row["name"], row["live"], row["dead"], row["vacuumed_at"]) for row in found]


async def long_transactions(connection: Connection, tolerance: timedelta) -> list[Standing]:
    """Open transactions, by process; the namespace is the program's name."""
    found = await _long_transactions.fetch(connection, tolerance=tolerance)
    return [Standing(row["program"], str(row["pid"]), row["since"]) for row in found]


async def overdue(connection: Connection, tolerance: timedelta) -> tuple[list[Standing], list[Standing]]:
    """Due runs that nobody took, and runs whose lease ended and nobody took over; at most 100 of each."""
    found = await _overdue.fetch(connection, tolerance=tolerance)
    both = {"due": list[Standing](), "lease": list[Standing]()}
    for row in found:
        both[row["kind"]].append(Standing(row["namespace"], row["subject"], row["since"]))
    return both["due"], both["lease"]


async def orphans(connection: Connection, tolerance: timedelta) -> list[Orphans]:
    """Reservations of runs that have ended, by automation."""
    found = await _orphans.fetch(connection, tolerance=tolerance)
    return [Orphans(row["namespace"], row["automation"], row["count"], row["subject"]) for row in found]


async def long_histories(connection: Connection, most: int) -> list[LongHistory]:
    """Live runs with more than `most` steps."""
    found = await _long_histories.fetch(connection, most=most)
    return [LongHistory(row["namespace"], row["subject"], row["workflow_type"], row["steps"]) for row in found]


async def hears(url: str, listen_url: str) -> bool:
    """Whether what is sent by one way is heard by the other, as servers hear of each other."""
    heard = asyncio.Event()
    # No server knows a notice of this kind.
    mark = f"?{uuid.uuid4().hex}"
    listener = await notices.listen(listen_url, lambda _pid, text: heard.set() if text == mark else None, lambda: None)
    try:
        sender = await connect(url)
        try:
            await notices.send(sender, [mark])
        finally:
            await sender.close(timeout=5)
        await asyncio.wait_for(heard.wait(), _NOTICE_SECS)
    except TimeoutError:
        return False
    finally:
        listener.terminate()
    return True
