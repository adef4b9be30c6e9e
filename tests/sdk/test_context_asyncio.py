"""asyncio inside workflow code: what only needs a loop works and is durable; what needs the world outside is refused,
with the advice to do it in a step; code that goes nowhere is found out.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kagzi import Context, RunFailed, workflow
from tests.sdk.rig import LONG, Gate, Rig, rigged


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


gate = Gate()


@pytest.fixture(autouse=True)
def new_gate() -> None:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()


async def say(word: str) -> str:
    return word


@workflow
async def toolbox(ctx: Context) -> list[Any]:
    """A producer and two consumers, with everything asyncio has between branches."""
    queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
    finished = asyncio.Event()
    few = asyncio.Semaphore(1)
    seen: list[Any] = []

    async def produce() -> None:
        for word in ("one", "two", "three"):
            await queue.put(await ctx.step("produce", say, word))
        await queue.put(None)

    async def consume() -> None:
        while (word := await queue.get()) is not None:
            async with few:
                seen.append(await ctx.step("consume", say, word))
        finished.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())
        await finished.wait()
        await ctx.step("pause", gate.wait)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(0.02)
    return [seen, loop.time() - began >= 0.02]


async def test_what_only_needs_a_loop_works_and_survives(rig: Rig) -> None:
    async with rig.working(toolbox):
        handle = await rig.client.start(toolbox)
        await gate.arrival()
    gate.open()
    async with rig.working(toolbox):
        assert await handle.result(timeout=LONG) == [["one", "two", "three"], True]


@workflow
async def limits(ctx: Context) -> list[str]:
    outcomes = []
    try:
        async with asyncio.timeout(0.02):
            await ctx.receive("never")
    except TimeoutError:
        outcomes.append("timeout")
    try:
        await asyncio.wait_for(ctx.step("slow", gate.wait), 0.02)
    except TimeoutError:
        outcomes.append("wait_for")
    async with asyncio.timeout(3_600):
        outcomes.append(await ctx.step("quick", say, "in time"))
    return outcomes


@pytest.mark.parametrize("in_place", [True, False])
async def test_limits_of_time_are_durable_timers(rig: Rig, in_place: bool) -> None:
    async with rig.working(limits, in_place=in_place):
        handle = await rig.client.start(limits)
        assert await handle.result(timeout=LONG) == ["timeout", "wait_for", "in time"]

    records = await rig.records(handle)
    timers = {step_id: status for step_id, status in records.items() if step_id.startswith("$timer")}
    assert timers.pop("$timer") == timers.pop("$timer#2") == "COMPLETED"
    # The last one was taken back before anybody had recorded it, or is closed.
    assert set(timers.values()) <= {"ABANDONED"}


REFUSED: dict[str, Callable[[], Awaitable[Any]]] = {
    "asyncio.to_thread": lambda: asyncio.to_thread(print),
    "asyncio.open_connection": lambda: asyncio.open_connection("localhost", 1),
    "asyncio.create_subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "loop.getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
}


@workflow
async def reaches_out(ctx: Context, which: str) -> None:
    await REFUSED[which]()


@pytest.mark.parametrize("which", REFUSED)
async def test_what_needs_the_world_outside_is_refused(rig: Rig, which: str) -> None:
    async with rig.working(reaches_out):
        with pytest.raises(RunFailed) as caught:
            await rig.execute(reaches_out, which)

    assert caught.value.type == "NotInWorkflow"
    assert which in caught.value.message
    assert "do this in a step: await ctx.step(name, function, ...)" in caught.value.message
    assert "in reaches_out" in caught.value.traceback


@workflow
async def stuck(ctx: Context) -> None:
    await asyncio.Event().wait()


@workflow
async def spinning(ctx: Context) -> None:
    while True:  # noqa: ASYNC110 - the mistake that is found out
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("code", "message"),
    [(stuck, "waits for something that nothing will bring"), (spinning, "without waiting for anything")],
    ids=["stuck", "spinning"],
)
async def test_code_that_goes_nowhere_fails_its_run(rig: Rig, code: Any, message: str) -> None:
    async with rig.working(code):
        with pytest.raises(RunFailed, match=message):
            await rig.execute(code)


@workflow
async def careless(ctx: Context) -> str:
    async def explode() -> None:
        raise ValueError("nobody looks")

    task = asyncio.create_task(explode())
    await ctx.step("say", say, "meanwhile")
    del task
    return "fine"


async def test_a_branch_that_fails_unseen_is_told_in_the_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    async with rig.working(careless):
        with caplog.at_level(logging.ERROR, "kagzi.workflow.careless"):
            assert await rig.execute(careless) == "fine"

    assert "nobody looks" in caplog.text


@workflow
async def leaves_work(ctx: Context) -> str:
    task = asyncio.create_task(ctx.step("left behind", gate.wait))
    await ctx.step("say", say, "word")
    return f"done {task.done()}"


async def test_what_the_code_leaves_behind_when_it_ends_is_stopped(rig: Rig) -> None:
    async with rig.working(leaves_work):
        handle = await rig.client.start(leaves_work)
        assert await handle.result(timeout=LONG) == "done False"

    assert (await rig.records(handle)).get("left behind") in (None, "ABANDONED")
