"""Migrations happen while servers work: nobody fails, nobody waits for long, any number may apply them at once, what
was cut off is completed by the next, and whoever comes late has the schema of whoever was there from the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import asyncpg
import pytest

from kagzi.store import batch, migrate
from kagzi.store.database import Database
from kagzi.store.migrate import Migration
from kagzi.store.operation import Slot
from tests.database import Databases
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run, new_id
from tests.laws.world import LEASE

LATER = [
    Migration("9001_column", "alter table kagzi.workflow_runs add column colour text not null default 'red';"),
    Migration(
        "9002_index", "-- online\ncreate index concurrently if not exists run_colour on kagzi.workflow_runs (colour);"
    ),
    Migration("9003_function", "create function kagzi.colour() returns text language sql as 'select ''red''';"),
]
# What makes a schema: columns, keys and checks, indexes, functions.
_SCHEMA = {
    "columns": "select table_name, column_name, data_type, is_nullable, column_default, generation_expression"
    " from information_schema.columns where table_schema = 'kagzi' order by 1, 2",
    "constraints": "select conrelid::regclass::text, pg_get_constraintdef(oid) from pg_constraint"
    " where connamespace = 'kagzi'::regnamespace order by 1, 2",
    "indexes": "select indexdef from pg_indexes where schemaname = 'kagzi' order by 1",
    "functions": "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'kagzi'::regnamespace order by 1",
}


@pytest.fixture
def empty(databases: Databases) -> Iterator[str]:
    """A database without a schema."""
    url = databases.create()
    asyncio.run(_clear(url))
    yield url
    databases.drop(url)


async def _clear(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("drop schema kagzi cascade")
    await connection.close()


async def _schema(url: str) -> dict[str, list[tuple[object, ...]]]:
    connection = await asyncpg.connect(url)
    found = {name: [tuple(row) for row in await connection.fetch(query)] for name, query in _SCHEMA.items()}
    await connection.close()
    return found


async def _live(database: Database) -> None:
    """A run from its start to its end."""
    start = operations.start()
    start.slot = Slot(new_id(), new_id())
    run = Run(start.run_id, start.slot.token)
    for given in (start, operations.complete_step(run), operations.set_state(run), operations.complete(run)):
        await batch.flush(database, NAMESPACE, [given], LEASE, 30.0)
        assert not given.refused, given.answer


async def _live_on(database: Database, lived: asyncio.Queue[None]) -> None:
    while True:
        await _live(database)
        lived.put_nowait(None)


async def _more(lived: asyncio.Queue[None]) -> None:
    """Waits until runs that begin after this have ended."""
    async with asyncio.timeout(60):
        for _ in range(lived.qsize() + 10):
            await lived.get()


async def test_a_migration_under_load_fails_nobody(database_url: str) -> None:
    database = await Database(database_url).open()
    lived: asyncio.Queue[None] = asyncio.Queue()
    load = [asyncio.create_task(_live_on(database, lived)) for _ in range(3)]
    await _more(lived)
    reader = await asyncpg.connect(database_url)
    async with reader.transaction():
        # Somebody's long report, which no ALTER TABLE gets past.
        await reader.fetch("select count(*) from kagzi.workflow_runs")
        migrating = asyncio.create_task(migrate.apply(database_url, [*migrate.known(), *LATER]))
        await _more(lived)
        assert not migrating.done()
    async with asyncio.timeout(60):
        assert await migrating == [migration.name for migration in LATER]
    await _more(lived)
    assert await migrate.apply(database_url, [*migrate.known(), *LATER]) == []
    await _more(lived)
    for task in load:
        assert not task.done(), "a run failed"
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*load)
    await reader.close()
    await database.close()


async def test_what_was_cut_off_half_way_is_completed_by_the_next(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("alter table kagzi.workflow_runs add column colour text")
    await connection.execute("create index run_colour on kagzi.workflow_runs (colour)")
    await connection.execute("update pg_index set indisvalid = false where indexrelid = 'kagzi.run_colour'::regclass")
    assert await migrate.apply(database_url, [*migrate.known(), LATER[1]]) == ["9002_index"]
    assert await connection.fetchval("select indisvalid from pg_index where indexrelid = 'kagzi.run_colour'::regclass")
    await connection.close()


def test_any_number_may_apply_them_at_once(empty: str) -> None:
    async def together() -> list[list[str]]:
        return await asyncio.gather(*(migrate.apply(empty) for _ in range(4)))

    done = asyncio.run(together())
    assert sorted(done, key=len)[:3] == [[], [], []]
    assert max(done, key=len) == [migration.name for migration in migrate.known()]


def test_a_schema_that_was_migrated_step_by_step_is_that_of_a_new_database(empty: str, databases: Databases) -> None:
    async def step_by_step() -> None:
        known = migrate.known()
        for count in range(1, len(known) + 1):
            assert await migrate.apply(empty, known[:count]) == [known[count - 1].name]
            connection = await asyncpg.connect(empty)
            await connection.execute(
                "insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at)"
                " values ('default', gen_random_uuid(), 'q', 't', 'PENDING', kagzi.now())"
            )
            await connection.close()

    asyncio.run(step_by_step())
    new = databases.create()
    assert asyncio.run(_schema(empty)) == asyncio.run(_schema(new))
    databases.drop(new)
