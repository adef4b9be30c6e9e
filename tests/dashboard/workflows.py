"""Workflows that the tests of the dashboard run: one for each thing that a page shows, and quick. What is shown of a
mutation in doubt is the shop's.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kagzi import (
    Automation,
    Context,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Retry,
    step,
    workflow,
)
from tools.shop import payouts

__all__ = ["ALL", "GREEDY", "approved", "doubled", "family", "inbox", "long_paid", "paid", "parsed", "payouts"]

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


@workflow
async def long_paid(ctx: Context, steps: int) -> str:
    await asyncio.gather(*(ctx.step(f"double-{number}", double, number) for number in range(steps)))
    return await ctx.step("zz-pay", pay, 500)


ALL = (doubled, parsed, approved, paid, family)


def inbox() -> Automation:
    """A producer and two consumers in a row."""
    made = Automation("inbox")

    @made.producer(every="1h", publishes=["mail"])
    async def poll(ctx: ProducerContext, state: Any) -> None:
        source = ctx.register_input("post", "letter", "l-1", title=GREEDY)
        ctx.publish("mail", id="l-1", payload={"text": GREEDY}, input=source)

    @made.consumer(subscribe=["mail"], publishes=["filed"])
    class File:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("mail", limit=1)
            return Prepared(reserve={"mail": [found[0].id]}, title="File a letter") if found else Prepared()

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            for event_id in prepared.reserve.get("mail", []):
                ctx.publish("filed", id=event_id, payload=None)

    @made.consumer(subscribe=["filed"])
    class Tell:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("filed", limit=9)
            return Prepared(reserve={"filed": [each.id for each in found]}) if found else Prepared()

    return made
