"""The databases that tests are given: fresh, alone, and gone afterwards."""

import asyncpg
import pytest

from tests.database import Databases


async def test_a_test_gets_a_database_of_its_own(database_url: str, databases: Databases) -> None:
    other = databases.create()
    try:
        mine, theirs = await asyncpg.connect(database_url), await asyncpg.connect(other)
        await mine.execute("CREATE TABLE public.only_here (number int)")
        assert await theirs.fetchval("SELECT to_regclass('public.only_here')") is None
        await mine.close()
        await theirs.close()
    finally:
        databases.drop(other)


async def test_a_database_is_dropped_although_someone_is_connected(databases: Databases) -> None:
    url = databases.create()
    left_open = await asyncpg.connect(url)
    databases.drop(url)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)
    left_open.terminate()


async def test_the_server_of_the_tests_commits_to_disk(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    for setting in ("fsync", "synchronous_commit", "full_page_writes"):
        assert await connection.fetchval(f"SHOW {setting}") == "on"
    await connection.close()
