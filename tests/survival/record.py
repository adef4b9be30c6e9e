"""What the database holds, asked for past the engine."""

from __future__ import annotations

from typing import Any

import asyncpg


async def rows(url: str, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query, over a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()
