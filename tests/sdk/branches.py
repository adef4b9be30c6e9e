"""Workflows whose code ends while branches of it wait, in every way in which code ends. Each branch undoes what it did.
The process that first runs them may be killed in the midst of that; what was done is marked outside the engine.
"""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from kagzi import Context, NonRetryable, RunCancelled, RunFailed, workflow
from tests.sdk.rig import Marks

# Set in a process that is to be killed: its runs hang in the midst of their cleanup and say so.
DOOMED = "KAGZI_TEST_DOOMED"


async def mark(run_id: str, what: str) -> None:
    Marks.leave(json.dumps([run_id, what]))


async def hang() -> None:
    if os.environ.get(DOOMED):
        print("hangs", flush=True)  # noqa: T201 - how it speaks to the test
        await asyncio.Event().wait()


async def breaks() -> None:
    raise NonRetryable("broken")


async def branch(ctx: Context, name: str) -> None:
    """Does something and waits; whatever comes, it undoes that, in two steps and a pause."""
    await ctx.step(f"do {name}", mark, ctx.run_id, f"do {name}")
    try:
        await ctx.sleep(f"wait {name}", "1h")
    finally:
        await ctx.step(f"ask {name}", mark, ctx.run_id, f"ask {name}")
        await ctx.step(f"hang {name}", hang)
        await ctx.sleep(f"cool {name}", "10ms")
        await ctx.step(f"undo {name}", mark, ctx.run_id, f"undo {name}")


async def once_both_wait(ctx: Context) -> None:
    await ctx.receive("go")


async def failing_sibling(ctx: Context) -> None:
    async def sibling() -> None:
        await once_both_wait(ctx)
        await ctx.step("break", breaks)

    await asyncio.gather(branch(ctx, "a"), sibling(), branch(ctx, "b"))


async def first_completed(ctx: Context) -> str:
    tasks = [asyncio.create_task(each) for each in (branch(ctx, "a"), once_both_wait(ctx), branch(ctx, "b"))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return "first"


async def background(ctx: Context) -> str:
    kept = [asyncio.create_task(branch(ctx, "a")), asyncio.create_task(branch(ctx, "b"))]
    await once_both_wait(ctx)
    return f"{len(kept)} left"


async def cancelled(ctx: Context) -> None:
    # The first branch has nothing to undo: with it the gather is over, and the others go on.
    await asyncio.gather(ctx.sleep("plain", "1h"), branch(ctx, "a"), branch(ctx, "b"))


async def raises(ctx: Context) -> None:
    kept = [asyncio.create_task(branch(ctx, "a")), asyncio.create_task(branch(ctx, "b"))]
    await once_both_wait(ctx)
    raise ValueError(f"{len(kept)} left")


async def deep(ctx: Context) -> str:
    """A branch that waits for branches of its own."""

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch(ctx, "a"))
            group.create_task(branch(ctx, "b"))

    kept = asyncio.create_task(parent())
    await once_both_wait(ctx)
    return f"{kept.get_name()} left"


WAYS: dict[str, tuple[Callable[[Context], Awaitable[Any]], Any]] = {
    "a failing sibling in gather": (failing_sibling, RunFailed),
    "wait for the first": (first_completed, "first"),
    "tasks that nobody awaits": (background, "2 left"),
    "an error": (raises, RunFailed),
    "a group in a task": (deep, "Task-2 left"),
    "cancel": (cancelled, RunCancelled),
    "deadline": (cancelled, RunFailed),
}


@workflow
async def ends(ctx: Context, how: str) -> Any:
    return await WAYS[how][0](ctx)
