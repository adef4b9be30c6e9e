"""Runs that were started by SQL, inside somebody else's transaction, and that no server has counted yet. A start leaves
a row here, so that it exists if and only if the run does; a server takes the row away and counts. Nothing is decided by
these rows: without a server they only wait.
"""

from __future__ import annotations

from asyncpg.connection import Connection

from kagzi.store.queries import Queries

_sql = Queries("outside.sql")
_namespaces = _sql.bind("namespaces", columns=("namespace",))
_take = _sql.bind("take", columns=("workflow_type",))


async def namespaces(connection: Connection, *, most: int) -> list[str]:
    """Namespaces in which such runs were started."""
    return [row["namespace"] for row in await _namespaces.fetch(connection, most=most)]


async def take(connection: Connection, *, namespace: str, most: int) -> list[str]:
    """The types of runs that nobody else has taken; who gets them counts them."""
    return [row["workflow_type"] for row in await _take.fetch(connection, namespace=namespace, most=most)]
