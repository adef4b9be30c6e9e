"""Workflows for the tests of Context, one for each of its names: played alone, inside `gather`, and as the cleanup of a
cancelled run. The process that first plays one is killed in the middle of it; what it saw until then is marked outside
the engine, and must be what the next process sees in replay.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from kagzi import Context, workflow
from tests.sdk.rig import Gate, Marks

# Set in a process that is to be killed: its runs hang in the middle and say so.
DOOMED = "KAGZI_TEST_DOOMED"
# What each run is sent before it begins.
SIGNALS = ["red", "green", "blue", "white"]

Scene = Callable[[Context, str], Awaitable[Any]]

ready = Gate()


async def mark(kind: str, run_id: str, value: Any) -> None:
    Marks.leave(json.dumps([kind, run_id, value]))
    if os.environ.get(DOOMED):
        print(f"marks {run_id}", flush=True)  # noqa: T201 - how it speaks to the test


async def hang(run_id: str) -> None:
    if os.environ.get(DOOMED):
        print(f"hangs {run_id}", flush=True)  # noqa: T201 - how it speaks to the test
        await asyncio.Event().wait()


async def times(run_id: str, tag: str) -> int:
    """How often this body ran for this step."""
    Marks.leave(json.dumps(["ran", run_id, tag]))
    return Marks(Path(os.environ[Marks.VARIABLE])).read().count(json.dumps(["ran", run_id, tag]))


@workflow
async def kid(ctx: Context, tag: str) -> list[str]:
    await ctx.sleep("grow", "10ms")
    return [tag, ctx.run_id]


async def step(ctx: Context, tag: str) -> Any:
    return await ctx.step(tag, times, ctx.run_id, tag)


async def sleep(ctx: Context, tag: str) -> Any:
    return await ctx.sleep(tag, "20ms")


async def sleep_until(ctx: Context, tag: str) -> Any:
    moment = ctx.now() + timedelta(milliseconds=30)
    await ctx.sleep_until(tag, moment)
    return ctx.now() >= moment


async def receive(ctx: Context, tag: str) -> Any:
    return await ctx.receive("colour", str)


async def receive_timeout(ctx: Context, tag: str) -> Any:
    return await ctx.receive("never", str, timeout="20ms")


async def run_child(ctx: Context, tag: str) -> Any:
    return await ctx.run_child(tag, kid, tag)


async def start_child(ctx: Context, tag: str) -> Any:
    handle = await ctx.start_child(tag, kid, tag)
    return [handle.run_id, await handle.result()]


async def select(ctx: Context, tag: str) -> Any:
    return list(
        await ctx.select(late=ctx.sleep(f"{tag}-late", "1h"), soon=ctx.step(f"{tag}-soon", times, ctx.run_id, tag))
    )


async def now(ctx: Context, tag: str) -> Any:
    return ctx.now().isoformat()


async def uuid(ctx: Context, tag: str) -> Any:
    return str(ctx.uuid())


async def random(ctx: Context, tag: str) -> Any:
    return ctx.random().random()


async def set_state(ctx: Context, tag: str) -> Any:
    return await ctx.set_state({"tag": tag})


async def patched(ctx: Context, tag: str) -> Any:
    return [ctx.patched(f"patch-{tag}"), ctx.patched(f"patch-{tag}")]


async def facts(ctx: Context, tag: str) -> Any:
    """`run_id`, `workflow_type`, `namespace`, `attempt`, `scheduled_for`, `labels`."""
    return [ctx.run_id, ctx.workflow_type, ctx.namespace, ctx.attempt, ctx.scheduled_for, ctx.labels]


async def scheduled_for(ctx: Context, tag: str) -> Any:
    """Played by runs of a schedule."""
    return None if ctx.scheduled_for is None else ctx.scheduled_for.isoformat()


async def logger(ctx: Context, tag: str) -> Any:
    ctx.logger.info("%s of %s", tag, ctx.run_id)
    return None if ctx.logger.extra is None else ctx.logger.extra["run_id"]


SCENES: list[Scene] = [
    step,
    sleep,
    sleep_until,
    receive,
    receive_timeout,
    run_child,
    start_child,
    select,
    now,
    uuid,
    random,
    set_state,
    patched,
    facts,
    scheduled_for,
    logger,
]


def alone(scene: Scene) -> Any:
    """Plays the scene before and after a crash."""

    async def play(ctx: Context) -> Any:
        before = await scene(ctx, "before")
        await ctx.step("mark", mark, "saw", ctx.run_id, before)
        await ctx.step("hang", hang, ctx.run_id)
        return [before, await scene(ctx, "after")]

    return workflow(name=f"{scene.__name__}_alone")(play)


def gathered(scene: Scene) -> Any:
    """Plays it twice at once, in the middle of which the crash comes."""

    async def play(ctx: Context) -> Any:
        async def late() -> Any:
            before = await asyncio.gather(scene(ctx, "left"), scene(ctx, "right"))
            await ctx.step("mark", mark, "saw", ctx.run_id, before)
            return before

        before, _ = await asyncio.gather(late(), ctx.step("hang", hang, ctx.run_id))
        return [before, await asyncio.gather(scene(ctx, "after"), scene(ctx, "again"))]

    return workflow(name=f"{scene.__name__}_gathered")(play)


async def come(run_id: str) -> None:
    ready.note(run_id)


def cancelled(scene: Scene) -> Any:
    """Waits to be cancelled, and then plays the scene while it cleans up."""

    async def play(ctx: Context) -> Any:
        await ctx.step("come", come, ctx.run_id)
        try:
            await ctx.sleep("long", "1h")
        finally:
            value = await scene(ctx, "cleanup")
            await ctx.step("mark", mark, "cleaned", ctx.run_id, value)

    return workflow(name=f"{scene.__name__}_cancelled")(play)


@workflow
async def continued(ctx: Context, rounds: list[str]) -> list[str]:
    """`continue_as_new`: each round is a run, and the first one is killed."""
    await ctx.step("hang", hang, ctx.run_id)
    if len(rounds) < 3:
        ctx.continue_as_new([*rounds, ctx.run_id])
    return [*rounds, ctx.run_id]


@workflow
async def continued_gathered(ctx: Context, rounds: list[str]) -> list[str]:
    """The same from one of several branches, of which another has something to undo."""

    async def go_on() -> list[str]:
        await ctx.step("hang", hang, ctx.run_id)
        if len(rounds) < 3:
            ctx.continue_as_new([*rounds, ctx.run_id])
        return [*rounds, ctx.run_id]

    async def beside() -> None:
        try:
            await ctx.sleep("long", "1h" if len(rounds) < 3 else "1ms")
        except asyncio.CancelledError:
            await ctx.step("undo", mark, "undone", ctx.run_id, len(rounds))
            raise

    found, _ = await asyncio.gather(go_on(), beside())
    return found


@workflow
async def continued_cancelled(ctx: Context, rounds: list[str]) -> None:
    """The same from the cleanup of a cancelled run: the next one is asked to cancel too."""
    if not rounds:
        await ctx.step("come", come, ctx.run_id)
    try:
        await ctx.sleep("long", "1h")
    finally:
        if not rounds:
            ctx.continue_as_new([ctx.run_id])
        await ctx.step("mark", mark, "cleaned", rounds[0], ctx.run_id)


@workflow
async def logged(ctx: Context) -> None:
    ctx.logger.info("before the crash")
    await ctx.step("once", mark, "once", ctx.run_id, None)
    ctx.logger.info("between")
    await ctx.step("hang", hang, ctx.run_id)
    ctx.logger.info("after the crash")


PLAYS = {play.name: play for scene in SCENES for play in (alone(scene), gathered(scene), cancelled(scene))}
# Where `kagzi worker` looks for them.
globals().update(PLAYS)
