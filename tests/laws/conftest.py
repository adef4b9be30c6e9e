"""What the tests of the laws share: the store on a database of the test's own."""

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio

from kagzi.store.database import Database
from tests.laws.world import SETTINGS, World


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database(database_url).open()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def world(database: Database) -> AsyncIterator[World]:
    connection = await asyncpg.connect(database.url, server_settings=SETTINGS)
    yield World(database, connection)
    await connection.close()
