"""What the tests of automations share: the store on an empty database, one a module, emptied for each test."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from kagzi.store.database import Database
from tests.automations.stage import SETTINGS, Stage
from tests.database import Databases

_EMPTY = """
delete from kagzi.workflow_runs; delete from kagzi.workflow_payloads; delete from kagzi.step_runs;
delete from kagzi.automations; delete from kagzi.handlers; delete from kagzi.inputs; delete from kagzi.events;
delete from kagzi.event_causes; delete from kagzi.deliveries; delete from kagzi.mutations;
delete from kagzi.namespaces where namespace <> 'default';
update kagzi.namespaces set enabled = true;
create or replace function kagzi.now() returns timestamptz language sql stable parallel safe
    as 'select statement_timestamp()';
"""


@pytest.fixture(scope="module")
def _database_of_the_module(databases: Databases) -> Iterator[str]:
    url = databases.create()
    yield url
    databases.drop(url)


@pytest_asyncio.fixture
async def database_url(_database_of_the_module: str) -> AsyncIterator[str]:
    """An empty database with the current schema."""
    connection = await asyncpg.connect(_database_of_the_module)
    await connection.execute(_EMPTY)
    await connection.close()
    yield _database_of_the_module


@pytest_asyncio.fixture
async def stage(database_url: str) -> AsyncIterator[Stage]:
    """The store on an empty database."""
    database = await Database(database_url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield Stage(database, connection, database_url)
    await connection.close()
    await database.close()
