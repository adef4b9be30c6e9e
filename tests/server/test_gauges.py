"""What stands in a namespace is counted a few times a minute, by whichever server comes first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import grpc
import pytest_asyncio
from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import GetStatsRequest, GetStatsResponse
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.server.app import Server
from kagzi.server.gauges import Gauges
from kagzi.server.settings import Settings
from kagzi.store import counts, stats
from kagzi.store.database import Database
from tests.laws.world import SETTINGS, World
from tests.store import given


@pytest_asyncio.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    database = await Database(database_url).open()
    connection = await asyncpg.connect(database_url, server_settings=SETTINGS)
    yield World(database, connection, database_url)
    await connection.close()
    await database.close()


async def _stand(connection: Connection) -> None:
    await given.run(connection, "PENDING", "-90 s")
    await given.run(connection, "PENDING", "-5 s", task_queue="slow")
    await given.run(connection, "RUNNING", "30 s")
    await given.run(connection, "SLEEPING", "never")


async def _written(world: World) -> int:
    """Minutes that were counted; the hour of each is counted too."""
    count: int = await world.connection.fetchval(
        "select count(*) from kagzi.stats where counted_at is not null and span = 1"
    )
    return count


async def _age(world: World) -> None:
    """What was counted was counted a while ago."""
    await world.connection.execute("update kagzi.stats set counted_at = counted_at - interval '20 s'")


async def _last(world: World) -> GetStatsResponse.Point:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    [point], _ = await stats.points(
        world.connection,
        "default",
        since=now - timedelta(minutes=5),
        until=now + timedelta(minutes=5),
        minutes=10,
    )
    return point


async def test_what_waits_runs_and_sleeps_is_in_the_charts(world: World) -> None:
    await _stand(world.connection)
    await given.run(world.connection, namespace="unknown to everybody")
    await Gauges(world.database, given.new_id()).count()
    point = await _last(world)
    assert (point.pending_due, point.running, point.sleeping) == (2, 1, 1)
    assert 89_000 < point.oldest_due_ms < 150_000
    assert await _written(world) == 1
    hour: int = await world.connection.fetchval("select pending_due from kagzi.stats where span = 60")
    assert hour == 2
    kept = await counts.read(world.connection, "default", most=9)
    assert [(each.task_queue, each.pending_due, each.running) for each in kept] == [("default", 1, 1), ("slow", 1, 0)]


async def test_of_many_servers_the_first_counts_and_the_others_leave_it_at_that(world: World) -> None:
    await _stand(world.connection)
    servers = [Gauges(world.database, given.new_id()) for _ in range(3)]
    for server in servers:
        await server.count()
    assert await _written(world) == 1
    await _age(world)
    await servers[1].count()
    assert await _written(world) == 2


async def test_an_empty_namespace_is_written_once_after_something_stood_in_it(world: World) -> None:
    gauges = Gauges(world.database, given.new_id())
    await gauges.count()
    assert await _written(world) == 0, "nothing stands and nothing stood"
    await _stand(world.connection)
    await gauges.count()
    await world.connection.execute("delete from kagzi.workflow_runs")
    await _age(world)
    other = Gauges(world.database, given.new_id())
    await other.count()
    point = await _last(world)
    assert (point.pending_due, point.running, point.sleeping, point.oldest_due_ms) == (0, 0, 0, 0)
    written = await _written(world)
    await _age(world)
    await Gauges(world.database, given.new_id()).count()
    assert await _written(world) == written, "that nothing stands is known"


async def test_more_namespaces_than_one_turn_counts_have_their_turn_later(world: World) -> None:
    """Also behind a hundred in which nothing stands and of which therefore nothing is written."""
    names = [f"n{number:03}" for number in range(150)]
    await world.connection.execute("insert into kagzi.namespaces (namespace) select unnest($1::text[])", names)
    for name in names[-2:]:
        await given.run(world.connection, namespace=name)
    gauges = Gauges(world.database, given.new_id())
    await gauges.count()
    assert await _written(world) == 0
    await gauges.count()
    assert await _written(world) == 2


async def test_a_server_counts_by_itself(world: World) -> None:
    await _stand(world.connection)
    server = Server(Settings(server_port=0), world.url)
    await server.start()
    try:
        await world.until("select count(*) > 0 from kagzi.stats where counted_at is not null")
        async with grpc.aio.insecure_channel(server.address) as channel:
            answer = await AdminServiceStub(channel).GetStats(GetStatsRequest())
    finally:
        await server.stop(1.0)
    assert max(point.pending_due for point in answer.points) == 2
