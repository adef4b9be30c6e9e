"""Runs that were started by SQL, inside somebody else's transaction, and that no server has counted yet. A start leaves
a row here, so that it exists if and only if the run does; a server takes the row away and counts. Nothing is decided by
these rows: without a server they only wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asyncpg.connection import Connection

from kagzi.store.queries import Queries

_sql = Queries("outside.sql")
_namespaces = _sql.bind("namespaces", columns=("namespace",))
_take = _sql.bind("take", columns=("workflow_type", "transaction_id"))
_committed = _sql.bind("committed", columns=("committed",))


@dataclass(frozen=True, slots=True)
class Taken:
    """Starts that were taken away, if the transaction commits."""

    namespace: str
    transaction_id: str = ""
    types: list[str] = field(default_factory=list)


async def namespaces(connection: Connection, *, most: int) -> list[str]:
    """Namespaces in which such runs were started."""
    return [row["namespace"] for row in await _namespaces.fetch(connection, most=most)]


async def take(connection: Connection, *, namespace: str, most: int) -> Taken:
    """Starts that nobody else has taken; who gets them counts them."""
    rows = await _take.fetch(connection, namespace=namespace, most=most)
    if not rows:
        return Taken(namespace)
    return Taken(namespace, rows[0]["transaction_id"], [row["workflow_type"] for row in rows])


async def committed(connection: Connection, taken: Taken) -> bool | None:
    """Whether they were taken away; None as long as that is not decided."""
    [row] = await _committed.fetch(connection, transaction_id=taken.transaction_id)
    decided: bool | None = row["committed"]
    return decided
