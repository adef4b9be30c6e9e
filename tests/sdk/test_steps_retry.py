"""Steps and workflows that are tried again: how often, when, with which history; and the time limit of an attempt."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kagzi import Context, Handle, NonRetryable, Retry, RetryAfter, RunFailed, StepFailed, step, workflow
from tests.sdk.rig import LONG, Gate, Rig, rigged

AT_ONCE = Retry(max_attempts=3, initial="10ms")

tries: list[Any] = []
gate = Gate()


@pytest.fixture(autouse=True)
def fresh() -> None:
    global gate  # noqa: PLW0603 - the bodies of a worker find it by name
    tries.clear()
    gate = Gate()


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


async def fails(times: int, error: type[Exception] = ValueError) -> int:
    tries.append(times)
    if len(tries) <= times:
        raise error(f"try {len(tries)}")
    return len(tries)


@workflow
async def persistent(ctx: Context, times: int) -> list[Any]:
    try:
        return ["ok", await ctx.step("try", step(fails).with_options(retry=AT_ONCE), times)]
    except StepFailed as error:
        return [error.type, error.message, error.attempts]


async def test_a_failed_step_is_tried_again(rig: Rig) -> None:
    async with rig.working(persistent):
        handle = await rig.client.start(persistent, 2)
        assert await handle.result(timeout=LONG) == ["ok", 3]

    assert await rig.attempts(handle, "try") == ["FAILED", "FAILED", "COMPLETED"]


async def test_a_step_that_has_used_up_its_tries_raises_its_last_error(rig: Rig) -> None:
    async with rig.working(persistent):
        assert await rig.execute(persistent, 5) == ["ValueError", "try 3", 3]


@workflow(step_retry=Retry(max_attempts=2, initial="1ms"))
async def declared(ctx: Context, which: str) -> int:
    chosen: dict[str, Any] = {
        "workflow": fails,
        "step": step(retry=Retry(max_attempts=4, initial="1ms"))(fails),
        "call": step(retry=Retry(max_attempts=4, initial="1ms"))(fails).with_options(retry=Retry(max_attempts=1)),
    }
    try:
        await ctx.step("try", chosen[which], 10)
    except StepFailed as error:
        return error.attempts
    return 0


@pytest.mark.parametrize(("which", "attempts"), [("workflow", 2), ("step", 4), ("call", 1)])
async def test_the_nearest_policy_counts(rig: Rig, which: str, attempts: int) -> None:
    async with rig.working(declared):
        assert await rig.execute(declared, which) == attempts
    assert len(tries) == attempts


@workflow
async def by_default(ctx: Context) -> int:
    try:
        await ctx.step("try", fails, 10)
    except StepFailed as error:
        return error.attempts
    return 0


async def test_a_step_that_says_nothing_has_three_attempts(rig: Rig) -> None:
    async with rig.working(by_default, in_place=False):
        handle = await rig.client.start(by_default)
        for delay in (1, 2):
            (row,) = await rig.until(
                "select extract(epoch from s.retry_at - s.finished_at)::float8 as delay from kagzi.workflow_runs r "
                "join kagzi.step_runs s using (namespace, run_id) where r.run_id = $1 and r.status = 'SLEEPING' "
                "and s.is_latest and s.attempt_number = $2",
                handle.run_id,
                delay,
            )
            assert row["delay"] == delay
            await skip_delay(rig, handle)
        assert await handle.result(timeout=LONG) == 3


async def skip_delay(rig: Rig, handle: Handle[Any]) -> None:
    """The next attempt of a suspended run's step is due now."""
    await rig.fetch("update kagzi.step_runs set retry_at = kagzi.now() where run_id = $1 and is_latest", handle.run_id)
    await rig.fetch("update kagzi.workflow_runs set available_at = kagzi.now() where run_id = $1", handle.run_id)


@workflow
async def patient(ctx: Context) -> list[Any]:
    result = await ctx.step(
        "try", step(fails).with_options(retry=Retry(max_attempts=2, initial="1h", max_interval="1h")), 1
    )
    return [result, ctx.attempt]


