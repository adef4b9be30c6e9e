"""The workflows of `kagzi bench`: steps that do nothing, so that what is measured is what surrounds them."""

from __future__ import annotations

from kagzi.sdk.context import Context
from kagzi.sdk.definition import step, workflow


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
