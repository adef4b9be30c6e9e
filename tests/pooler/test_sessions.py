"""Behind a pooler: a server keeps nothing in a session, brings its settings to every transaction, and goes to the
database itself for what a pooler cannot carry. `make test-pooler` runs the conformance suite this way too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from asyncpg.connection import Connection

from kagzi.store.database import Database
from tests.bouncer import Bouncer
from tests.cli.test_cli import kagzi
from tests.conformance.servers import ServerProcess
from tests.laws import operations
from tests.laws.world import World


@pytest.fixture
def bouncer(database_url: str) -> Iterator[Bouncer]:
    with Bouncer(database_url) as bouncer:
        yield bouncer


async def test_every_transaction_has_the_servers_settings_and_leaves_none(bouncer: Bouncer, database_url: str) -> None:
    database = await Database(bouncer.through(database_url), statement_cache=0, lease_seconds=20).open()

    async def shown(connection: Connection) -> tuple[str, ...]:
        names = ("search_path", "lock_timeout", "idle_in_transaction_session_timeout", "timezone")
        return tuple([await connection.fetchval(f"show {name}") for name in names])

    wanted = ("pg_catalog, pg_temp", "200ms", "10s", "UTC")
    seen = await asyncio.gather(
        *(database.transact(shown) for _ in range(20)), *(database.read(shown) for _ in range(20))
    )
    assert set(seen) == {wanted}
    await database.close()
    stranger = await asyncpg.connect(bouncer.through(database_url), statement_cache_size=0)
    async with stranger.transaction():
        assert await stranger.fetchval("show lock_timeout") == "0"
    await stranger.close()


async def test_more_work_than_connections_mixes_up_no_statement(bouncer: Bouncer, database_url: str) -> None:
    database = await Database(bouncer.through(database_url), size=12, statement_cache=0).open()
    direct = await asyncpg.connect(database_url)
    world = World(database, direct, database_url)

    async def live(number: int) -> None:
        run = await world.running(external_id=f"order-{number}")
        await world.flush(operations.complete_step(run, "charge", 1), operations.await_signal(run, position=2))
        await world.flush(operations.signal(run.run_id))
        await world.flush(operations.complete(run))

    await asyncio.gather(*(live(number) for number in range(40)))
    assert await direct.fetchval("select count(*) from kagzi.workflow_runs where status = 'COMPLETED'") == 40
    await direct.close()
    await database.close()


def test_a_server_starts_where_its_database_is_behind_a_pooler(
    bouncer: Bouncer, database_url: str, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"db_listen_url": database_url, "db_statement_cache_size": 0}
    asked = {"db_url": bouncer.through(database_url), **settings}
    told = {f"KAGZI_{name.upper()}": str(value) for name, value in asked.items()}
    assert json.loads(kagzi("migrate", "--json", cwd=tmp_path, **told).stdout) == {"applied": []}
    made = kagzi("keys", "create", "--database", "--role", "client", cwd=tmp_path, **told)
    assert made.returncode == 0, made.stderr
    with ServerProcess(bouncer.through(database_url), tmp_path, **settings) as server:
        assert server.running
