"""Erasing a namespace leaves nothing of it in any table, and touches no other."""

from __future__ import annotations

import re

from asyncpg.connection import Connection

from kagzi.store import erasure, namespaces
from tests.store import given

TABLES = """
select table_name from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
where table_schema = 'kagzi' and column_name = 'namespace' and t.table_type = 'BASE TABLE'
"""


async def test_every_table_with_namespaces_is_erased(connection: Connection) -> None:
    tables = {row["table_name"] for row in await connection.fetch(TABLES)}
    assert tables == set(re.findall(r"delete from kagzi\.(\w+)", erasure._erase.text))


async def test_a_namespace_goes_with_all_that_is_in_it_and_no_other_does(connection: Connection) -> None:
    await namespaces.create(connection, "doomed")
    for namespace in ("doomed", "default"):
        await connection.execute(
            "insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at)"
            " values ($1, $2, 'q', 't', 'PENDING', kagzi.now())",
            namespace,
            given.new_id(),
        )
    assert await erasure.erase(connection, "doomed")
    assert not await namespaces.exists(connection, "doomed")
    assert await connection.fetchval("select array_agg(namespace) from kagzi.workflow_runs") == ["default"]
    assert not await erasure.erase(connection, "doomed")
