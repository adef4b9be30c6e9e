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

from kagzi import Context, Handle, RunCancelled, RunFailed, StepFailed, workflow
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


@workflow
async def machines(ctx: Context, how: str) -> None:
    """What waits for a machine to be up waits for it to be down, too: at the same line."""

    async def until(what: str, pause: str) -> None:
        for _ in range(4):
            await ctx.step(f"look {what}", note, what)
            await ctx.sleep("pause", pause)

    async def machine(name: str) -> None:
        try:
            await until(f"{name} up", "1h")
        finally:
            await until(f"{name} down", "1ms")
            await ctx.step(f"delete {name}", note, f"delete {name}")

    async def sibling() -> None:
        await ctx.receive("go")
        raise ValueError("go")

    # It has nothing to undo: with it the gather is over, and the others go on.
    other = sibling() if how == "sibling" else ctx.sleep("plain", "1h")
    await asyncio.gather(other, machine("a"), machine("b"))


@pytest.mark.parametrize("how", ["cancel", "sibling"])
async def test_a_cleanup_may_wait_where_the_work_did(rig: Rig, how: str) -> None:
    async with rig.working(machines):
        handle = await rig.client.start(machines, how)
        await rig.until("select 1 from kagzi.step_runs where step_id like 'pause%' having count(*) = 2")
        await (handle.cancel() if how == "cancel" else handle.signal("go"))
        assert await outcome(handle) == (RunCancelled if how == "cancel" else RunFailed)

    assert sorted(events) == sorted(["a up", "b up", *4 * ["a down", "b down"], "delete a", "delete b"])
    assert not (await handle.describe()).warnings


@workflow
async def swallowed_before(ctx: Context) -> None:
    async def reminds() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.sleep("pause", "1h")
        await ctx.step("remind", note, "remind")
        try:
            await ctx.receive("answer")
        finally:
            await ctx.step("undo", note, "undo")

    reminder = asyncio.create_task(reminds())
    await ctx.sleep("while", "1ms")
    reminder.cancel()
    await ctx.receive("go")
    raise ValueError("withdrawn")


async def test_a_task_that_once_went_on_after_a_cancel_hears_of_the_end(rig: Rig) -> None:
    async with rig.working(swallowed_before):
        handle = await rig.client.start(swallowed_before)
        await rig.until("select 1 from kagzi.step_runs where step_id = 'answer'")
        await handle.signal("go")
        assert await outcome(handle) is RunFailed

    assert events == ["remind", "undo"]


@workflow
async def phoenix(ctx: Context) -> str:
    async def waits() -> None:
        await asyncio.Event().wait()

    def rises(_: Any = None) -> None:
        asyncio.create_task(waits()).add_done_callback(rises)

    rises()
    await ctx.receive("go")
    return "ashes"


@workflow
async def neighbour(ctx: Context) -> str:
    await ctx.receive("go")
    return "fine"


