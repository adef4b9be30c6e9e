"""The database fails over: a streaming replica with synchronous commit is promoted while work goes on. Whoever was
acknowledged is there, whoever has the address of both goes on, and tokens from before are worth what they were.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from asyncpg.connection import Connection

from kagzi.embedded import Embedded
from kagzi.server.settings import Settings
from kagzi.store import batch, claims, migrate
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.operation import Operation, Outcome, Slot
from tests.database import BOUNDS, version
from tests.laws import operations
from tests.laws.operations import NAMESPACE, QUEUE, TYPE, Run, new_id
from tests.laws.world import LEASE

_REPLICATED: dict[str, str | float | bool] = {**BOUNDS, "max_wal_senders": 4, "wal_keep_size": "64MB"}


@pytest.fixture
def pair(data_directory: Path) -> Iterator[tuple[Embedded, Embedded]]:
    """A primary with the schema and its replica, which hears of every commit before whoever asked for it."""
    with Embedded(data_directory, version=version(), tcp_port=0, settings=_REPLICATED) as primary:
        asyncio.run(migrate.apply(primary.url))
        copy = data_directory.parent / "replica"
        _copied(primary, copy)
        with Embedded(copy, version=version(), tcp_port=0, settings=_REPLICATED) as replica:
            asyncio.run(_follow(primary.url))
            yield primary, replica


def _copied(primary: Embedded, copy: Path) -> None:
    copy.mkdir(mode=0o711)
    shutil.copy2(primary.directory / "password", copy / "password")
    cluster = copy / "cluster"
    program: list[str | Path] = [
        primary.binaries / "pg_basebackup",
        "-D",
        cluster,
        "-d",
        primary.url,
        "-R",
        "-c",
        "fast",
        "-X",
        "stream",
    ]
    done = subprocess.run(program, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    owner = primary.directory.joinpath("cluster").stat()
    for path in (cluster, *cluster.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)


async def _follow(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("alter system set synchronous_standby_names = '*'")
    await connection.execute("select pg_reload_conf()")
    async with asyncio.timeout(60):
        asked = "select bool_or(sync_state = 'sync') from pg_stat_replication"
        while not await connection.fetchval(asked):  # noqa: ASYNC110 - a database tells nobody
            await asyncio.sleep(0.02)
    await connection.close()


def both(primary: Embedded, replica: Embedded) -> str:
    """One address for two servers, as KAGZI_DB_URL has it."""
    first, second = urlsplit(primary.url), urlsplit(replica.url)
    hosts = f"{first.hostname}:{first.port},{second.hostname}:{second.port}"
    url = Settings(db_url=f"postgresql://{first.username}:{first.password}@{hosts}{first.path}").db_url
    assert url is not None
    return url


async def _start_runs(database: Database, acknowledged: asyncio.Queue[str]) -> None:
    """Starts runs one after the other, and notes each that was acknowledged."""
    while True:
        start = operations.start()
        try:
            await batch.flush(database, NAMESPACE, [start], LEASE, 2.0)
        except Unreachable:
            continue
        assert not start.refused
        acknowledged.put_nowait(start.run_id)


async def _claimed(database: Database) -> Run:
    served = Served(NAMESPACE, QUEUE, (TYPE,), ("",))

    async def claim(connection: Connection) -> Run:
        slots = [Slot(new_id(), new_id())]
        [one] = await claims.claim(connection, served, slots, LEASE, Outcome(), suspects=False, expired_too=True)
        return Run(one.delivery.run_id, one.delivery.claim_token)

    return await database.transact(claim)


async def _flushed(database: Database, operation: Operation) -> bool:
    await batch.flush(database, NAMESPACE, [operation], LEASE, 60.0)
    return not operation.refused


async def test_nothing_acknowledged_is_missing_after_the_replica_was_promoted(
    pair: tuple[Embedded, Embedded],
) -> None:
    primary, replica = pair
    database = await Database(both(primary, replica)).open()
    assert await _flushed(database, operations.start())
    zombie = await _claimed(database)
    direct = await asyncpg.connect(primary.url)
    await direct.execute("update kagzi.workflow_runs set available_at = kagzi.now() - interval '1 s'")
    await direct.close()
    held = await _claimed(database)
    recorded = operations.complete_step(held, "charge")
    assert await _flushed(database, recorded)
    starting: asyncio.Queue[str] = asyncio.Queue()
    writers = [asyncio.create_task(_start_runs(database, starting)) for _ in range(3)]
    async with asyncio.timeout(60):
        acknowledged = [await starting.get() for _ in range(40)]

    await asyncio.to_thread(primary.crash)
    promoted = await asyncpg.connect(replica.url)
    assert await promoted.fetchval("select pg_promote(true, 60)")
    # The new primary has no replica of its own, and must not wait for one.
    await promoted.execute("alter system set synchronous_standby_names = ''")
    await promoted.execute("select pg_reload_conf()")
    async with asyncio.timeout(60):
        # What was acknowledged before, and then enough that must be of the new primary.
        acknowledged += [await starting.get() for _ in range(starting.qsize() + 10)]
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)

    stored = {str(row[0]) for row in await promoted.fetch("select run_id from kagzi.workflow_runs")}
    assert {*acknowledged, held.run_id} <= stored
    [step] = await promoted.fetch("select output from kagzi.step_runs where run_id = $1", held.run_id)
    assert step["output"] == recorded.body.output.data
    assert not await _flushed(database, operations.complete(zombie)), "a lease that was lost is believed again"
    assert await _flushed(database, operations.complete(held)), "a lease did not outlive its database server"
    await promoted.close()
    await database.close()


async def test_a_server_never_takes_the_replica_for_the_primary(pair: tuple[Embedded, Embedded]) -> None:
    primary, replica = pair
    database = await Database(both(replica, primary)).open()
    assert await _flushed(database, operations.start())
    await database.close()
