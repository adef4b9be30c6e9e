"""Erasing a namespace with everything in it. For namespaces that a program made for itself and whose servers and
workers have ended: it asks nobody and leaves nothing. No call of the server leads here.
"""

from __future__ import annotations

from asyncpg.connection import Connection

from kagzi.store.queries import Queries

_sql = Queries("erasure.sql")
_erase = _sql.bind("erase")


async def erase(connection: Connection, namespace: str) -> bool:
    """Deletes every row of the namespace; answers whether there was such a namespace."""
    return await _erase.execute(connection, namespace=namespace) > 0
