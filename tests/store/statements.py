"""Every statement of the store by name, to be run by itself."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

import kagzi.store
from kagzi.store.queries import Query, bound

for found in pkgutil.iter_modules(kagzi.store.__path__):
    importlib.import_module(f"kagzi.store.{found.name}")
STATEMENTS: dict[tuple[str, str], Query] = {(query.source.removesuffix(".sql"), query.name): query for query in bound}


async def run(connection: Connection, called: str, /, **values: Any) -> list[Record]:
    """The rows that a statement answers, as "endings.complete"."""
    source, _, name = called.partition(".")
    return await STATEMENTS[source, name].fetch(connection, namespace="default", **values)


async def look(connection: Connection, table: str, key: str, value: str) -> Record:
    """The one row with this key."""
    row = await connection.fetchrow(f"select * from kagzi.{table} where {key} = $1", value)  # noqa: S608
    assert row is not None
    return row
