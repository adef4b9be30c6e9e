"""What the tests of the laws share: the store on a database of the test's own, directly or by a way that can break."""

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio

from kagzi.store.database import Database
from tests.laws.world import SETTINGS, World
from tests.proxy import Proxy


@pytest_asyncio.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    """The store on a fresh database."""
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
    """The store on a fresh database, reached through `proxy`; what a test looks at is not."""
    database = await Database(proxy.url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()
