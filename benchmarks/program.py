"""The workflows that the workloads run. `kagzi worker benchmarks.program` serves them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from kagzi import Context, step, workflow


@step
async def small(number: int) -> dict[str, int]:
    return {"number": number}


@workflow
async def three(ctx: Context, number: int) -> int:
    """Three small steps in a row."""
    for _ in range(3):
        number = (await ctx.step("small", small, number))["number"]
    return number


@workflow
async def one(ctx: Context, number: int) -> int:
    """One small step."""
    return (await ctx.step("small", small, number))["number"]


@workflow
async def row(ctx: Context, count: int) -> int:
    """Many steps in a row."""
    for number in range(count):
        await ctx.step("small", small, number)
    return count


@workflow
async def fan(ctx: Context, count: int) -> int:
    """Many steps at once."""
    results = await asyncio.gather(*(ctx.step("small", small, number) for number in range(count)))
    return len(results)


@workflow
async def nap(ctx: Context, until: float) -> float:
    """Sleeps until a moment and says how late it woke, in seconds."""
    await ctx.sleep_until("nap", datetime.fromtimestamp(until, UTC))
    return ctx.now().timestamp() - until
