"""Cancel, deadline and terminate: what the code hears of them, in every kind of wait, and what its cleanup can do."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from kagzi import Context, Handle, Retry, RunCancelled, RunFailed, step, workflow
from tests.sdk.rig import LONG, Gate, Rig, rigged

gate = Gate()
release = threading.Event()
events: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()
    release.clear()
    events.clear()
    yield
    release.set()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


async def note(event: Any) -> Any:
    events.append(event)
    return event


async def body() -> None:
    try:
        await gate.wait()
    finally:
        events.append("the body was stopped")


def thread() -> None:
    gate.note()
    release.wait(LONG)


async def fails() -> None:
    raise ValueError("later")


@workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep("nap", "1h")
    return "rested"


async def in_a_task(wait: Awaitable[Any]) -> Any:
    return await asyncio.create_task(asyncio.wait_for(wait, 3_600))


Wait = Callable[[Context], Awaitable[Any]]

HOUR = Retry(initial="1h", max_interval="1h")
WAITS: dict[str, tuple[Wait, dict[str, str]]] = {
    "a body": (lambda ctx: ctx.step("wait", body), {"wait": "ABANDONED"}),
    "a thread": (lambda ctx: ctx.step("wait", thread), {"wait": "ABANDONED"}),
    "a body in doubt": (lambda ctx: ctx.step("wait", step(effect=True)(body)), {"wait": "UNKNOWN"}),
    "a person": (lambda ctx: ctx.step("wait", step(effect=True)(fails)), {"wait": "UNKNOWN"}),
    "another attempt": (lambda ctx: ctx.step("wait", step(retry=HOUR)(fails)), {"wait": "FAILED"}),
    "a timer": (lambda ctx: ctx.sleep("wait", "1h"), {"wait": "ABANDONED"}),
    "a moment": (lambda ctx: ctx.sleep_until("wait", ctx.now() + timedelta(hours=1)), {"wait": "ABANDONED"}),
    "a timer of asyncio": (lambda _: asyncio.sleep(3_600), {"$timer": "ABANDONED"}),
    "a signal": (lambda ctx: ctx.receive("wait"), {"wait": "ABANDONED"}),
    "a signal for a while": (lambda ctx: ctx.receive("wait", timeout="1h"), {"wait": "ABANDONED"}),
    "a child": (lambda ctx: ctx.run_child("wait", nap), {"wait": "ABANDONED"}),
    "several": (
        lambda ctx: asyncio.gather(ctx.sleep("wait", "1h"), ctx.receive("wait", timeout="1h")),
        {"wait": "ABANDONED", "wait#2": "ABANDONED"},
    ),
    "the first of several": (
        lambda ctx: ctx.select(ctx.sleep("wait", "1h"), ctx.receive("wait")),
        {"wait": "ABANDONED", "wait#2": "ABANDONED"},
    ),
    "a task with a limit": (lambda ctx: in_a_task(ctx.receive("wait")), {"wait": "ABANDONED", "$timer": "ABANDONED"}),
}


@workflow
async def waits(ctx: Context, how: list[Any]) -> None:
    which, held = how
    # A run with a body stays with its worker.
    busy = asyncio.create_task(ctx.step("busy", gate.wait)) if held else None
    try:
        await WAITS[which][0](ctx)
    except asyncio.CancelledError as error:
        await ctx.step("except", note, str(error))
        raise
    finally:
        await ctx.step("finally", note, "cleaned")
        if busy is not None:
            busy.cancel()


# A run with a body is never given back.
BODIES = ("a body", "a thread", "a body in doubt")
HOW = [(which, held) for which in WAITS for held in (True, False) if held or which not in BODIES]


@pytest.mark.parametrize(
    ("which", "held"), HOW, ids=lambda given: {True: "held", False: "given back"}.get(given, given)
)
async def test_a_cancel_is_raised_where_the_code_waits_for(rig: Rig, which: str, held: bool) -> None:
    async with rig.working(waits, nap):
        handle = await rig.client.start(waits, [which, held])
        if held:
            await rig.until(
                "select 1 from kagzi.step_runs where run_id = $1 and step_id = any ($2) "
                "and status in ('RUNNING', 'UNKNOWN', 'FAILED') having count(*) = $3",
                handle.run_id,
                list(WAITS[which][1]),
                len(WAITS[which][1]),
            )
            if which in BODIES:
                await asyncio.gather(gate.arrival(), gate.arrival())
        else:
            await rig.sleeping(handle)
        await handle.cancel("that is enough")
        with pytest.raises(RunCancelled, match="that is enough"):
            await handle.result(timeout=LONG)
        release.set()
        if which == "a child":
            # The child hears of it from a worker too.
            (child,) = [run async for run in rig.client.runs(type="nap")]
            with pytest.raises(RunCancelled):
                await rig.client.handle(child.run_id).result(timeout=LONG)

    records = await rig.records(handle)
    assert events == (["the body was stopped"] if "body" in which else []) + ["that is enough", "cleaned"]
    assert records | WAITS[which][1] == records
    assert records["$cancel"] == records["except"] == records["finally"] == "COMPLETED"


@workflow
async def slow_to_leave(ctx: Context) -> None:
    try:
        await ctx.sleep("long", "1h")
    finally:
        await ctx.sleep("cool down", "30ms")
        await asyncio.sleep(0.01)
        await ctx.step("finally", note, "cleaned")


@pytest.mark.parametrize("in_place", [True, False])
async def test_cleanup_may_sleep(rig: Rig, in_place: bool) -> None:
    async with rig.working(slow_to_leave, in_place=in_place):
        handle = await rig.client.start(slow_to_leave)
        await rig.sleeping(handle)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=LONG)

    assert events == ["cleaned"]


@workflow
async def interrupted_cleanup(ctx: Context) -> None:
    try:
        await ctx.sleep("long", "1h")
    except asyncio.CancelledError as error:
        await ctx.step("before", note, str(error))
        await ctx.step("pause", gate.wait)
        await ctx.step("after", note, str(error))
        raise


async def test_a_cleanup_goes_on_in_another_worker(rig: Rig) -> None:
    async with rig.working(interrupted_cleanup):
        handle = await rig.client.start(interrupted_cleanup)
        await rig.sleeping(handle)
        await handle.cancel("the reason")
        await gate.arrival()
    gate.open()
    async with rig.working(interrupted_cleanup):
        with pytest.raises(RunCancelled, match="the reason"):
            await handle.result(timeout=LONG)

    assert events == ["the reason", "the reason"]


@workflow
async def stubborn(ctx: Context) -> str:
    try:
        await ctx.sleep("long", "1h")
    except asyncio.CancelledError:
        return await ctx.step("finish", note, "finished anyway")
    return "slept"


async def test_a_run_that_returns_after_a_cancel_is_completed(rig: Rig) -> None:
    async with rig.working(stubborn):
        handle = await rig.client.start(stubborn)
        await rig.sleeping(handle)
        await handle.cancel()
        assert await handle.result(timeout=LONG) == "finished anyway"


@workflow
async def clumsy(ctx: Context) -> None:
    try:
        await ctx.sleep("long", "1h")
    finally:
        raise ValueError("while cleaning up")


async def test_a_run_that_fails_after_a_cancel_is_cancelled(rig: Rig) -> None:
    async with rig.working(clumsy):
        handle = await rig.client.start(clumsy)
        await rig.sleeping(handle)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=LONG)


async def test_a_run_that_never_started_is_cancelled_at_once(rig: Rig) -> None:
    handle = await rig.client.start(stubborn)

    assert await handle.cancel() == "CANCELLED"


@workflow
async def saga(ctx: Context) -> str:
    undo: list[str] = []
    try:
        for name in ("flight", "hotel", "car"):
            await ctx.step(f"book {name}", note, f"book {name}")
            undo.append(name)
        await ctx.receive("confirmed")
        return "booked"
    except asyncio.CancelledError:
        for name in reversed(undo):
            await ctx.step(f"cancel {name}", note, f"cancel {name}")
        raise


async def test_a_saga_undoes_what_it_did(rig: Rig) -> None:
    async with rig.working(saga):
        handle = await rig.client.start(saga)
        await rig.sleeping(handle)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=LONG)

    booked = ["book flight", "book hotel", "book car"]
    assert events == [*booked, "cancel car", "cancel hotel", "cancel flight"]
    assert list(await rig.records(handle)) == [
        *booked,
        "confirmed",
        "$cancel",
        "cancel car",
        "cancel hotel",
        "cancel flight",
    ]


@workflow
async def family(ctx: Context) -> None:
    await ctx.start_child("close", nap, labels={"which": "close"})
    await ctx.start_child("far", nap, labels={"which": "far"}, detached=True)
    await ctx.sleep("long", "1h")


async def children(rig: Rig) -> dict[str, Handle[Any]]:
    return {run.labels["which"]: rig.client.handle(run.run_id, nap) async for run in rig.client.runs(type="nap")}


@pytest.mark.parametrize("end", ["cancel", "terminate"])
async def test_the_end_of_a_parent_cancels_its_children_unless_they_are_detached(rig: Rig, end: str) -> None:
    async with rig.working(family, nap):
        handle = await rig.client.start(family)
        await rig.sleeping(handle)
        kids = await children(rig)
        await getattr(handle, end)("over")
        with pytest.raises(RunCancelled):
            await handle.result(timeout=LONG)
        with pytest.raises(RunCancelled):
            await kids["close"].result(timeout=LONG)
        assert (await kids["far"].describe()).status == "SLEEPING"


@workflow
async def hasty(ctx: Context) -> str:
    await ctx.start_child("close", nap, labels={"which": "close"})
    return "done"


async def test_a_parent_that_returns_leaves_its_children_alone(rig: Rig) -> None:
    async with rig.working(hasty, nap):
        assert await rig.execute(hasty) == "done"
        kids = await children(rig)
        await rig.sleeping(kids["close"])


@workflow
async def overtime(ctx: Context, returns: bool) -> str:
    try:
        await ctx.sleep("long", "1h")
    except asyncio.CancelledError:
        await ctx.step("cleanup", note, "cleaned")
        if not returns:
            raise
    return "in the end"


async def test_a_run_whose_time_is_up_cleans_up_and_has_failed(rig: Rig) -> None:
    async with rig.working(overtime):
        with pytest.raises(RunFailed) as caught:
            await rig.execute(overtime, False, timeout="100ms")

    assert caught.value.type == "DeadlineExceeded"
    assert events == ["cleaned"]


async def test_a_run_whose_time_is_up_may_still_return(rig: Rig) -> None:
    async with rig.working(overtime):
        assert await rig.execute(overtime, True, timeout="100ms") == "in the end"


@workflow(timeout="100ms")
async def declared(ctx: Context) -> None:
    await ctx.sleep("long", "1h")


async def test_a_workflow_can_declare_its_time_limit(rig: Rig) -> None:
    async with rig.working(declared):
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await rig.execute(declared)


@workflow
async def busy(ctx: Context) -> None:
    try:
        await ctx.step("wait", body)
    finally:
        await ctx.step("finally", note, "cleaned")


async def test_terminate_ends_a_run_now_whatever_it_does(rig: Rig) -> None:
    async with rig.working(busy, drain=LONG):
        handle = await rig.client.start(busy)
        await gate.arrival()
        assert await handle.terminate("at once") == "CANCELLED"
        with pytest.raises(RunCancelled, match="at once"):
            await handle.result(timeout=LONG)
    # The worker, which waits for what it holds, heard of it: its body was stopped, and no cleanup ran.
    assert events == ["the body was stopped"]
    assert "finally" not in await rig.records(handle)


@workflow
async def gives_itself_up(ctx: Context) -> None:
    raise asyncio.CancelledError


async def test_code_that_cancels_itself_has_failed(rig: Rig) -> None:
    async with rig.working(gives_itself_up):
        with pytest.raises(RunFailed, match="although nobody asked the run to cancel"):
            await rig.execute(gives_itself_up)
