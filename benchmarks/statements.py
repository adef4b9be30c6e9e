"""How many statements a database runs, by its own log. What is counted so is not timed: writing the log costs time."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg

from kagzi.embedded import Embedded

# What the log of the database says of every statement that it runs.
_STATEMENT = re.compile(rb"LOG:  (?:execute [^:]*|statement): (?!begin|commit|rollback)", re.IGNORECASE)


@dataclass(slots=True)
class Count:
    """How many there were, once counting is over."""

    statements: int = 0


@contextlib.asynccontextmanager
async def counted(database: Embedded) -> AsyncIterator[Count]:
    """Counts what everybody asks of the database meanwhile."""
    count = Count()
    connection = await asyncpg.connect(database.url)
    try:
        await _log(connection, "all")
        size = database.log.stat().st_size
        yield count
        with database.log.open("rb") as lines:
            lines.seek(size)
            count.statements = sum(1 for line in lines if _STATEMENT.search(line))
        await _log(connection, "none")
    finally:
        await connection.close()


async def _log(connection: asyncpg.Connection[asyncpg.Record], what: str) -> None:
    await connection.execute("alter system set log_parameter_max_length = 0")
    await connection.execute(f"alter system set log_statement = '{what}'")
    await connection.execute("select pg_reload_conf()")
    # Every backend hears of it between two statements.
    await asyncio.sleep(0.5)
