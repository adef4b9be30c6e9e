"""Waiting for runs: any number of callers share one stream, which survives its server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kagzi.sdk import watch
from kagzi.sdk.client import Client
from kagzi.sdk.errors import NotFound, RunFailed, Unavailable
from kagzi.server.app import Server
from tests.sdk.serving import Hand, completed, continued, echo, failed, new_id, serving, until, working


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.address) as made:
        yield made


@pytest.fixture
async def hand(server: Server) -> AsyncIterator[Hand]:
    async with working(server.address, "held", echo=echo) as worker:
        yield worker


async def watched(server: Server, count: int) -> None:
    """Returns when the server watches so many runs."""
    await until(lambda: len(server.watchers._runs["default"]) == count)


async def test_a_thousand_waiting_callers_share_one_stream(client: Client, server: Server, hand: Hand) -> None:
    handles = await asyncio.gather(*(client.start("held") for _ in range(1_000)))
    waiting = asyncio.gather(*(handle.result() for handle in handles))
    await watched(server, 1_000)
    assert len(server.watchers._watches) == 1
    for index, handle in enumerate(handles):
        await hand.end(handle.run_id, completed(index))
    assert await waiting == list(range(1_000))


async def test_callers_that_wait_for_one_run_all_get_its_result(client: Client, server: Server, hand: Hand) -> None:
    handle = await client.start("held")
    waiting = asyncio.gather(*(client.handle(handle.run_id).result() for _ in range(50)))
    await watched(server, 1)
    await hand.end(handle.run_id, completed("all"))
    assert await waiting == ["all"] * 50


async def test_one_caller_that_leaves_does_not_disturb_the_others(client: Client, server: Server, hand: Hand) -> None:
    handle = await client.start("held")
    leaver, stayer = asyncio.create_task(handle.result()), asyncio.create_task(handle.result())
    await watched(server, 1)
    leaver.cancel()
    await asyncio.gather(leaver, return_exceptions=True)
    await hand.end(handle.run_id, completed("here"))
    assert await stayer == "here"


async def test_a_run_that_nobody_waits_for_is_no_longer_watched(client: Client, server: Server, hand: Hand) -> None:
    handle, other = await client.start("held"), await client.start("held")
    staying = asyncio.create_task(other.result())
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.1)
    await watched(server, 1)
    await hand.end(other.run_id, completed())
    await staying


async def test_one_unknown_run_fails_alone(client: Client, hand: Hand) -> None:
    unknown = asyncio.create_task(client.handle(new_id()).result())
    assert await client.execute("echo", 1) == 1
    with pytest.raises(NotFound):
        await unknown


async def test_whoever_waits_follows_a_run_that_continues_as_new(client: Client, server: Server) -> None:
    async with working(
        server.address, count=lambda run: [failed() if run.input.data == b"0" else continued(int(run.input.data) - 1)]
    ) as hand:
        with pytest.raises(RunFailed) as raised:
            await client.execute("count", 3)
    assert raised.value.run_id == hand.delivered[-1].run_id


async def test_waiting_survives_the_restart_of_the_server(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(database_url))
        client = await stack.enter_async_context(Client(first.address))
        handles = [await client.start("held") for _ in range(3)]
        waiting = asyncio.gather(*(handle.result() for handle in handles))
        await watched(first, 3)
        port = first.port
        await first.stop()
        second = await stack.enter_async_context(serving(database_url, server_port=port))
        hand = await stack.enter_async_context(working(second.address, "held"))
        for index, handle in enumerate(handles):
            await hand.end(handle.run_id, completed(index))
        assert await asyncio.wait_for(waiting, 20) == [0, 1, 2]


async def test_waiting_goes_on_at_the_next_server(database_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(database_url))
        second = await stack.enter_async_context(serving(database_url))
        hand = await stack.enter_async_context(working(second.address, "held"))
        client = await stack.enter_async_context(Client(f"{first.address},{second.address}"))
        handle = await client.start("held")
        waiting = asyncio.create_task(handle.result())
        await watched(first, 1)
        await first.stop()
        await watched(second, 1)
        await hand.end(handle.run_id, completed("there"))
        assert await asyncio.wait_for(waiting, 20) == "there"


async def test_without_a_server_waiting_ends_when_patience_is_over(database_url: str) -> None:
    async with serving(database_url) as server, Client(server.address, patience=0.5) as client:
        handle = await client.start("held")
        waiting = asyncio.create_task(handle.result())
        await watched(server, 1)
        await server.stop()
        with pytest.raises(Unavailable, match=server.address):
            await asyncio.wait_for(waiting, 20)


async def test_an_unused_stream_is_closed_and_opened_again(
    client: Client, server: Server, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_IDLE_SECS", 0.05)
    assert await client.execute("echo", 1) == 1
    await until(lambda: not server.watchers._watches)
    assert await client.execute("echo", 2) == 2


async def test_the_stream_carries_the_key(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, echo=echo),
        Client(server.address, api_key="secret") as client,
    ):
        assert await asyncio.gather(*(client.execute("echo", i) for i in range(10))) == list(range(10))
