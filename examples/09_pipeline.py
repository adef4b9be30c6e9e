"""Pipeline: data goes from step to step, typed by annotation. A run can be forked from any step with other data."""

import asyncio
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import kagzi.testing
from kagzi import Context, step, workflow


@dataclass(frozen=True)
class Sale:
    day: date
    amount: Decimal


@step
async def extract(day: date) -> list[Sale]:
    print("extract")
    return [Sale(day, Decimal("19.99")), Sale(day, Decimal("5.01")), Sale(day, Decimal(-1))]


@step
def clean(sales: list[Sale]) -> list[Sale]:  # a plain function runs in a thread
    print("clean")
    return [sale for sale in sales if sale.amount > 0]


@step
async def load(sales: list[Sale]) -> Decimal:
    print(f"load {len(sales)} sales")
    return sum((sale.amount for sale in sales), Decimal(0))


@workflow
async def pipeline(ctx: Context, day: date) -> Decimal:
    raw = await ctx.step("extract", extract, day)
    sales = await ctx.step("clean", clean, raw)
    return await ctx.step("load", load, sales)


async def main() -> None:
    day = date(2026, 1, 31)
    async with kagzi.testing.environment(workflows=[pipeline]) as env:
        handle = await env.client.start(pipeline, day)
        print(f"total {await handle.result()}")
        # Again from `load`, with one sale corrected: what came before is not repeated.
        corrected = await handle.fork("load", outputs={"clean": [Sale(day, Decimal("25.00"))]})
        print(f"total {await corrected.result()}")


if __name__ == "__main__":
    asyncio.run(main())
