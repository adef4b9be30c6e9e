"""Code that no longer fits its history: the run is parked, shows both sides, and goes on with other code or by a
person's word. Inputs that changed are a warning. `ctx.patched` lets new code live with old runs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from kagzi import Context, Handle, RunCancelled, Workflow, workflow
from tests.sdk.rig import LONG, Rig, rigged


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


async def say(word: str) -> str:
    return word


Code = Callable[[Context], Coroutine[Any, Any, Any]]


def order(function: Code, **options: Any) -> Workflow[None, Any]:
    """One of several definitions of the same workflow."""
    return workflow(name="order", **options)(function)


async def original(ctx: Context) -> list[Any]:
    first = await ctx.step("a", say, "a")
    second = await ctx.step("b", say, "b")
    return [first, second, await ctx.receive("go", str)]


async def reordered(ctx: Context) -> None:
    await ctx.step("b", say, "b")
    await ctx.step("a", say, "a")
    await ctx.receive("go", str)


async def removed(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    await ctx.receive("go", str)


async def renamed(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    await ctx.step("bee", say, "b")
    await ctx.receive("go", str)


async def of_another_kind(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    await ctx.sleep("b", "1ms")
    await ctx.receive("go", str)


async def extended(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    await asyncio.gather(ctx.step("extra", say, "x"), ctx.step("b", say, "b"))
    await ctx.receive("go", str)


async def shortened(ctx: Context) -> str:
    return await ctx.step("a", say, "a")


async def waits_elsewhere(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    await ctx.step("b", say, "b")
    await asyncio.Event().wait()


async def impatient(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    given_up = asyncio.create_task(ctx.step("b", say, "b"))
    await asyncio.sleep(0)
    given_up.cancel()
    await ctx.receive("go", str)


CHANGES: dict[Code, tuple[str, list[str], list[str]]] = {
    reordered: (
        "the code asks for 'b' at test_determinism.py:{+1} where 'a' is on record (number 1)",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["b (FUNCTION) at test_determinism.py:{+1}", "-", "-"],
    ),
    removed: (
        "the code asks for 'go' at test_determinism.py:{+2} where 'b' is on record (number 2)",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["a (FUNCTION) at test_determinism.py:{+1}", "go (SIGNAL) at test_determinism.py:{+2}", "-"],
    ),
    renamed: (
        "the code asks for 'bee' at test_determinism.py:{+2} where 'b' is on record (number 2)",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["a (FUNCTION) at test_determinism.py:{+1}", "bee (FUNCTION) at test_determinism.py:{+2}", "-"],
    ),
    of_another_kind: (
        "step 'b' at test_determinism.py:{+2} is a SLEEP now, and a FUNCTION on record",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["a (FUNCTION) at test_determinism.py:{+1}", "b (SLEEP) at test_determinism.py:{+2}", "-"],
    ),
    extended: (
        "the code asks for 'extra' at test_determinism.py:{+2} where 'b' is on record (number 2)",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        [
            "a (FUNCTION) at test_determinism.py:{+1}",
            "extra (FUNCTION) at test_determinism.py:{+2}",
            "-",
        ],
    ),
    shortened: (
        "the code no longer asks for 'b', 'go', which are on record",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["a (FUNCTION) at test_determinism.py:{+1}", "-", "-"],
    ),
    waits_elsewhere: (
        "the code no longer asks for 'go', which is on record",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        ["a (FUNCTION) at test_determinism.py:{+1}", "b (FUNCTION) at test_determinism.py:{+2}", "-"],
    ),
    impatient: (
        "the code gave up 'b', whose result is on record",
        ["a (FUNCTION)", "b (FUNCTION)", "go (SIGNAL)"],
        [
            "a (FUNCTION) at test_determinism.py:{+1}",
            "b (FUNCTION) at test_determinism.py:{+2}",
            "go (SIGNAL) at test_determinism.py:{+5}",
        ],
    ),
}


def lines_of(function: Code, texts: Any) -> Any:
    """The texts with the line numbers of a function, counted from its first."""
    if isinstance(texts, str):
        for offset in range(1, 9):
            texts = texts.replace(f"{{+{offset}}}", str(function.__code__.co_firstlineno + offset))
        return texts
    return [lines_of(function, text) for text in texts]


async def suspended(rig: Rig, code: Code, **options: Any) -> Handle[Any]:
    """A run of this code that waits for its signal."""
    definition = order(code, **options)
    async with rig.working(definition):
        handle = await rig.client.start(definition)
        await rig.sleeping(handle)
    return handle


async def parked(rig: Rig, handle: Handle[Any]) -> Any:
    """What a parked run shows."""
    await rig.until("select 1 from kagzi.workflow_runs where run_id = $1 and parked_hash is not null", handle.run_id)
    return (await handle.describe()).waiting


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_run_whose_code_was_changed_is_parked_until_other_code_comes(rig: Rig, change: Code) -> None:
    handle = await suspended(rig, original)
    await handle.signal("go", "went")
    async with rig.working(order(change)):
        shown = await parked(rig, handle)
    async with rig.working(order(original)):
        result = await handle.result(timeout=LONG)

    message, recorded, requested = CHANGES[change]
    assert shown == {
        "reason": "nondeterminism",
        "message": lines_of(change, message),
        "recorded": recorded,
        "requested": lines_of(change, requested),
    }
    assert result == ["a", "b", "went"]


async def test_a_parked_run_is_not_released_by_the_code_that_parked_it(rig: Rig) -> None:
    handle = await suspended(rig, original)
    await handle.signal("go", "went")
    for _ in range(2):
        async with rig.working(order(renamed)):
            await parked(rig, handle)
    (row,) = await rig.fetch("select status, claim_token from kagzi.workflow_runs where run_id = $1", handle.run_id)
    assert list(row.values()) == ["SLEEPING", None]


honest = True


async def moody(ctx: Context) -> list[Any]:
    first = await ctx.step("a" if honest else "z", say, "a")
    try:
        return [first, await ctx.receive("go", str)]
    except asyncio.CancelledError:
        await ctx.step("cleanup", say, "sorry")
        raise


async def test_a_parked_run_is_resumed_by_a_persons_word(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = await suspended(rig, moody)
    monkeypatch.setattr(f"{__name__}.honest", False)
    await handle.signal("go", "went")
    async with rig.working(order(moody)):
        await parked(rig, handle)
        monkeypatch.setattr(f"{__name__}.honest", True)
        await rig.resume(handle)
        assert await handle.result(timeout=LONG) == ["a", "went"]


async def talkative(ctx: Context) -> None:
    await ctx.step("a", say, "a")
    try:
        task = asyncio.create_task(ctx.step("bee", say, "b"))
        await asyncio.sleep(0)
        task.cancel()
        await ctx.set_state({"from": "code that does not fit"})
        ctx.now()
        ctx.patched("new")
    finally:
        await ctx.step("cleanup", say, "nobody listens")


async def test_nothing_is_recorded_of_what_code_does_that_does_not_fit(rig: Rig) -> None:
    handle = await suspended(rig, original)
    before = await rig.records(handle)
    await handle.signal("go", "went")
    async with rig.working(order(talkative)):
        await parked(rig, handle)

    assert await rig.records(handle) == before
    assert await handle.state() is None


def called_with(word: str) -> Code:
    async def calls(ctx: Context) -> list[Any]:
        return [await ctx.step("a", say, word), await ctx.receive("go", str)]

    calls.__qualname__ = f"calls_with_{word}"
    return calls


async def test_a_changed_input_is_a_warning_and_the_recorded_result_counts(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await suspended(rig, called_with("old"))
    await handle.signal("go", "went")
    with caplog.at_level(logging.WARNING, "kagzi.workflow.order"):
        async with rig.working(order(called_with("new"))):
            assert await handle.result(timeout=LONG) == ["old", "went"]

    assert "is called with another input than the one on record" in caplog.text
    assert handle.run_id in caplog.text
    [warning] = (await handle.describe()).warnings
    assert warning.step_id == "a"
    assert warning.message in caplog.text


async def test_a_warning_stands_on_the_run_once_however_often_it_is_replayed(rig: Rig) -> None:
    handle = await suspended(rig, called_with("old"))
    assert (await handle.describe()).warnings == ()
    for _ in range(2):
        async with rig.working(order(called_with("new"))):
            await handle.signal("other", "wakes nobody")
            await rig.fetch("update kagzi.workflow_runs set available_at = now() where run_id = $1", handle.run_id)
            await rig.until(
                "select 1 from kagzi.workflow_runs where run_id = $1 and warnings is not null", handle.run_id
            )
            await rig.sleeping(handle)
    [warning] = (await handle.describe()).warnings
    [listed] = [run async for run in rig.client.runs(type="order")]
    assert listed.warnings == (warning,)


@pytest.mark.parametrize("before", [True, False], ids=["asked before it was parked", "asked while it was parked"])
async def test_a_parked_run_that_is_asked_to_cancel_is_cancelled(rig: Rig, before: bool) -> None:
    handle = await suspended(rig, original)
    async with rig.working(order(renamed)):
        if not before:
            await handle.signal("go", "went")
            await parked(rig, handle)
        await handle.cancel("no longer wanted")
        with pytest.raises(RunCancelled, match=r"does not fit its history, so no cleanup ran: .* 'bee' at test_det"):
            await handle.result(timeout=LONG)
    assert (await handle.describe()).status == "CANCELLED"


async def test_a_parked_run_that_is_asked_to_cancel_cleans_up_where_its_code_fits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await suspended(rig, moody)
    monkeypatch.setattr(f"{__name__}.honest", False)
    await handle.signal("other", "wakes nobody")
    async with rig.working(order(moody)):
        await rig.fetch("update kagzi.workflow_runs set available_at = now() where run_id = $1", handle.run_id)
        await parked(rig, handle)
        monkeypatch.setattr(f"{__name__}.honest", True)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(timeout=LONG)
    assert (await rig.records(handle))["cleanup"] == "COMPLETED"


async def test_a_run_whose_recorded_result_no_longer_decodes_shows_why_it_is_parked(rig: Rig) -> None:
    handle = await suspended(rig, original)
    await handle.signal("go", "went")

    async def counted(word: str) -> int:
        return len(word)

    async def retyped(ctx: Context) -> None:
        await ctx.step("a", counted, "a")

    async with rig.working(order(retyped)):
        shown = await parked(rig, handle)
    assert "the code no longer asks for 'b', 'go'" in shown["message"]
    assert (
        "the code ended with PayloadError: The result of 'a' cannot be read: Cannot decode int at $" in shown["message"]
    )


async def test_a_changed_input_parks_a_run_of_a_workflow_with_strict_inputs(rig: Rig) -> None:
    handle = await suspended(rig, called_with("old"), strict_inputs=True)
    await handle.signal("go", "went")
    async with rig.working(order(called_with("new"), strict_inputs=True)):
        shown = await parked(rig, handle)
    async with rig.working(order(called_with("old"), strict_inputs=True)):
        assert await handle.result(timeout=LONG) == ["old", "went"]

    assert shown["message"].startswith("step 'a' at test_determinism.py:")
    assert shown["message"].endswith("is called with another input than the one on record")


async def unpatched(ctx: Context) -> list[Any]:
    return [await ctx.step("a", say, "a"), await ctx.receive("go", str), await ctx.step("b", say, "b")]


async def patched_early(ctx: Context) -> list[Any]:
    fee = [await ctx.step("fee", say, "fee")] if ctx.patched("fee") else []
    return [*fee, await ctx.step("a", say, "a"), await ctx.receive("go", str), await ctx.step("b", say, "b")]


async def patched_late(ctx: Context) -> list[Any]:
    before = [await ctx.step("a", say, "a"), await ctx.receive("go", str)]
    fee = [await ctx.step("fee", say, "fee")] if ctx.patched("fee") else []
    return [*before, *fee, await ctx.step("b", say, "b")]


async def test_a_run_that_had_passed_a_patch_keeps_to_its_path(rig: Rig) -> None:
    handle = await suspended(rig, unpatched)
    await handle.signal("go", "went")
    async with rig.working(order(patched_early)):
        assert await handle.result(timeout=LONG) == ["a", "went", "b"]


async def test_a_run_that_had_not_reached_a_patch_takes_it(rig: Rig) -> None:
    handle = await suspended(rig, unpatched)
    await handle.signal("go", "went")
    async with rig.working(order(patched_late)):
        assert await handle.result(timeout=LONG) == ["a", "went", "fee", "b"]


async def test_a_run_that_took_a_patch_takes_it_in_replay(rig: Rig) -> None:
    handle = await suspended(rig, patched_early)
    await handle.signal("go", "went")
    async with rig.working(order(patched_early)):
        assert await handle.result(timeout=LONG) == ["fee", "a", "went", "b"]

    assert list(await rig.records(handle)) == ["$patch:fee", "fee", "a", "go", "b"]
