"""Workflows that the tests of the dashboard run: one for each thing that a page shows."""

from __future__ import annotations

import asyncio

from kagzi import Context, Retry, step, workflow

GREEDY = "<script>document.title = 'owned'</script>"


@step
async def double(number: int) -> int:
    return 2 * number


@step(retry=Retry(max_attempts=2, initial="10ms"))
async def parse(text: str) -> int:
    return int(text)


@step(effect=True)
async def pay(cents: int) -> str:
    raise TimeoutError("the bank did not answer")


@workflow
async def doubled(ctx: Context, number: int) -> int:
    return await ctx.step("double", double, number)


@workflow
async def parsed(ctx: Context, text: str) -> int:
    return await ctx.step("parse", parse, text)


@workflow
async def approved(ctx: Context) -> str:
    return str(await ctx.receive("approve", str))


@workflow
async def paid(ctx: Context, cents: int) -> str:
    return await ctx.step("pay", pay, cents)


@workflow
async def family(ctx: Context) -> list[int]:
    await ctx.set_state({"phase": "born"})
    return list(await asyncio.gather(*(ctx.run_child(f"child-{number}", doubled, number) for number in range(3))))


ALL = (doubled, parsed, approved, paid, family)
