"""The workflows that the workers of these tests run. Every body leaves its mark in the effects log, and returns
something that no other execution of it would return, so that a result can be told from a repeated one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import dataclass

from kagzi import Absent, Applied, Context, Retry, StepFailed, step, workflow
from tests.survival.effects import note

# Set for a worker that is to be killed in the middle of an effect.
DOOMED = "SURVIVAL_DOOMED"
# Between an effect and its acknowledgement: long enough for a kill to fall into it now and then.
_AFTERWARDS = 0.02


@dataclass
class Plan:
    """How a journey goes."""

    name: str
    parts: int = 3
    rest: str = "150ms"


@dataclass
class Report:
    """What a journey brought home."""

    name: str
    prepared: str
    parts: list[str]
    word: str
    failure: str
    errand: list[str]
    finished: str


@step
def prepare(name: str) -> str:
    note("begin")
    time.sleep(0.02)
    return _effect(name)


@step
async def part(name: str, number: int) -> str:
    note("begin")
    await asyncio.sleep(0.02 * number)
    value = _effect(f"{name}/{number}")
    await asyncio.sleep(_AFTERWARDS)
    return value


@step(retry=Retry(max_attempts=2, initial="50ms"))
async def doomed(name: str) -> str:
    note("begin")
    await asyncio.sleep(0.01)
    note("effect")
    raise ValueError(f"{name} never works")


@step
async def finish(name: str) -> str:
    note("begin")
    value = _effect(name)
    await asyncio.sleep(_AFTERWARDS)
    return value


@workflow
async def errand(ctx: Context, name: str) -> list[str]:
    """A child with two steps of its own."""
    there = await ctx.step("there", finish, f"{name} there")
    back = await ctx.step("back", finish, f"{name} back")
    return [there, back]


@workflow
async def journey(ctx: Context, plan: Plan) -> Report:
    """A step, steps side by side, a sleep, a signal, a step that fails, a child, and a step."""
    prepared = await ctx.step("prepare", prepare, plan.name)
    parts = await asyncio.gather(*(ctx.step("part", part, plan.name, number) for number in range(plan.parts)))
    await ctx.sleep("rest", plan.rest)
    word = await ctx.receive("word", str)
    failure = ""
    try:
        await ctx.step("doomed", doomed, plan.name)
    except StepFailed as error:
        failure = error.message
    brought = await ctx.run_child("errand", errand, plan.name)
    finished = await ctx.step("finish", finish, plan.name)
    return Report(plan.name, prepared, list(parts), word or "", failure, brought, finished)


@workflow
async def five(ctx: Context, name: str) -> list[str]:
    """Five steps in a row, each of which takes its time."""
    return [await ctx.step(f"step-{number}", linger, f"{name}/{number}") for number in range(5)]


@step
async def linger(name: str) -> str:
    note("begin")
    await asyncio.sleep(0.25)
    value = _effect(name)
    await asyncio.sleep(_AFTERWARDS)
    return value


@step
async def swallow() -> None:
    note("begin")
    # A worker that ends before it could say that it has the run is not counted.
    await asyncio.sleep(0.2)
    os._exit(1)


@workflow
async def poison(ctx: Context) -> None:
    """Takes its worker down."""
    await ctx.step("swallow", swallow)


@workflow
async def tick(ctx: Context) -> str:
    """What a schedule of these tests starts."""
    return await ctx.step("tick", finish, "tick")


@step
async def hold(seconds: float) -> str:
    note("begin")
    await asyncio.sleep(seconds)
    return _effect("held")


@step
def hold_thread(seconds: float) -> str:
    note("begin")
    time.sleep(seconds)
    return _effect("held")


@step(retry=Retry(max_attempts=3, initial="1500ms"))
async def stumble() -> str:
    note("begin")
    raise ValueError("not yet")


@step(effect=True)
async def pay() -> str:
    note("begin")
    return _effect("paid")


@workflow
async def paying(ctx: Context) -> str:
    """An effect whose outcome nobody but a person can tell."""
    return await ctx.step("pay", pay)


@step(effect=True)
async def transfer(answer: str) -> str:
    """Hangs after its effect, where its worker is to be killed."""
    note("begin")
    value = _effect("transferred")
    if DOOMED in os.environ:
        await asyncio.Event().wait()
    return value


@transfer.reconcile
async def look_up(key: str, answer: str) -> Applied | Absent:
    note("asked", key)
    return Applied("found") if answer == "applied" else Absent()


transfer_blindly = step(effect=True)(transfer.function)


@workflow
async def transferring(ctx: Context, answer: str) -> str:
    """An effect, with a reconciler that gives this answer, or with none."""
    return await ctx.step("transfer", transfer if answer else transfer_blindly, answer)


@workflow
async def held(ctx: Context, seconds: float) -> list[str]:
    """Three steps in a row, the second of which takes its time."""
    before = await ctx.step("before", finish, "before")
    during = await ctx.step("hold", hold, seconds)
    after = await ctx.step("after", finish, "after")
    return [before, during, after]


@workflow
async def held_in_thread(ctx: Context, seconds: float) -> list[str]:
    """The same with a body that nothing can stop."""
    before = await ctx.step("before", finish, "before")
    during = await ctx.step("hold", hold_thread, seconds)
    after = await ctx.step("after", finish, "after")
    return [before, during, after]


@workflow
async def stumbling(ctx: Context) -> str:
    """A step that fails three times, with a pause that its worker waits out in place."""
    try:
        await ctx.step("hold", stumble)
    except StepFailed as error:
        return error.message
    return ""


@workflow
async def resting(ctx: Context) -> str:
    """A sleep that its worker waits out in place, beside a body, and then a step."""
    await asyncio.gather(ctx.sleep("nap", "1500ms"), ctx.step("hold", hold, 0.2))
    return await ctx.step("after", finish, "after")


def _effect(name: str) -> str:
    value = f"{name} {secrets.token_hex(6)}"
    note("effect", value)
    return value
