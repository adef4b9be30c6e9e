"""Counts of several servers made one, for minutes and hours that are over: a chart then reads as many rows with ten
servers as with one. What a chart shows stays the same, and merging again changes nothing. It never touches the
stretches that servers still write to.
"""

from __future__ import annotations

from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.store.queries import Queries

_sql = Queries("merges.sql")
_scattered = _sql.bind("scattered", columns=("namespace", "span"))
_merge = _sql.bind("merge")

# Whose rows the merged ones are: no server has it.
TOGETHER = "00000000-0000-0000-0000-000000000000"
# A server writes to a minute for some seconds after its end by its own clock, and clocks differ.
SETTLED = timedelta(minutes=5)
# How many minutes, and how many hours, are looked back over.
STRETCHES = 90
_MOST = 100


async def scattered(connection: Connection) -> list[tuple[str, int]]:
    """Namespaces, at most a hundred, with something to merge: in rows of a minute, or of an hour."""
    found = await _scattered.fetch(connection, stretches=STRETCHES, settled=SETTLED, most=_MOST)
    return [(row["namespace"], row["span"]) for row in found]


async def merge(connection: Connection, namespace: str, span: int, stretches: int = STRETCHES) -> int:
    """Merges the rows of a minute, or of an hour, of one namespace; answers how many rows came of it."""
    return await _merge.execute(
        connection, namespace=namespace, span=span, stretches=stretches, settled=SETTLED, together=TOGETHER
    )
