"""Mistakes that users make in workflows and bodies: each is told where it was made, and costs nobody else anything."""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kagzi import Client, Context, Retry, RunFailed, StepFailed, step, workflow
from kagzi.errors import ConfigError
from tests.sdk.rig import LONG, Rig, rigged


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


async def exits_soon(code: Any) -> None:
    sys.exit(code)


def exits(code: Any) -> None:
    raise KeyboardInterrupt(code)


@workflow(step_retry=Retry(max_attempts=1))
async def leaves(ctx: Context) -> list[str]:
    seen = []
    for function in (exits_soon, exits):
        try:
            await ctx.step("leave", function, "enough")
        except StepFailed as error:
            seen.append(f"{error.type}: {error.message}")
    return seen


async def test_a_body_that_exits_ends_its_step_and_not_its_worker(rig: Rig) -> None:
    async with rig.working(leaves):
        assert await rig.execute(leaves) == ["SystemExit: enough", "KeyboardInterrupt: enough"]
        assert await rig.execute(leaves)


@step
async def plain() -> None: ...


async def undecorated(ctx: Context) -> None: ...


WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a step": (plain, {}, r"decorated with @workflow, or by its name, and not as Step 'plain'"),
    "a function": (undecorated, {}, "and not as function 'undecorated'"),
    "nothing": (None, {}, "and not as NoneType None"),
    "a number": (5, {}, "and not as int 5"),
    "no name": ("", {}, "workflow must be 1 to 255 bytes"),
    "labels": ("x", {"labels": 5}, "labels=5 must be a mapping of texts"),
    "a label": ("x", {"labels": {"a": 1}}, r"labels\['a'\] must be 1 to 255 bytes of printable text, got 1"),
    "retry": ("x", {"retry": 5}, "retry=5 must be a Retry"),
    "priority": ("x", {"priority": True}, "priority=True must be a whole number"),
    "id": ("x", {"id": 5}, "id must be 1 to 255 bytes of printable text, got 5"),
}


@workflow
async def starts(ctx: Context, what: str) -> None:
    given, options, _ = WRONG[what]
    await ctx.run_child("child", given, None, **options)


@pytest.mark.parametrize("what", WRONG)
async def test_a_child_that_cannot_be_started_fails_its_parent_and_says_why(rig: Rig, what: str) -> None:
    async with rig.working(starts):
        with pytest.raises(RunFailed, match=WRONG[what][2]):
            await rig.execute(starts, what)
    assert len([run async for run in rig.client.runs()]) == 1


@workflow
async def calls_home(ctx: Context, address: str) -> list[str]:
    seen = []
    async with Client(address) as client:
        handle = client.handle(ctx.run_id)
        for call in (client.start("x"), handle.result(), handle.describe(), handle.signal("x")):
            try:
                await call
            except RuntimeError as error:
                seen.append(str(error))
    return seen


async def test_a_client_in_workflow_code_says_that_it_belongs_into_a_step(rig: Rig) -> None:
    async with rig.working(calls_home):
        told = await rig.execute(calls_home, rig.address)
    calls = ["client.start()", "handle.result()", "a call of a Client", "a call of a Client"]
    for call, message in zip(calls, told, strict=True):
        assert message.startswith(f"{call} is not possible in workflow code")
        assert "do this in a step" in message


WAITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no name": (
        lambda ctx: ctx.step(plain, 1),
        r"pass its name, the function and the arguments separately, as ctx.step",
    ),
    "no wait": (lambda ctx: ctx.select(late=5), "waits for what can be awaited, as .*; 'late' is 5"),
    "no type": (lambda ctx: ctx.receive("go", plain), "Cannot use Step.*no encoded form"),
    "no input": (lambda ctx: ctx.run_child("child", starts), "'starts' takes an input of type str, and was given none"),
}


@workflow
async def waits(ctx: Context, what: str) -> None:
    await WAITS[what][0](ctx)


@pytest.mark.parametrize("what", WAITS)
async def test_what_cannot_be_waited_for_fails_the_run_and_says_why(rig: Rig, what: str) -> None:
    async with rig.working(waits, starts):
        with pytest.raises(RunFailed, match=WAITS[what][1]):
            await rig.execute(waits, what)
    assert len([run async for run in rig.client.runs()]) == 1


@step
def price(cents: int) -> int:
    return cents + 1


@step
async def total(cents: int) -> int:
    return int(price(cents) + price(cents))


@workflow
async def calls_directly(ctx: Context) -> int:
    return await total(1) if ctx.labels else await ctx.step("total", total, 1)


async def test_a_step_that_is_called_in_workflow_code_is_refused_and_elsewhere_is_the_function(rig: Rig) -> None:
    async with rig.working(calls_directly):
        assert (price(1), await total(1), await rig.execute(calls_directly)) == (2, 4, 4)
        handle = await rig.client.start(calls_directly, labels={"direct": "yes"})
        with pytest.raises(RunFailed, match=r"calling the step 'total' directly .* await ctx.step\('total', total"):
            await handle.result(timeout=LONG)


@workflow
async def defaulted(ctx: Context, days: int = 7) -> int:
    if days == 1:
        ctx.continue_as_new()
    return days


@workflow
async def parent(ctx: Context) -> list[int]:
    return [await ctx.run_child("with", defaulted, 3), await ctx.run_child("without", "defaulted")]


async def test_a_run_that_is_started_without_input_gets_the_default(rig: Rig) -> None:
    async with rig.working(defaulted, parent):
        assert await rig.execute(defaulted, 2) == 2
        assert await rig.execute(defaulted) == 7
        assert await (await rig.client.start("defaulted")).result(timeout=LONG) == 7
        assert await rig.execute(defaulted, 1) == 7
        assert await rig.execute(parent) == [3, 7]


ready = False


@workflow
async def ill_behaved(ctx: Context) -> None:
    if ready:
        raise ValueError("boom at top")
    await ctx.step("first", plain)
    await ctx.receive("go")


async def test_a_run_that_stands_still_is_told_of_in_the_log(
    rig: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig.working(ill_behaved):
        handle = await rig.client.start(ill_behaved)
        await rig.sleeping(handle)
    # Another worker, which has nothing of the run in its memory, runs what the code has become.
    monkeypatch.setattr(f"{__name__}.ready", True)
    with caplog.at_level(logging.ERROR, "kagzi.worker"):
        async with rig.working(ill_behaved):
            await handle.signal("go")
            await rig.until("select 1 from kagzi.workflow_runs where parked_hash is not null")
    assert f"run {handle.run_id} of 'ill_behaved' stands still" in caplog.text
    assert "the code ended with ValueError: boom at top" in caplog.text
    assert "! first (FUNCTION)  -" in caplog.text


@workflow
async def counts(ctx: Context) -> int | None:
    return await ctx.receive("count", int)


async def test_a_signal_that_cannot_be_read_is_named(rig: Rig) -> None:
    async with rig.working(counts):
        handle = await rig.client.start(counts)
        await handle.signal("count", "five")
        with pytest.raises(RunFailed, match="The result of 'count' cannot be read: Cannot decode int"):
            await handle.result(timeout=LONG)


@pytest.mark.parametrize(
    ("declare", "given", "words"),
    [
        (workflow, "order", r"@workflow\(name='order'\)"),
        (step, "charge", r"from ctx.step\(name, function"),
        (step, counts, "'counts' is a workflow: run it with ctx.run_child"),
    ],
)
def test_a_decorator_on_something_else_says_what_it_takes(declare: Any, given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        declare(given)
