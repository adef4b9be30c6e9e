"""What a database is like to work with: how durable its commits are, and how long one takes. Nothing is stored."""

from __future__ import annotations

import time

from asyncpg.connection import Connection

from kagzi.store.queries import Queries

_sql = Queries("probes.sql")
_commit = _sql.bind("commit", columns=("position",))
_settings = _sql.bind("settings", columns=("version", "fsync", "synchronous_commit", "full_page_writes"))


async def commit_times(connection: Connection, count: int) -> list[float]:
    """How many milliseconds a commit takes that carries next to nothing, so often."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await _commit.first(connection)
        times.append((time.perf_counter() - began) * 1_000)
    return times


async def settings(connection: Connection) -> dict[str, str]:
    """The version, and what decides whether a commit outlives a crash."""
    found = await _settings.first(connection)
    assert found is not None
    return {str(name): str(value) for name, value in found.items()}
