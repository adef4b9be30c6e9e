"""What the tests of schedules share: the store and the server's parts on a database whose clock stands still until a
test moves it. A module has one database, emptied for each test.
"""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from kagzi.store.database import Database
from tests.database import Databases
from tests.laws.world import SETTINGS
from tests.schedules.calendar import CLOCK, Calendar


@pytest.fixture(scope="module")
def _database_of_the_module(databases: Databases) -> Iterator[str]:
    url = databases.create()
    yield url
    databases.drop(url)


@pytest_asyncio.fixture
async def calendar(_database_of_the_module: str) -> AsyncIterator[Calendar]:
    """An empty database at noon of 1 June 2026, UTC."""
    url = _database_of_the_module
    connection = await asyncpg.connect(url, server_settings=SETTINGS)
    await connection.execute(CLOCK)
    database = await Database(url).open()
    calendar = Calendar(database, connection, url)
    yield calendar
    await calendar.close()
    await database.close()
    await connection.close()
