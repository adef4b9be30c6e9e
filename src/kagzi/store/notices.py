"""Notices between servers: NOTIFY on one channel. A notice is one letter of kind and a short hash of what
it is about, never a user's text. It is an optimisation: whoever waits for one looks by itself too, a little
later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import asyncpg
from asyncpg.connection import Connection

from kagzi.store.queries import Queries

CHANNEL = "kagzi_work"

_sql = Queries("notices.sql")
_send = _sql.bind("send", columns=("sent",))
_ping = _sql.bind("ping", columns=("alive",))


class Kind(StrEnum):
    """What a notice is about."""

    # Something in a queue is, or will be, due.
    WORK = "w"
    # A run reached its end.
    ENDED = "e"
    # Something arrived for a run that a worker holds.
    TOLD = "t"
    # A time to act on came nearer, as when a schedule changed.
    CLOCK = "c"


def key_hash(*parts: str) -> str:
    """What a notice is about, as twelve letters. PostgreSQL's own sha256 gives the same for the parts
    joined by chr(31), which no name can hold, so that SQL functions can send notices too.
    """
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:12]


async def listen(url: str, heard: Callable[[int, str], None], lost: Callable[[], None]) -> Connection:
    """A connection of its own that calls `heard` with the sender and the text of every notice, and `lost`
    at its end. What it sends is not waited for on disk: nothing durable is written through it.
    """
    connection = await asyncpg.connect(
        url,
        timeout=5,
        command_timeout=5,
        server_settings={
            "application_name": "kagzi-notifier",
            "search_path": "pg_catalog, pg_temp",
            "synchronous_commit": "off",
        },
    )

    def _heard(_connection: Any, pid: int, _channel: str, payload: object) -> None:
        heard(pid, str(payload))

    try:
        connection.add_termination_listener(lambda _connection: lost())
        await connection.add_listener(CHANNEL, _heard)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def send(connection: Connection, payloads: Sequence[str]) -> None:
    """Sends notices in one statement."""
    await _send.fetch(connection, payloads=payloads)


async def ping(connection: Connection) -> None:
    """Fails when the connection is dead."""
    await _ping.first(connection)