async def test_a_run_is_given_back_while_a_step_waits_long_for_its_next_attempt(rig: Rig) -> None:
    async with rig.working(patient):
        handle = await rig.client.start(patient)
        (waiting,) = await rig.sleeping(handle)
        assert waiting["step"] == "try"
        assert tries == [1]
        await skip_delay(rig, handle)
        assert await handle.result(timeout=LONG) == [2, 1]

    assert await rig.attempts(handle, "try") == ["FAILED", "COMPLETED"]


@workflow
async def final(ctx: Context) -> list[Any]:
    try:
        await ctx.step("try", fails, 10, NonRetryable)
    except StepFailed as error:
        return [error.type, error.attempts]
    return []


async def test_non_retryable_ends_it_at_once(rig: Rig) -> None:
    async with rig.working(final):
        assert await rig.execute(final) == ["NonRetryable", 1]


async def busy() -> int:
    tries.append(None)
    if len(tries) == 1:
        raise RetryAfter("20ms", "too many requests")
    return len(tries)


@workflow
async def told_when(ctx: Context) -> int:
    return await ctx.step("try", step(busy).with_options(retry=Retry(initial="1h", max_interval="1h")))


async def test_retry_after_says_when(rig: Rig) -> None:
    async with rig.working(told_when):
        assert await rig.execute(told_when) == 2


@workflow
async def slow(ctx: Context) -> list[Any]:
    async def sleeps() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tries.append("stopped")

    try:
        await ctx.step("slow", step(timeout="30ms", retry=Retry(max_attempts=2, initial="1ms"))(sleeps))
    except StepFailed as error:
        return [error.type, error.message, error.attempts]
    return []


async def test_an_attempt_that_takes_too_long_is_cancelled_and_has_failed(rig: Rig) -> None:
    async with rig.working(slow):
        assert await rig.execute(slow) == ["TimeoutError", "the attempt took longer than 0.03 s", 2]
    assert tries == ["stopped", "stopped"]


release = threading.Event()


@workflow
async def slow_thread(ctx: Context) -> list[Any]:
    def blocks() -> None:
        tries.append("began")
        if len(tries) == 1:
            release.wait(LONG)

    await ctx.step("slow", step(timeout="100ms", retry=Retry(max_attempts=2, initial="1ms"))(blocks))
    return tries


