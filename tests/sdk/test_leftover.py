"""What workflow code leaves behind when it ends: tasks are cancelled as `asyncio.run` does it, their cleanup runs and
is on record, and the run ends when none of them lives, here or in the next worker.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kagzi import Context, Handle, StepFailed, workflow
from kagzi.errors import KagziError
from tests.sdk import branches
from tests.sdk.rig import LONG, Gate, Marks, Rig, doomed, rigged

gate = Gate()
events: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    gate = Gate()
    events.clear()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url, coordinator_interval_secs=0.2) as rig:
        yield rig


async def note(event: Any) -> Any:
    events.append(event)
    return event


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Marks:
    made = Marks(tmp_path / "marks")
    monkeypatch.setenv(*made.environment.popitem())
    return made


async def begin(rig: Rig, *ways: str) -> dict[str, Handle[Any]]:
    """A run for each way, whose branches wait and whose code is about to end."""
    handles = {how: await rig.client.start(branches.ends, how, timeout="1h") for how in ways}
    await rig.until(
        "select 1 from kagzi.step_runs where step_id in ('wait a', 'wait b') having count(*) = $1", 2 * len(handles)
    )
    for how, handle in handles.items():
        if how == "cancel":
            await handle.cancel()
        elif how == "deadline":
            # Its time is up now, not at some moment that a slow machine might not wait for.
            now = "update kagzi.workflow_runs set deadline_at = kagzi.now() where run_id = $1"
            await rig.fetch(now, handle.run_id)
        else:
            await handle.signal("go")
    return handles


async def outcome(handle: Handle[Any]) -> Any:
    try:
        return await handle.result(timeout=LONG)
    except KagziError as error:
        return type(error)


async def check(rig: Rig, marks: Marks, handles: dict[str, Handle[Any]]) -> dict[str, dict[str, str]]:
    """Every branch has undone what it did, once and on record, and every run has ended as its code did."""
    every: dict[str, dict[str, str]] = {}
    done = [json.loads(line) for line in marks.read()]
    for how, handle in handles.items():
        assert await outcome(handle) == branches.WAYS[how][1], how
        records = every[how] = await rig.records(handle)
        assert {records["wait a"], records["wait b"]} == {"ABANDONED"}, how
        cleanup = {records[f"{what} {name}"] for what in ("ask", "hang", "cool", "undo") for name in "ab"}
        assert cleanup == {"COMPLETED"}, how
        each = sorted(what for run_id, what in done if run_id == handle.run_id)
        assert each == ["ask a", "ask b", "do a", "do b", "undo a", "undo b"], how
        assert not (await handle.describe()).warnings, how
    return every


async def test_the_cleanup_of_every_branch_runs_and_is_on_record_however_the_code_ends(rig: Rig, marks: Marks) -> None:
    async with rig.working(branches.ends):
        handles = await begin(rig, *branches.WAYS)
        for handle in handles.values():
            await outcome(handle)
        records = await check(rig, marks, handles)
        # The code does it all again, with what is on record.
        for handle in handles.values():
            await rig.replay(handle)
    assert await check(rig, marks, handles) == records


async def test_the_cleanup_of_branches_goes_on_where_a_killed_worker_left_it(database_url: str, marks: Marks) -> None:
    async with rigged(database_url, lease=2.0) as rig:
        with doomed(rig, "tests.sdk.branches", **{branches.DOOMED: "1"}) as worker:
            # Not that of the deadline: 30 s after it a run is ended, wherever its worker is.
            handles = await begin(rig, *(how for how in branches.WAYS if how != "deadline"))
            for _ in handles:
                await worker.says("hangs")
                await worker.says("hangs")
            worker.kill()
        async with rig.working(branches.ends, in_place=False):
            for handle in handles.values():
                await outcome(handle)
        await check(rig, marks, handles)


@workflow
async def undisturbed(ctx: Context) -> str:
    """One branch is over its cleanup sooner than the other, and the end of the code comes in between."""

    async def undoes(name: str, steps: int) -> None:
        try:
            await ctx.sleep(f"wait {name}", "1h")
        finally:
            for _ in range(steps):
                await ctx.step(f"undo {name}", note, name)

    try:
        async with asyncio.timeout(0.05):
            await asyncio.gather(undoes("quick", 1), undoes("slow", 4))
    except TimeoutError:
        return "late"
    return "in time"


async def test_a_task_that_cleans_up_already_is_not_cancelled_again(rig: Rig) -> None:
    async with rig.working(undisturbed):
        assert await rig.execute(undisturbed) == "late"

    assert sorted(events) == ["quick", "slow", "slow", "slow", "slow"]


@workflow
async def one_line(ctx: Context) -> str:
    """Branch and cleanup wait by the same function, in which the cancel came."""

    async def nap(length: str) -> None:
        await ctx.sleep("nap", length)

    async def doze(length: float) -> None:
        await asyncio.sleep(length)

    async def undoes(wait: Callable[[Any], Awaitable[None]], long: Any, short: Any) -> None:
        try:
            await wait(long)
        finally:
            for _ in range(5):
                await wait(short)
            await ctx.step("undo", note, "undo")

    kept = [asyncio.create_task(undoes(nap, "1h", "1ms")), asyncio.create_task(undoes(doze, 3_600, 0.001))]
    await ctx.step("begin", note, "begin")
    return f"{len(kept)} left"


async def test_a_cleanup_that_waits_as_its_branch_did_is_not_taken_for_stubborn(rig: Rig) -> None:
    async with rig.working(one_line):
        handle = await rig.client.start(one_line)
        assert await handle.result(timeout=LONG) == "2 left"
        assert not (await handle.describe()).warnings

    assert events == ["begin", "undo", "undo"]


@workflow
async def gets_over_it(ctx: Context) -> str:
    """A task in whose timeout the code ends: it gets over the timeout, and is cancelled then."""

    async def patient() -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    try:
                        await ctx.sleep("inner", "1h")
                    finally:
                        reached.set()
                        await ctx.step("tidy", gate.wait)
            await ctx.sleep("outer", "1h")
        finally:
            await ctx.step("undo", note, "undo")

    reached = asyncio.Event()
    kept = asyncio.create_task(patient())
    await reached.wait()
    return kept.get_name()


async def test_a_task_that_gets_over_a_timeout_of_its_own_is_cancelled_then(rig: Rig) -> None:
    async with rig.working(gets_over_it):
        handle = await rig.client.start(gets_over_it)
        await gate.arrival()
        gate.open()
        assert await handle.result(timeout=LONG) == "Task-2"

    assert events == ["undo"]
    assert (await rig.records(handle))["tidy"] == "COMPLETED"


@workflow
async def generates(ctx: Context) -> str:
    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await ctx.sleep("cool", "10ms")
            await ctx.step("undo", note, "undo")

    async for number in numbers():
        if number == 1:
            break
    return "enough"


@pytest.mark.parametrize("in_place", [True, False])
async def test_a_generator_that_was_not_finished_cleans_up(rig: Rig, in_place: bool) -> None:
    async with rig.working(generates, in_place=in_place):
        assert await rig.execute(generates) == "enough"

    assert events == ["undo"]


@workflow
async def spawns(ctx: Context) -> str:
    """The cleanup of a task leaves a task behind itself."""

    async def second() -> None:
        try:
            await ctx.sleep("second", "1h")
        finally:
            await ctx.step("undo second", note, "second")

    async def first() -> None:
        try:
            await ctx.sleep("first", "1h")
        finally:
            kept.append(asyncio.create_task(second()))
            await ctx.step("undo first", note, "first")

    kept = [asyncio.create_task(first())]
    await ctx.step("begin", note, "begin")
    return "over"


async def test_what_a_cleanup_leaves_behind_is_cancelled_after_it(rig: Rig) -> None:
    async with rig.working(spawns):
        assert await rig.execute(spawns) == "over"

    assert events == ["begin", "first", "second"]


@workflow
async def fails_to_clean(ctx: Context) -> str:
    async def clumsy() -> None:
        try:
            await ctx.sleep("long", "1h")
        finally:
            await ctx.step("undo", branches.breaks)

    kept = asyncio.create_task(clumsy())
    await ctx.step("begin", note, "begin")
    return kept.get_name()


async def test_a_cleanup_that_fails_is_told_of_in_the_log_and_changes_no_end(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.working(fails_to_clean):
        assert await rig.execute(fails_to_clean) == "Task-2"

    assert any(isinstance(record.exc_info and record.exc_info[1], StepFailed) for record in caplog.records)


async def ticks(ctx: Context) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.sleep("tick", "1h")


async def ticks_in_asyncio(ctx: Context) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


async def listens(ctx: Context) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.receive("word", timeout="1h")


async def takes_it_back(ctx: Context) -> None:
    while True:
        try:
            await ctx.sleep("tick", "1h")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()


async def waits_for_nothing(ctx: Context) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


async def spins(ctx: Context) -> None:
    delay = 3_600
    while True:
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            delay = 0


STUBBORN = {each.__name__: each for each in (ticks, ticks_in_asyncio, listens, takes_it_back, waits_for_nothing, spins)}


@workflow
async def refused(ctx: Context, how: str) -> str:
    kept = [asyncio.create_task(STUBBORN[how](ctx)), asyncio.create_task(branches.branch(ctx, "a"))]
    await ctx.receive("go")
    return f"{len(kept)} left"


async def test_a_task_that_does_not_end_is_left_behind_with_a_warning(rig: Rig, marks: Marks) -> None:
    async with rig.working(refused):
        handles = {how: await rig.client.start(refused, how) for how in STUBBORN}
        await rig.until("select 1 from kagzi.step_runs where step_id = 'wait a' having count(*) = $1", len(handles))
        for how, handle in handles.items():
            await handle.signal("go")
            assert await handle.result(timeout=LONG) == "2 left", how
            (warning,) = (await handle.describe()).warnings
            assert "after the workflow had ended" in warning.message, how
            records = await rig.records(handle)
            assert await rig.replay(handle) == "2 left"
            assert await rig.records(handle) == records
            # Only one that leaves no room for others costs them their cleanup.
            assert ("undo a" in records) == (how != "spins"), how


@workflow
async def mulls(ctx: Context) -> str:
    async def slow() -> None:
        try:
            await ctx.sleep("long", "1h")
        except asyncio.CancelledError:
            await ctx.receive("leave")
            await ctx.step("undo", note, "undo")

    kept = asyncio.create_task(slow())
    await ctx.step("begin", note, "begin")
    return kept.get_name()


async def test_a_run_that_is_given_back_after_its_code_has_ended_says_what_it_waits_for(rig: Rig) -> None:
    async with rig.working(mulls):
        handle = await rig.client.start(mulls)
        await rig.sleeping(handle)
        (warning,) = (await handle.describe()).warnings
        assert "the workflow has ended, and its run waits for the cleanup of 'Task-2', at 'leave'" in warning.message
        # A cleanup is waited for, however long: a cancel disturbs it no more than the end of the code did.
        await handle.cancel()
        await handle.signal("leave")
        assert await handle.result(timeout=LONG) == "Task-2"

    assert events == ["begin", "undo"]
