"""The schema as it stands in a database after all migrations."""

from __future__ import annotations

import asyncpg


async def test_no_foreign_key_can_null_a_namespace(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        # ON DELETE SET NULL over a key that begins with the namespace would null that too.
        nulling = await connection.fetch(
            "select conrelid::regclass::text, conname from pg_constraint where contype = 'f' and confdeltype = 'n'"
        )
        nullable = await connection.fetch(
            "select table_name from information_schema.columns "
            "where table_schema = 'kagzi' and column_name = 'namespace' and is_nullable = 'YES'"
        )
    finally:
        await connection.close()
    assert (nulling, nullable) == ([], [])
