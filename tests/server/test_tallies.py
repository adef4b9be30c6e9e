"""Every run that exists was counted once, whoever or whatever started it."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from kagzi import Client, Context, NonRetryable, Worker, step, workflow
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import RunFailed
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from kagzi.server.tallies import Tallies
from kagzi.store import outside
from kagzi.store.database import Database
from tests.dashboard.workflows import inbox
from tests.proxy import Proxy

_COUNT = """
select workflow_type, count(*) as runs, count(started_at) as claimed, count(finished_at) as ended
from kagzi.workflow_runs where status not in ('SCHEDULED', 'PAUSED') group by workflow_type
"""
_CHARTED = "select coalesce(sum(started), 0)::integer from kagzi.stats where span = $1 and workflow_type = ''"


@step
async def name(number: int) -> str:
    return str(number)


@workflow
async def plain(ctx: Context, number: int) -> str:
    return await ctx.step("name", name, number)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.run_child("awaited", plain, 1)
    await ctx.start_child("left", plain, 2)


@workflow
async def endless(ctx: Context, round: int) -> None:
    if round < 3:
        await ctx.continue_as_new(round + 1)


@workflow
async def unlucky(ctx: Context) -> None:
    await ctx.step("before", name, 0)
    raise NonRetryable("no")


async def _start_one_of_each(client: Client, connection: asyncpg.Connection) -> None:
    handle = await client.start(plain, 1, id="only-once")
    await (await client.start(plain, 2, id="only-once")).result(timeout=60)
    await (await handle.fork("name")).result(timeout=60)
    await client.execute(parent)
    await client.execute(endless, 0)
    failed = await client.start(unlucky)
    try:
        await failed.result(timeout=60)
    except RunFailed:
        await failed.retry()
    await client.start(plain, 3, delay="1h")
    schedule = await client.schedules.create("rarely", plain, 4, cron="0 0 1 1 *", max_runs=100)
    await schedule.trigger()
    since = datetime.now(UTC) - timedelta(days=800)
    await schedule.backfill(since, since + timedelta(days=366))
    often = await client.schedules.create("often", plain, 5, every="1s", max_runs=1)
    while (await often.describe()).runs_started == 0:
        pass
    await client.automations.run_now("inbox")
    # One that is never claimed, and one of a transaction that did not commit.
    await connection.execute("select kagzi.start_workflow('by-sql')")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("select kagzi.start_workflow('by-sql')")
    await transaction.rollback()


async def _settle(connection: asyncpg.Connection) -> None:
    """Until nothing but what nobody serves is left to do."""
    alive = "select 1 from kagzi.workflow_runs where status in ('RUNNING', 'SLEEPING') or available_at <= kagzi.now() \
             and status = 'PENDING' and workflow_type <> 'by-sql'"
    while await connection.fetchval(alive):
        pass


async def test_the_counter_is_what_stands_in_the_table_whatever_started_the_runs(database_url: str) -> None:
    server = Server(Settings(server_port=0), database_url)
    await server.start()
    connection = await asyncpg.connect(database_url)
    try:
        workflows: list[Workflow[Any, Any]] = [plain, parent, endless, unlucky]
        worker = Worker(server.address, workflows=workflows, automations=[inbox()])
        async with Client(server.address) as client, worker:
            while not [each async for each in client.automations.list()]:
                pass
            await _start_one_of_each(client, connection)
            await _settle(connection)
        await server.tallies.look_outside()
        # Once more: what was counted is not counted again.
        await server.tallies.look_outside()
        totals = {name: tally for name, tally in server.tallies.totals()["default"].items() if name}
        stands = {row["workflow_type"]: row for row in await connection.fetch(_COUNT)}
    finally:
        await server.stop(1.0)
    started = {name: tally.started for name, tally in totals.items()}
    assert started == {name: row["runs"] for name, row in stands.items()}
    ended = {name: tally.completed + tally.failed + tally.cancelled for name, tally in totals.items()}
    assert ended == {name: row["ended"] for name, row in stands.items()}
    # Whoever continues, waits or is retried is claimed more than once, and nobody less.
    assert all(sum(totals[name].pickup) >= row["claimed"] for name, row in stands.items())
    assert set(stands) >= {"plain", "parent", "endless", "unlucky", "by-sql", "inbox.poll"}
    runs = sum(row["runs"] for row in stands.values())
    assert [await connection.fetchval(_CHARTED, span) for span in (1, 60)] == [runs, runs]
    await connection.close()


async def test_servers_that_look_at_once_count_a_run_of_sql_once(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("select kagzi.start_workflow('by-sql-' || n % 3) from generate_series(1, 300) n")
    database = Database(database_url)
    await database.open()
    try:
        servers = [Tallies(database, "") for _ in range(4)]
        await asyncio.gather(*(server.look_outside() for server in servers))
        counted: Counter[str] = Counter()
        for server in servers:
            for workflow_type, tally in server.totals().get("default", {}).items():
                counted[workflow_type] += tally.started
        assert counted == {"by-sql-0": 100, "by-sql-1": 100, "by-sql-2": 100}
        assert await connection.fetchval("select count(*) from kagzi.outside_starts") == 0
    finally:
        await database.close()
        await connection.close()


async def test_a_burst_of_starts_by_sql_is_counted_without_rest(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    counts = {"one": 2_500, "two": 3, "three": 1_001}
    for namespace, many in counts.items():
        await connection.execute("insert into kagzi.namespaces (namespace) values ($1)", namespace)
        start = "select kagzi.start_workflow('by-sql', namespace => $1) from generate_series(1, $2::integer)"
        await connection.execute(start, namespace, many)
    database = Database(database_url)
    await database.open()
    try:
        server = Tallies(database, "")
        # It says so itself when the time to put has come first.
        while await server.look_outside():
            pass
        totals = server.totals()
        assert {namespace: totals[namespace]["by-sql"].started for namespace in counts} == counts
    finally:
        await database.close()
        await connection.close()


async def test_starts_by_sql_are_counted_though_the_answer_to_taking_them_is_lost(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("select kagzi.start_workflow('by-sql') from generate_series(1, 30)")
    async with Proxy(database_url) as proxy:
        database = Database(proxy.url)
        await database.open()
        try:
            server = Tallies(database, "")
            proxy.answers_to_lose = 1
            while await connection.fetchval("select exists (select from kagzi.outside_starts)"):
                await server.look_outside()
            assert proxy.answers_to_lose == 0
            # What is gone is asked for when it looks again.
            await server.look_outside()
            assert server.totals()["default"]["by-sql"].started == 30
            await server.look_outside()
            assert server.totals()["default"]["by-sql"].started == 30
        finally:
            await database.close()
            await connection.close()


async def test_what_a_transaction_that_failed_has_taken_is_not_counted(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("select kagzi.start_workflow('by-sql')")
        transaction = connection.transaction()
        await transaction.start()
        taken = await outside.take(connection, namespace="default", most=10)
        assert (taken.types, await outside.committed(connection, taken)) == (["by-sql"], None)
        await transaction.rollback()
        assert await outside.committed(connection, taken) is False
        async with connection.transaction():
            taken = await outside.take(connection, namespace="default", most=10)
        assert await outside.committed(connection, taken) is True
        unheard_of = outside.Taken("default", str(int(taken.transaction_id) + 1_000_000))
        assert await outside.committed(connection, unheard_of) is False
    finally:
        await connection.close()


async def test_namespaces_with_starts_by_sql_are_found_without_reading_the_starts(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        fill = "insert into kagzi.outside_starts select $1, gen_random_uuid(), 'by-sql' from generate_series(1, 5000)"
        for namespace in ("a", "b", "c"):
            await connection.execute(fill, namespace)
        # A transaction of its own: what it has read is counted up to now.
        async with connection.transaction():
            assert await outside.namespaces(connection, most=100) == ["a", "b", "c"]
            read = await connection.fetchval(
                "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'outside_starts'"
            )
        assert read <= 4
    finally:
        await connection.close()
