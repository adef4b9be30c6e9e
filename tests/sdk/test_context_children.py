"""Children as the code of their parent sees them: results, errors, ids that are taken, and handles."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from kagzi import Context, RunCancelled, RunFailed, workflow
from tests.sdk.rig import LONG, Gate, Rig, rigged

gate = Gate()


@pytest.fixture(autouse=True)
def new_gate() -> None:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


@dataclass
class Parcel:
    weight: int


@workflow
async def pack(ctx: Context, parcel: Parcel) -> Parcel:
    if parcel.weight < 0:
        raise ValueError("lighter than nothing")
    if parcel.weight == 0:
        await ctx.receive("weight")
    return Parcel(parcel.weight + 1)


@workflow
async def by_object(ctx: Context) -> Parcel:
    return await ctx.run_child("pack", pack, Parcel(1))


@workflow
async def by_name(ctx: Context) -> Any:
    return (await ctx.run_child("pack", "pack", Parcel(1))).weight


@workflow
async def by_handle(ctx: Context) -> list[Any]:
    first = await ctx.start_child("first", pack, Parcel(1))
    second = await ctx.start_child("second", "pack", Parcel(2))
    results = await asyncio.gather(second.result(), first.result(), first.result())
    return [result.weight for result in results]


@pytest.mark.parametrize(("parent", "result"), [(by_object, Parcel(2)), (by_name, 2), (by_handle, [3, 2, 2])])
async def test_the_result_of_a_child_is_what_it_returned(rig: Rig, parent: Any, result: Any) -> None:
    async with rig.working(pack, parent):
        assert await rig.execute(parent) == result


@workflow
async def catches(ctx: Context, weight: int) -> dict[str, Any]:
    try:
        await ctx.run_child("pack", pack, Parcel(weight), id="the child")
    except (RunFailed, RunCancelled) as error:
        seen = {**vars(error), "text": str(error), "class": type(error).__name__}
        await ctx.step("pause", gate.wait, seen)
        return seen
    return {}


@pytest.mark.parametrize("weight", [-1, 0], ids=["failed", "cancelled"])
async def test_the_bad_end_of_a_child_is_the_same_live_and_in_replay(rig: Rig, weight: int) -> None:
    async with rig.working(pack, catches):
        handle = await rig.client.start(catches, weight)
        if weight == 0:
            await rig.until("select 1 from kagzi.workflow_runs where external_id = 'the child' and status = 'SLEEPING'")
            await (await rig.client.find("the child")).cancel("not today")
        live = await gate.arrival()
        child = await rig.client.find("the child")
    gate.open()
    async with rig.working(pack, catches):
        assert await handle.result(timeout=LONG) == live

    assert live["class"] == ("RunCancelled" if weight == 0 else "RunFailed")
    assert live["run_id"] == child.run_id
    assert ("not today" if weight == 0 else "lighter than nothing") in live["text"]


@workflow
async def shares(ctx: Context) -> list[Any]:
    handle = await ctx.start_child("mine", pack, Parcel(0), id="shared")
    return [handle.run_id, (await ctx.run_child("same", pack, Parcel(5), id="shared")).weight]


async def test_a_child_whose_id_is_taken_is_the_run_that_has_it(rig: Rig) -> None:
    async with rig.working(pack, shares):
        other = await rig.client.start(pack, Parcel(0), id="shared")
        await rig.sleeping(other)
        handle = await rig.client.start(shares)
        await rig.sleeping(handle)
        await other.signal("weight")
        assert await handle.result(timeout=LONG) == [other.run_id, 1]


@workflow
async def options(ctx: Context) -> str:
    child = await ctx.start_child(
        "pack", pack, Parcel(1), labels={"colour": "red"}, priority=4, timeout="1h", delay="1ms"
    )
    await child.result()
    return child.run_id


async def test_a_child_takes_the_options_of_a_start(rig: Rig) -> None:
    async with rig.working(pack, options):
        handle = await rig.client.start(options)
        child = await rig.client.handle(await handle.result(timeout=LONG)).describe()

    assert (child.labels, child.priority, child.parent_run_id) == ({"colour": "red"}, 4, handle.run_id)
    assert child.deadline_at is not None


@workflow
async def gives_up(ctx: Context) -> str:
    try:
        await asyncio.wait_for(ctx.run_child("pack", pack, Parcel(0), id="left"), 0.05)
    except TimeoutError:
        return "gave up"
    return ""


async def test_a_child_that_nobody_waits_for_any_more_is_asked_to_cancel(rig: Rig) -> None:
    async with rig.working(pack, gives_up):
        assert await rig.execute(gives_up) == "gave up"
        with pytest.raises(RunCancelled):
            await (await rig.client.find("left")).result(timeout=LONG)


@workflow
async def selects(ctx: Context) -> list[Any]:
    late = await ctx.start_child("late", pack, Parcel(0))
    which, value = await ctx.select(
        slow=late.result(), quick=ctx.run_child("quick", pack, Parcel(3)), timer=ctx.sleep("timer", "1h")
    )
    return [which, value.weight]


async def test_children_can_be_selected_from(rig: Rig) -> None:
    async with rig.working(pack, selects):
        assert await rig.execute(selects) == ["quick", 4]