async def test_a_task_that_starts_anew_whenever_it_is_cancelled_is_left_behind(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig.working(phoenix, neighbour):
        other, handle = await rig.client.start(neighbour), await rig.client.start(phoenix)
        await handle.signal("go")
        assert await handle.result(timeout=LONG) == "ashes"
        await other.signal("go")
        assert await other.result(timeout=LONG) == "fine"

    (warning,) = (await handle.describe()).warnings
    assert "'phoenix.<locals>.waits' at test_leftover.py:" in warning.message
    assert any(f"{warning.message} (run {handle.run_id} of 'phoenix')" in each for each in caplog.messages)


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


async def ticks(ctx: Context) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await ctx.sleep("tick", "1h")


async def hears_twice(ctx: Context) -> None:
    """Goes on after a cancel, and ends with the next."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3_600)
    try:
        await ctx.receive("word")
    finally:
        await ctx.step("undo", note, "undo")


KEPT = {each.__name__: each for each in (waits_for_nothing, spins, ticks, hears_twice)}


@workflow
async def keeps(ctx: Context, how: str) -> str:
    kept = [asyncio.create_task(KEPT[how](ctx)), asyncio.create_task(branches.branch(ctx, "a"))]
    await ctx.receive("go")
    return f"{len(kept)} left"


async def keep(rig: Rig, how: str) -> Handle[str]:
    """A run whose root is about to be done."""
    handle = await rig.client.start(keeps, how)
    await rig.until("select 1 from kagzi.step_runs where run_id = $1 and step_id = 'wait a'", handle.run_id)
    await handle.signal("go")
    return handle


@pytest.mark.parametrize("how", ["waits_for_nothing", "spins"])
async def test_a_task_that_nothing_can_wake_or_that_never_rests_is_left_behind(
    rig: Rig, marks: Marks, how: str
) -> None:
    async with rig.working(keeps):
        handle = await keep(rig, how)
        assert await handle.result(timeout=LONG) == "2 left"
        (warning,) = (await handle.describe()).warnings
        assert f"after the workflow had ended, {how!r} at test_leftover.py:" in warning.message
        records = await rig.records(handle)
        assert await rig.replay(handle) == "2 left"
        assert await rig.records(handle) == records
        # Only one that leaves no room for others costs them their cleanup.
        assert ("undo a" in records) == (how != "spins")


WAITS = "the workflow has ended, and its run waits for"


async def test_a_task_that_goes_on_keeps_its_run_which_says_so_until_it_is_terminated(rig: Rig, marks: Marks) -> None:
    async with rig.working(keeps):
        handle = await keep(rig, "ticks")
        undone = "select 1 from kagzi.step_runs where step_id = 'undo a' and status = 'COMPLETED'"
        await rig.until(undone)
        await rig.until("select 1 from kagzi.workflow_runs where status = 'SLEEPING' and warnings ? '$left'")
        (warning,) = (await handle.describe()).warnings
        assert f"{WAITS} 'ticks' at test_leftover.py:" in warning.message
        assert "at 'tick#2'. Cancel it" in warning.message
        await handle.cancel()
        await rig.until("select 1 from kagzi.step_runs where step_id = 'tick#3'")
        assert (await rig.sleeping(handle))[0]["step"] == "tick#3"
        await handle.terminate()
        assert await outcome(handle) is RunCancelled


async def test_a_cancel_after_the_root_is_done_is_heard_by_all_that_live(rig: Rig, marks: Marks) -> None:
    async with rig.working(keeps):
        handle = await keep(rig, "hears_twice")
        await rig.until("select 1 from kagzi.workflow_runs where status = 'SLEEPING' and warnings ? '$left'")
        await handle.cancel()
        assert await handle.result(timeout=LONG) == "2 left"
        records = await rig.records(handle)
        assert (records["$cancel"], records["word"], records["undo"]) == ("COMPLETED", "ABANDONED", "COMPLETED")
        assert await rig.replay(handle) == "2 left"
        assert await rig.records(handle) == records

    assert events == ["undo"]


@workflow
async def mulls(ctx: Context, what: str) -> str:
    async def slow() -> None:
        try:
            await ctx.sleep("long", "1h")
        except asyncio.CancelledError:
            if what == "child":
                await ctx.run_child("child", neighbour)
            else:
                await ctx.receive("leave")
            await ctx.step("undo", note, "undo")

    kept = asyncio.create_task(slow())
    await ctx.step("begin", note, "begin")
    return kept.get_name()


async def test_a_run_that_is_given_back_after_its_code_has_ended_says_what_it_waits_for(rig: Rig) -> None:
    async with rig.working(mulls):
        handle = await rig.client.start(mulls, "signal")
        await rig.sleeping(handle)
        (warning,) = (await handle.describe()).warnings
        assert f"{WAITS} 'mulls.<locals>.slow' at test_leftover.py:" in warning.message
        assert "at 'leave'" in warning.message
        await handle.signal("leave")
        assert await handle.result(timeout=LONG) == "Task-2"

    assert events == ["begin", "undo"]


async def test_a_cleanup_that_waits_for_a_child_warns_nobody(rig: Rig) -> None:
    async with rig.working(mulls, neighbour):
        handle = await rig.client.start(mulls, "child")
        await rig.sleeping(handle)
        assert not (await handle.describe()).warnings
        (row,) = await rig.until("select run_id::text from kagzi.workflow_runs where parent_run_id = $1", handle.run_id)
        await rig.client.handle(row["run_id"]).signal("go")
        assert await handle.result(timeout=LONG) == "Task-2"

    assert events == ["begin", "undo"]