async def test_a_thread_that_takes_too_long_is_named_and_its_attempt_has_failed(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    release.clear()
    async with rig.working(slow_thread):
        with caplog.at_level(logging.WARNING, "kagzi.worker"):
            handle = await rig.client.start(slow_thread)
            assert await handle.result(timeout=LONG) == ["began", "began"]
        release.set()

    assert f"the thread of step 'slow' of run {handle.run_id} runs on after its timeout" in caplog.text
    assert await rig.attempts(handle, "slow") == ["FAILED", "COMPLETED"]


@workflow
async def crowded(ctx: Context) -> list[Any]:
    def blocks(number: int) -> int:
        tries.append(number)
        if number == 0:
            release.wait(LONG)
        return number

    results = await asyncio.gather(
        ctx.step("first", step(timeout="50ms", retry=Retry(max_attempts=1))(blocks), 0),
        ctx.step("second", step(timeout="50ms", retry=Retry(max_attempts=1))(blocks), 1),
        return_exceptions=True,
    )
    return [getattr(result, "type", result) for result in results]


async def test_a_body_that_waits_for_a_thread_beyond_its_time_never_begins(rig: Rig) -> None:
    release.clear()
    async with rig.working(crowded, concurrency=1):
        assert await rig.execute(crowded) == ["TimeoutError", "TimeoutError"]
        release.set()

    assert tries == [0]


async def spend(name: str) -> str:
    tries.append(name)
    return f"{name} {tries.count(name)}"


async def fragile() -> str:
    tries.append("fragile")
    if tries.count("fragile") == 1:
        raise ValueError("the first time")
    return "strong"


async def caught() -> None:
    tries.append("caught")
    raise ValueError("always")


ONCE = Retry(max_attempts=1)


@workflow(retry=Retry(max_attempts=2, initial="10ms"), step_retry=ONCE)
async def whole(ctx: Context) -> list[Any]:
    before = await ctx.step("before", spend, "before")
    try:
        await ctx.step("caught", caught)
    except StepFailed as error:
        before += f", {error.type}"
    try:
        result = await ctx.step("fragile", fragile)
    finally:
        after = await ctx.step("after", spend, "after")
    return [before, result, after, ctx.attempt]


async def test_a_retry_of_the_whole_workflow_sets_the_failed_step_and_what_followed_aside(rig: Rig) -> None:
    async with rig.working(whole):
        handle = await rig.client.start(whole)
        result = await handle.result(timeout=60)

    assert result == ["before 1, ValueError", "strong", "after 2", 2]
    assert tries == ["before", "caught", "fragile", "after", "fragile", "after"]
    assert list((await rig.records(handle)).items()) == [
        ("before", "COMPLETED"),
        ("caught", "FAILED"),
        ("fragile", "COMPLETED"),
        ("after", "COMPLETED"),
    ]


class OrderFailed(Exception):
    pass


@workflow(retry=Retry(max_attempts=2, initial="10ms"), step_retry=ONCE)
async def wrapped(ctx: Context) -> str:
    try:
        return await ctx.step("fragile", fragile)
    except StepFailed as error:
        raise OrderFailed("it did not work") from error


async def test_an_error_raised_for_a_failed_step_sets_that_step_aside(rig: Rig) -> None:
    async with rig.working(wrapped):
        assert await (await rig.client.start(wrapped)).result(timeout=60) == "strong"


@workflow(retry=Retry(max_attempts=2, initial="10ms"), step_retry=ONCE)
async def in_a_group(ctx: Context) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        waits = group.create_task(ctx.step("waits", spend_later))
        breaks = group.create_task(ctx.step("fragile", fragile))
    return [waits.result(), breaks.result(), ctx.attempt]


async def spend_later() -> str:
    tries.append("waits")
    if tries.count("waits") == 1:
        await asyncio.Event().wait()
    return f"waits {tries.count('waits')}"


async def test_a_sibling_that_was_given_up_before_a_retry_of_the_whole_runs_again(rig: Rig) -> None:
    async with rig.working(in_a_group):
        handle = await rig.client.start(in_a_group)
        assert await handle.result(timeout=60) == ["waits 2", "strong", 2]


@workflow
async def fragile_child(ctx: Context) -> str:
    return await ctx.step("fragile", step(fragile).with_options(retry=ONCE))


@workflow(retry=Retry(max_attempts=2, initial="10ms"))
async def parent(ctx: Context) -> list[Any]:
    return [await ctx.run_child("child", fragile_child), ctx.attempt]


async def test_a_failed_child_is_started_anew_by_a_retry_of_the_whole(rig: Rig) -> None:
    async with rig.working(parent, fragile_child):
        assert await rig.execute(parent) == ["strong", 2]


@workflow(retry=Retry(max_attempts=2, initial="10ms"))
async def plainly_wrong(ctx: Context) -> None:
    tries.append(ctx.attempt)
    raise ValueError("in the workflow itself")


async def test_a_workflow_that_has_used_up_its_tries_has_failed(rig: Rig) -> None:
    async with rig.working(plainly_wrong):
        with pytest.raises(RunFailed, match="in the workflow itself"):
            await rig.execute(plainly_wrong)
    assert tries == [1, 2]


@workflow(retry=Retry(max_attempts=3, initial="10ms"))
async def hopeless(ctx: Context) -> None:
    tries.append(ctx.attempt)
    raise NonRetryable("no")


async def test_non_retryable_ends_the_tries_of_the_whole(rig: Rig) -> None:
    async with rig.working(hopeless):
        with pytest.raises(RunFailed, match="no"):
            await rig.execute(hopeless)
    assert tries == [1]


@workflow(retry=Retry(max_attempts=2, initial="10ms"), step_retry=ONCE)
async def published(ctx: Context) -> None:
    for number in range(3):
        await ctx.set_state({"try": ctx.attempt, "number": number})
    if ctx.attempt == 1:
        await ctx.step("fragile", fragile)
    await ctx.set_state({"try": ctx.attempt, "number": 3})
    await ctx.step("pause", gate.wait)


async def test_the_state_of_a_new_try_replaces_that_of_the_last(rig: Rig) -> None:
    async with rig.working(published):
        handle = await rig.client.start(published)
        await gate.arrival()
        await rig.until(
            'select 1 from kagzi.workflow_runs where run_id = $1 and state = \'{"try": 2, "number": 3}\'', handle.run_id
        )
        gate.open()
        await handle.result(timeout=LONG)
