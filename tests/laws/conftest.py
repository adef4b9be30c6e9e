"""What the tests of the laws share: the store on an empty database, directly or by a way that can break. A module has
one database, emptied for each test: that is much quicker than a new one, and most tests here are very short.
"""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from kagzi.store.database import Database
from tests.database import Databases
from tests.laws.world import SETTINGS, World
from tests.proxy import Proxy

_EMPTY = """
delete from kagzi.workflow_runs; delete from kagzi.workflow_payloads; delete from kagzi.step_runs;
delete from kagzi.signals; delete from kagzi.workers; delete from kagzi.stats;
delete from kagzi.namespaces where namespace <> 'default';
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
async def world(database_url: str) -> AsyncIterator[World]:
    """The store on an empty database."""
    database = await Database(database_url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()


@pytest_asyncio.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    """The way from `fragile` to its database."""
    async with Proxy(database_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def fragile(database_url: str, proxy: Proxy) -> AsyncIterator[World]:
    """The store on an empty database, reached through `proxy`; what a test looks at is not."""
    database = await Database(proxy.url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()
