"""Networks that are slow, that swallow everything, or that reset connections: the work goes on, elsewhere if it must,
and nothing happens twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kagzi import Client, Context, Handle, Worker, workflow
from kagzi.sdk import calls
from kagzi.server import app
from kagzi.server.api import stream
from tests.faults.wire import Wire
from tests.sdk.rig import LONG
from tests.sdk.serving import serving

# A peer that does not answer is dead after these; in earnest after five and ten seconds.
QUICK = {"grpc.keepalive_time_ms": 300, "grpc.http2.ping_timeout_ms": 700}
TOLERANT = {"grpc.http2.min_ping_interval_without_data_ms": 50}


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "OPTIONS", tuple({**dict(calls.OPTIONS), **QUICK}.items()))
    monkeypatch.setattr(app, "OPTIONS", tuple({**dict(app.OPTIONS), **TOLERANT}.items()))


class Body:
    """A step body of this process that the test holds, and that says how often it ran."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.times = 0

    async def __call__(self) -> str:
        self.times += 1
        self.begun.set()
        await self.let_go.wait()
        return "done"


body = Body()


@pytest.fixture
async def new_body() -> AsyncIterator[Body]:
    global body  # noqa: PLW0603 - the workflow finds it by name
    body = Body()
    yield body
    body.let_go.set()


@workflow
async def held(ctx: Context) -> list[str]:
    return [await ctx.step("held", body.__call__), await ctx.step("after", lambda: "after")]


async def large(size: int) -> str:
    return "x" * size


@workflow
async def waits(ctx: Context, sizes: list[int]) -> int:
    lengths = [len(await ctx.step("large", large, size)) for size in sizes]
    await ctx.receive("go")
    return sum(lengths)


async def sleeping(handle: Handle[Any]) -> bool:
    while (await handle.describe()).status != "SLEEPING":  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.02)
    return True


@pytest.mark.parametrize("fault", ["black_hole", "cut"])
async def test_a_worker_whose_network_fails_goes_on_at_the_next_server(
    database_url: str, impatient: None, new_body: Body, fault: str
) -> None:
    async with (
        serving(database_url) as first,
        serving(database_url) as second,
        Wire(first.address) as wire,
        Client(second.address) as client,
        Worker(f"{wire.address},{second.address}", workflows=[held]),
    ):
        handle = await client.start(held)
        await new_body.begun.wait()
        assert wire.carried_down > 0
        getattr(wire, fault)()
        new_body.let_go.set()
        assert await handle.result(timeout=LONG) == ["done", "after"]
    assert new_body.times == 1


@pytest.mark.parametrize("fault", ["black_hole", "cut"])
async def test_a_client_whose_network_fails_starts_one_run_and_hears_of_its_end(
    database_url: str, impatient: None, new_body: Body, fault: str
) -> None:
    async with (
        serving(database_url) as first,
        serving(database_url) as second,
        Wire(first.address) as wire,
        Worker(second.address, workflows=[held]),
        Client(f"{wire.address},{second.address}") as client,
    ):
        handle = await client.start(held, id="once")
        waiting = asyncio.create_task(handle.result(timeout=LONG))
        await new_body.begun.wait()
        getattr(wire, fault)()
        again, other = await asyncio.gather(client.start(held, id="once"), client.start(waits, [1]))
        assert (again.run_id, again.already_exists) == (handle.run_id, True)
        await other.signal("go")
        new_body.let_go.set()
        assert await waiting == ["done", "after"]
        assert len([run async for run in client.runs()]) == 2


async def test_a_long_history_arrives_over_a_slow_network(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes longer than that, as an even longer one would longer than the five seconds of every day.
    monkeypatch.setattr(stream, "_DELIVERED_WITHIN", 1.0)
    sizes = [600_000] * 8
    async with serving(database_url) as server, Wire(server.address) as wire, Client(server.address) as client:
        async with Worker(server.address, workflows=[waits]):
            handle = await client.start(waits, sizes)
            assert await asyncio.wait_for(sleeping(handle), LONG)
        wire.pace = 1_600_000
        async with Worker(wire.address, workflows=[waits]):
            await handle.signal("go")
            assert await handle.result(timeout=LONG) == sum(sizes)
    # Once, and not again and again.
    assert sum(sizes) < wire.carried_down < 1.5 * sum(sizes)
