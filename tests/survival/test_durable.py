"""What the code has got is durable before anything new begins. Between steps the code may run ahead, and what it then
says travels together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kagzi import Client, Context, Worker, step, workflow
from kagzi.server.app import Server
from tests.survival.load import until
from tests.survival.record import rows
from tests.survival.relay import Relay

ran: list[str] = []


@step
async def quick(word: str) -> str:
    ran.append(word)
    return word


@step
async def slow(word: str) -> str:
    ran.append(word)
    await asyncio.sleep(0.3)
    return word


@workflow
async def two_steps(ctx: Context) -> list[str]:
    return [await ctx.step("first", quick, "first"), await ctx.step("second", quick, "second")]


@workflow
async def one_step(ctx: Context, seconds: float) -> str:
    return await ctx.step("only", slow if seconds else quick, "only")


@workflow
async def bystander(ctx: Context) -> str:
    return await ctx.step("here", quick, "here")


@pytest.fixture
async def relay(server: Server) -> AsyncIterator[Relay]:
    ran.clear()
    async with Relay(server.address) as relay:
        yield relay


async def test_no_body_begins_before_every_result_the_code_has_got_is_durable(server: Server, relay: Relay) -> None:
    relay.hold("step_completed")
    async with (
        Worker(relay.address, workflows=[two_steps]),
        Worker(server.address, workflows=[bystander], queue="other"),
        Client(server.address) as client,
    ):
        handle = await client.start(two_steps)
        await asyncio.wait_for(relay.held.wait(), 10)
        # Time enough for a whole run elsewhere, and the second step has not begun.
        assert await client.execute(bystander, queue="other") == "here"
        assert ran == ["first", "here"]
        relay.let_go()
        assert await handle.result(timeout=60) == ["first", "second"]
    assert ran == ["first", "here", "second"]


async def test_the_last_result_and_the_end_of_the_run_share_a_frame_and_a_commit(
    database_url: str, server: Server, relay: Relay
) -> None:
    async with Worker(relay.address, workflows=[one_step]), Client(server.address) as client:
        handle = await client.start(one_step, 0.0)
        assert await handle.result(timeout=60) == "only"
    # The record that a quick step began never leaves.
    assert relay.frames[0] == ["step_completed", "complete"]
    query = (
        "select s.xmin::text = r.xmin::text, s.status, r.status from kagzi.step_runs s "
        "join kagzi.workflow_runs r using (namespace, run_id) where run_id = $1"
    )
    assert await rows(database_url, query, handle.run_id) == [(True, "COMPLETED", "COMPLETED")]


async def test_a_longer_step_is_shown_as_running_and_nobody_waits_for_that_record(
    database_url: str, server: Server, relay: Relay
) -> None:
    relay.hold("step_started")
    async with Worker(relay.address, workflows=[one_step]), Client(server.address) as client:
        handle = await client.start(one_step, 0.3)
        await asyncio.wait_for(relay.held.wait(), 10)
        # Its answer is still out when the body, which began before, has ended.
        assert await rows(database_url, "select status from kagzi.step_runs") == [("RUNNING",)]
        await until(lambda: "complete" in relay.passed)
        relay.let_go()
        assert await handle.result(timeout=60) == "only"
