"""Histories are replayed without a server, and every difference between code and record is told."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kagzi import Compression, Context, Handle, Workflow, step, workflow
from kagzi.errors import ConfigError, NondeterminismError
from kagzi.testing import Environments, history, replay
from tests.testing import shop
from tests.testing.shop import Order, Receipt

Record = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def record(kagzi_env: Environments) -> Record:
    """Runs a workflow in an environment and gives its history."""

    async def run(workflow: Workflow[Any, Any], *given: Any, skip: str = "0s") -> dict[str, Any]:
        env = await kagzi_env(workflows=[workflow, shop.shipping])
        handle: Handle[Any] = await env.client.start(workflow, *given)
        await env.skip(skip)
        return await history(handle)

    return run


async def add(left: int, right: int) -> int:
    return left + right


async def test_the_same_code_reaches_the_same_end(record: Record) -> None:
    stored = await record(shop.buying, Order("7", 4200), skip="10d")
    shop.log.happened.clear()
    result = replay(shop.buying, stored)
    assert result.ended
    assert result.output == Receipt("7", "payment of 4200", None, "parcel 7")
    assert shop.log.happened == [], "no body runs in a replay"


async def test_a_history_is_kept_as_json(record: Record, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps(await record(shop.buying, Order("7", 1), skip="10d")))
    assert replay(shop.buying, path).ended
    assert replay(shop.buying, str(path)).ended


def test_a_replay_needs_no_event_loop(tmp_path: Path) -> None:
    @workflow
    async def brief(ctx: Context) -> str:
        return "done"

    assert replay(brief, []).output == "done"


async def test_the_steps_alone_are_replayed_with_the_input(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.buying, shop.shipping])
    handle = await env.client.start(shop.buying, Order("7", 1))
    await env.skip("10d")
    steps = await handle.steps()
    assert replay(shop.buying, steps, input=Order("7", 1)).ended
    with pytest.raises(ConfigError, match="takes an input"):
        replay(shop.buying, steps)


async def test_a_run_that_waits_is_told_of(record: Record) -> None:
    stored = await record(shop.buying, Order("7", 1), skip="2d")
    result = replay(shop.buying, stored)
    assert (result.outcome, result.waiting, result.new) == ("waiting", ("approved",), ())


async def test_steps_beyond_the_record_are_told_of(record: Record) -> None:
    @workflow(name="grown")
    async def before(ctx: Context) -> int:
        return await ctx.step("one", add, 1, 1)

    @workflow(name="grown")
    async def after(ctx: Context) -> int:
        found = await ctx.step("one", add, 1, 1)
        first, second = await asyncio.gather(ctx.step("two", add, found, 1), ctx.step("three", add, found, 2))
        return first + second

    result = replay(after, await record(before))
    assert (result.outcome, result.new) == ("new steps", ("two", "three"))


async def test_a_step_in_another_place_is_a_difference(record: Record) -> None:
    @workflow(name="swapped")
    async def before(ctx: Context) -> None:
        await ctx.step("one", add, 1, 1)
        await ctx.step("two", add, 2, 2)

    @workflow(name="swapped")
    async def after(ctx: Context) -> None:
        await ctx.step("two", add, 2, 2)
        await ctx.step("one", add, 1, 1)

    with pytest.raises(NondeterminismError, match=r"asks for 'two' at test_replay\.py:") as caught:
        replay(after, await record(before))
    assert caught.value.recorded[:2] == ("one (FUNCTION)", "two (FUNCTION)")
    assert caught.value.requested[0].startswith("two (FUNCTION) at test_replay.py:")


async def test_a_step_that_is_gone_is_a_difference(record: Record) -> None:
    @workflow(name="shrunk")
    async def before(ctx: Context) -> None:
        await ctx.step("one", add, 1, 1)
        await ctx.step("two", add, 2, 2)

    @workflow(name="shrunk")
    async def after(ctx: Context) -> None:
        await ctx.step("one", add, 1, 1)

    with pytest.raises(NondeterminismError, match="'two'"):
        replay(after, await record(before))


async def test_a_wait_that_is_gone_is_a_difference_too(record: Record) -> None:
    @workflow(name="impatient")
    async def before(ctx: Context) -> None:
        await ctx.step("one", add, 1, 1)
        await ctx.sleep("day", "1d")

    @workflow(name="impatient")
    async def after(ctx: Context) -> None:
        await ctx.step("one", add, 1, 1)

    with pytest.raises(NondeterminismError, match="'day'"):
        replay(after, await record(before))


async def test_another_kind_of_step_is_a_difference(record: Record) -> None:
    @workflow(name="turned")
    async def before(ctx: Context) -> None:
        await ctx.step("pause", add, 1, 1)

    @workflow(name="turned")
    async def after(ctx: Context) -> None:
        await ctx.sleep("pause", "1s")

    with pytest.raises(NondeterminismError, match="is a SLEEP now, and a FUNCTION on record"):
        replay(after, await record(before))


async def test_a_changed_input_of_a_step_is_a_difference(record: Record) -> None:
    @workflow(name="sums")
    async def before(ctx: Context) -> int:
        return await ctx.step("sum", add, 1, 1)

    @workflow(name="sums")
    async def after(ctx: Context) -> int:
        return await ctx.step("sum", add, 1, 2)

    stored = await record(before)
    assert replay(before, stored).output == 2
    with pytest.raises(NondeterminismError, match="another input"):
        replay(after, stored)


async def test_code_that_chooses_by_patch_goes_on_with_old_histories(record: Record) -> None:
    @workflow(name="patched")
    async def before(ctx: Context) -> int:
        return await ctx.step("old", add, 1, 1)

    @workflow(name="patched")
    async def after(ctx: Context) -> int:
        if ctx.patched("new sum"):
            return await ctx.step("new", add, 2, 2)
        return await ctx.step("old", add, 1, 1)

    assert replay(after, await record(before)).output == 2
    assert replay(after, await record(after)).output == 4


async def test_readings_are_those_of_the_run(record: Record) -> None:
    seen: list[tuple[datetime, uuid.UUID, float]] = []

    @workflow
    async def reading(ctx: Context) -> None:
        seen.append((ctx.now(), ctx.uuid(), ctx.random().random()))
        await ctx.sleep("day", "1d")

    stored = await record(reading, skip="2d")
    first = seen[0]
    assert replay(reading, stored).ended
    assert set(seen) == {first}


async def test_a_failed_run_fails_in_the_same_way(record: Record) -> None:
    @step
    async def refuse() -> None:
        raise LookupError("not there")

    @workflow
    async def failing(ctx: Context) -> None:
        await ctx.step("refuse", refuse)

    result = replay(failing, await record(failing, skip="1h"))
    assert result.ended
    assert result.error is not None
    assert result.error.type == "StepFailed"
    assert "not there" in result.error.message


async def test_a_cancelled_run_is_cancelled_in_the_replay(kagzi_env: Environments) -> None:
    env = await kagzi_env(workflows=[shop.hurried])
    handle = await env.client.start(shop.hurried)
    await env.settle()
    await handle.cancel("enough")
    await env.settle()
    result = replay(shop.hurried, await history(handle))
    assert result.ended
    assert result.error is not None
    assert result.error.type == "Cancelled"


async def test_a_run_that_continued_as_another_is_told_of(record: Record) -> None:
    @workflow
    async def endless(ctx: Context, count: int) -> int:
        await ctx.step("one", add, count, 1)
        if count < 1:
            ctx.continue_as_new(count + 1)
        return count

    assert replay(endless, await record(endless, 0)).continued


async def test_an_effect_in_doubt_is_not_asked_for(kagzi_env: Environments) -> None:
    asked: list[str] = []

    @step(effect=True)
    async def pay() -> None:
        raise ConnectionError("no answer")

    @pay.reconcile
    async def paid(key: str) -> None:
        asked.append(key)

    @workflow
    async def paying(ctx: Context) -> None:
        await ctx.step("pay", pay)

    env = await kagzi_env(workflows=[paying])
    handle = await env.client.start(paying)
    await env.settle()
    assert replay(paying, await history(handle)).waiting == ("pay",)
    assert len(asked) == 1
    await env.skip("1h")
    assert len(asked) == 5, "a reconciler that cannot say is asked again when its time has come"
    assert replay(paying, await history(handle)).waiting == ("pay",)
    assert len(asked) == 5


async def test_stored_payloads_are_decoded_with_the_codecs_of_the_run(kagzi_env: Environments) -> None:
    @workflow
    async def long(ctx: Context, text: str) -> str:
        return await ctx.step("twice", lambda: text * 2)

    env = await kagzi_env(workflows=[long], codecs=[Compression()])
    handle = await env.client.start(long, "word " * 1_000)
    await handle.result()
    stored = await history(handle)
    assert replay(long, stored, codecs=[Compression()]).output == "word " * 2_000


@pytest.mark.parametrize("given", [{}, {"kagzi_history": 2}, {"kagzi_history": 1}, [1]])
def test_what_is_no_history_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="history"):
        replay(shop.shipping, given)


def test_a_file_that_holds_no_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="holds no history"):
        replay(shop.shipping, path)
    with pytest.raises(ConfigError, match="holds no history"):
        replay(shop.shipping, tmp_path / "absent.json")


async def test_the_history_of_another_workflow_is_refused(record: Record) -> None:
    stored = await record(shop.whole)
    with pytest.raises(ConfigError, match="history of 'whole', not of 'shipping'"):
        replay(shop.shipping, stored)
