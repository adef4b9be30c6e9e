"""What the tests of the store share: a connection as the server has it, to a database of the test's own."""

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from asyncpg.connection import Connection

SETTINGS = {"search_path": "pg_catalog, pg_temp", "timezone": "UTC"}


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    """A connection to a fresh database with the current schema."""
    opened = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(database_url: str) -> AsyncIterator[Connection]:
    """A second connection, for whoever gets in between."""
    opened = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield opened
    await opened.close()
