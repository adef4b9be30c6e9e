"""The virtual clock as the database sees it: what moves with it, what keeps it from moving, and what it costs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import grpc
import pytest

from kagzi import Context, Handle, workflow
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.testing import Environment, Environments
from kagzi.testing.clock import Locked
from tests.testing import shop


@asynccontextmanager
async def inside(env: Environment) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection to the database of an environment."""
    connection = await asyncpg.connect(env.database_url)
    try:
        yield connection
    finally:
        await connection.close()


async def test_the_database_tells_the_time_of_the_environment(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    async with inside(env) as connection:
        for _ in range(3):
            await env.skip("10d")
            assert abs(await connection.fetchval("select kagzi.now()") - env.now()) < timedelta(minutes=1)


async def test_indexes_on_times_stay_usable(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    async with inside(env) as connection:
        await connection.execute("set enable_seqscan = off")
        plan = await connection.fetch(
            "explain select run_id from kagzi.workflow_runs where status = 'SCHEDULED' and available_at <= kagzi.now()"
        )
    assert any("Index Cond: (available_at <= kagzi.now())" in row[0] for row in plan)


async def test_workers_do_not_fall_silent_in_skipped_time(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    await env.skip("90d")
    async with inside(env) as connection:
        row = await connection.fetchrow("select status, kagzi.now() - last_heartbeat_at as silence from kagzi.workers")
    assert row is not None
    assert row["status"] == "ONLINE"
    assert row["silence"] < timedelta(minutes=1)


async def test_leases_of_other_processes_are_carried_along(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    async with grpc.aio.insecure_channel(env.url) as channel, inside(env) as connection:
        workers = WorkerServiceStub(channel)
        known = await workers.Register(
            pb.RegisterRequest(
                task_queue="far",
                instance="far",
                hostname="far",
                pid=os.getpid(),
                types=[pb.ServedType(name="remote")],
                concurrency=1,
            )
        )
        await env.client.start("remote", queue="far")
        polled = await workers.PollTask(pb.PollTaskRequest(worker_id=known.worker_id, wait_ms=5_000))
        assert polled.HasField("task")
        await env.skip("30d")
        row = await connection.fetchrow(
            "select status, available_at - kagzi.now() as lease from kagzi.workflow_runs where run_id = $1::uuid",
            polled.task.run_id,
        )
    assert row is not None
    assert row["status"] == "RUNNING"
    assert row["lease"] > timedelta(0)


async def test_a_run_of_ones_own_transaction_is_taken_when_it_commits(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    async with inside(env) as connection:
        run_id = await connection.fetchval("""select kagzi.start_workflow('shipping', '"5"')""")
    await env.skip("2d")
    assert await env.client.handle(str(run_id), shop.shipping).result(timeout=60) == "parcel 5"


async def test_a_signal_of_ones_own_transaction_is_heard_before_time_passes(kagzi_env: Environments) -> None:
    @workflow
    async def listening(ctx: Context) -> str | None:
        return await ctx.receive("word", str, timeout="1h")

    env = await kagzi_env(workflows=[listening])
    handle = await env.client.start(listening)
    await env.settle()
    async with inside(env) as connection:
        await connection.execute("""select kagzi.signal($1, 'word', '"hello"')""", handle.run_id)
    await env.skip("1d")
    assert await handle.result(timeout=60) == "hello"


async def test_an_open_transaction_is_named_as_the_reason(
    kagzi_env: Environments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kagzi.testing.clock._PATIENCE", 0.1)
    env = await kagzi_env(workflows=[shop.shipping])
    async with inside(env) as connection:
        async with connection.transaction():
            await connection.execute("""select kagzi.start_workflow('shipping', '"5"')""")
            with pytest.raises(Locked, match="commit it or roll it back"):
                await env.skip("1d")
        await env.skip("2d")
    assert [run.status async for run in env.client.runs()] == ["COMPLETED"]


async def test_skips_of_several_tasks_follow_one_another(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.shipping])
    before = env.now()
    await asyncio.gather(env.skip("1d"), env.skip("2d"), env.skip("3d"))
    assert timedelta(days=6) <= env.now() - before < timedelta(days=6, minutes=1)


async def test_runs_that_start_while_time_is_skipped_are_not_lost(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.digest, shop.shipping])
    digest = await env.client.start(shop.digest, 20)
    skipping = asyncio.create_task(env.skip("20d"))
    handles: list[Handle[str]] = [await env.client.start(shop.shipping, str(number)) for number in range(30)]
    await skipping
    assert len(await digest.result(timeout=60)) == 20
    await env.skip("2d")
    for number, handle in enumerate(handles):
        assert await handle.result(timeout=60) == f"parcel {number}"


async def test_runs_that_start_runs_in_their_steps_come_to_rest(kagzi_env: Environments) -> None:
    started: list[str] = []

    async def start(name: str) -> str:
        started.append((await env.client.start(shop.shipping, name)).run_id)
        return started[-1]

    @workflow
    async def spawning(ctx: Context) -> None:
        for number in range(3):
            await ctx.step("start", start, str(number))
            await ctx.sleep("day", "1d")

    env = await kagzi_env(workflows=[spawning, shop.shipping])
    handle = await env.client.start(spawning)
    await env.skip("5d")
    await handle.result(timeout=60)
    for run_id in started:
        assert (await env.client.handle(run_id).describe()).status == "COMPLETED"
