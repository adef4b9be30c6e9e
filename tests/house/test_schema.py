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


async def test_every_key_holds_the_namespace(database_url: str) -> None:
    """A distributed database keeps keys on one node only where they hold what the rows are spread by."""
    connection = await asyncpg.connect(database_url)
    try:
        unique = await connection.fetch(
            "select i.indexrelid::regclass::text as name from pg_index i join pg_class t on t.oid = i.indrelid"
            " where t.relnamespace = 'kagzi'::regnamespace and t.relname <> 'migrations' and i.indisunique"
            " and not exists (select 1 from pg_attribute a where a.attrelid = t.oid and a.attname = 'namespace'"
            " and a.attnum = any (i.indkey))"
        )
        foreign = await connection.fetch(
            "select conname from pg_constraint c where contype = 'f' and connamespace = 'kagzi'::regnamespace"
            " and not exists (select 1 from pg_attribute a where a.attrelid = c.conrelid and a.attname = 'namespace'"
            " and a.attnum = any (c.conkey))"
        )
        without = await connection.fetch(
            "select t.relname from pg_class t where t.relkind = 'r' and t.relnamespace = 'kagzi'::regnamespace"
            " and t.relname <> 'migrations' and not exists (select 1 from pg_attribute a"
            " where a.attrelid = t.oid and a.attname = 'namespace')"
        )
        small = await connection.fetch(
            "select table_name, column_name from information_schema.columns"
            " where table_schema = 'kagzi' and is_identity = 'YES' and data_type <> 'bigint'"
        )
    finally:
        await connection.close()
    assert (unique, foreign, without, small) == ([], [], [], [])
