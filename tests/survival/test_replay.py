"""What the code is handed, and when, is the same live and in replay; what it gives up is given up for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kagzi import Client, Context, Handle, RunCancelled, Worker, Workflow, step, workflow
from kagzi.server.app import Server
from tests.survival.load import until
from tests.survival.record import rows
from tests.survival.relay import Relay

# What code and bodies of this process did, by run; code leaves its marks again in every replay.
marks: dict[str, list[str]] = defaultdict(list)
shared = [1, 2, 3]


@step
async def quick(word: str) -> str:
    return word


@step
async def numbers() -> list[int]:
    return shared


@step
async def wait(run_id: str, seconds: float) -> str:
    marks[run_id].append("body begins")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        marks[run_id].append("body cancelled")
        raise
    return "waited"


pay = step(effect=True)(wait.function)


@workflow
async def copied(ctx: Context) -> list[int]:
    got = await ctx.step("numbers", numbers)
    got.append(4)
    return got


@workflow
async def racing(ctx: Context) -> list[str]:
    """Branches that finish in another order than they began, and together; then it waits for a signal."""

    async def branch(name: str, seconds: float) -> str:
        marks[ctx.run_id].append(f"{name} asks")
        await ctx.step(name, asyncio.sleep, seconds)
        marks[ctx.run_id].append(f"{name} has it")
        await ctx.step(f"{name}-then", quick, name)
        marks[ctx.run_id].append(f"{name} goes on")
        return name

    found = await asyncio.gather(branch("slow", 0.06), branch("quick", 0.0), branch("twin", 0.0))
    marks[ctx.run_id].append("rests")
    await ctx.receive("go")
    return list(found)


@workflow
async def impatient(ctx: Context, effect: bool) -> str:
    """Gives a body up, and goes on."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ctx.step("long", pay if effect else wait, ctx.run_id, 60.0), 0.15)
    return await ctx.step("after", quick, "after")


@workflow
async def impatient_parent(ctx: Context, detached: bool) -> str:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ctx.run_child("child", waiting, id=ctx.run_id, detached=detached), 0.15)
    return await ctx.step("after", quick, "after")


@workflow
async def waiting(ctx: Context) -> None:
    await ctx.receive("never")


@workflow
async def parent(ctx: Context, detached: bool) -> None:
    await ctx.run_child("child", waiting, id=ctx.run_id, detached=detached)


@workflow
async def napping(ctx: Context) -> None:
    await ctx.sleep("nap", "300ms")


@workflow
async def publishing(ctx: Context) -> str:
    await ctx.set_state({"phase": "first"})
    await ctx.step("one", quick, "one")
    await ctx.set_state({"phase": "second"})
    await ctx.receive("go")
    await ctx.set_state({"phase": "third"})
    return await ctx.step("two", quick, "two")


@workflow
async def tidy(ctx: Context) -> str:
    try:
        return await ctx.receive("go", str) or ""
    finally:
        await ctx.step("cleanup", quick, "cleanup")


WORKFLOWS: list[Workflow[Any, Any]] = [
    copied,
    racing,
    impatient,
    impatient_parent,
    waiting,
    parent,
    napping,
    publishing,
    tidy,
]


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.address) as client, Worker(server.address, workflows=WORKFLOWS):
        yield client


async def sleeping(handle: Handle[Any]) -> None:
    async with asyncio.timeout(60):
        while (await handle.describe()).status != "SLEEPING":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def steps(handle: Handle[Any]) -> dict[str, str]:
    return {recorded.step_id: str(recorded.status) for recorded in await handle.steps()}


async def test_code_gets_a_copy_of_the_recorded_bytes_also_live(client: Client) -> None:
    assert await client.execute(copied) == [1, 2, 3, 4]
    assert shared == [1, 2, 3]


async def test_results_are_handed_over_one_at_a_time_in_the_order_on_record(server: Server) -> None:
    async with (
        Client(server.address) as client,
        Worker(server.address, workflows=[racing], residents=0),
    ):
        handle = await client.start(racing)
        await sleeping(handle)
        live = list(marks[handle.run_id])
        assert live.index("quick has it") < live.index("slow has it")
        marks[handle.run_id].clear()
        await handle.signal("go")
        assert await handle.result(timeout=60) == ["slow", "quick", "twin"]
    assert marks[handle.run_id] == live


@pytest.mark.parametrize(("effect", "status"), [(False, "ABANDONED"), (True, "UNKNOWN")])
async def test_a_step_whose_waiter_is_gone_is_cancelled_and_closed(client: Client, effect: bool, status: str) -> None:
    handle = await client.start(impatient, effect)
    assert await handle.result(timeout=60) == "after"
    await until(lambda: marks[handle.run_id] == ["body begins", "body cancelled"])
    assert (await steps(handle))["long"] == status


@pytest.mark.parametrize(("detached", "asked"), [(False, True), (True, False)])
async def test_a_child_whose_waiter_is_gone_is_asked_to_cancel_unless_detached(
    database_url: str, client: Client, detached: bool, asked: bool
) -> None:
    handle = await client.start(impatient_parent, detached)
    assert await handle.result(timeout=60) == "after"
    child = await client.find(handle.run_id)
    if asked:
        with pytest.raises(RunCancelled):
            await child.result(timeout=60)
    else:
        query = "select status, cancel_requested_at from kagzi.workflow_runs where run_id = $1"
        assert await rows(database_url, query, child.run_id) == [("SLEEPING", None)]


@pytest.mark.parametrize("detached", [False, True])
async def test_a_cancelled_parent_cancels_its_children_unless_detached(
    database_url: str, client: Client, detached: bool
) -> None:
    handle = await client.start(parent, detached)
    await sleeping(handle)
    child = await client.find(handle.run_id)
    await sleeping(child)
    await handle.cancel("enough")
    with pytest.raises(RunCancelled):
        await handle.result(timeout=60)
    if detached:
        query = "select status, cancel_requested_at from kagzi.workflow_runs where run_id = $1"
        assert await rows(database_url, query, child.run_id) == [("SLEEPING", None)]
    else:
        with pytest.raises(RunCancelled):
            await child.result(timeout=60)


async def test_a_short_wait_is_waited_out_in_place_and_the_run_is_not_given_back(server: Server) -> None:
    async with (
        Relay(server.address) as relay,
        Worker(relay.address, workflows=[napping]),
        Client(server.address) as client,
    ):
        await client.execute(napping)
    # What was not answered when the worker stopped may have been sent again.
    sent = list(dict.fromkeys(name for frame in relay.frames for name in frame))
    assert sent == ["step_started", "step_completed", "complete"]


async def test_the_state_is_published_once_and_not_again_in_replay(server: Server) -> None:
    async with (
        Relay(server.address) as relay,
        Worker(relay.address, workflows=[publishing], residents=0),
        Client(server.address) as client,
    ):
        handle = await client.start(publishing)
        await sleeping(handle)
        assert await handle.state() == {"phase": "second"}
        published = relay.passed.count("set_state")
        await handle.signal("go")
        assert await handle.result(timeout=60) == "two"
        assert await handle.state() == {"phase": "third"}
        assert relay.passed.count("set_state") == published + 1


async def test_a_suspended_run_cleans_nothing_up_before_its_end(client: Client) -> None:
    handle = await client.start(tidy)
    await sleeping(handle)
    assert await steps(handle) == {"go": "RUNNING"}
    await handle.signal("go", "word")
    assert await handle.result(timeout=60) == "word"
    assert await steps(handle) == {"go": "COMPLETED", "cleanup": "COMPLETED"}
