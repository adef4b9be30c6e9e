"""The workflows that the workloads run: those of `kagzi bench`, and more. `kagzi worker benchmarks.program` serves
them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from kagzi import Context, workflow
from kagzi.cli.trial import one, small, three

__all__ = ["fan", "nap", "one", "row", "small", "three"]


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
