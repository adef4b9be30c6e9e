"""Concurrency: `asyncio.gather`, `TaskGroup` and timeouts work inside a workflow, and replay in the same order."""

import asyncio

import kagzi.testing
from kagzi import Context, step, workflow


@step
async def quote(carrier: str) -> int:
    return {"mule": 700, "train": 300, "plane": 900}[carrier]


@step
async def book(carrier: str) -> str:
    return f"booked {carrier}"


@workflow
async def ship(ctx: Context, carriers: list[str]) -> str:
    prices = await asyncio.gather(*(ctx.step(f"quote {carrier}", quote, carrier) for carrier in carriers))
    cheapest = carriers[prices.index(min(prices))]

    # The first of several waits wins; the others are dropped, and stay dropped in replay.
    answer = await ctx.select(veto=ctx.receive("veto", str), silence=ctx.sleep("grace", "2h"))
    if answer.which == "veto":
        return f"nothing booked: {answer.value}"

    async with asyncio.TaskGroup() as group:
        booking = group.create_task(ctx.step("book", book, cheapest))
        group.create_task(ctx.step("book a backup", book, "mule"))
    return booking.result()


async def main() -> None:
    async with kagzi.testing.environment(workflows=[ship]) as env:
        first = await env.client.start(ship, ["mule", "train", "plane"])
        second = await env.client.start(ship, ["mule", "plane"])
        await second.signal("veto", "too dear")
        await env.skip("2h")
        print(await first.result())
        print(await second.result())
        for one in await first.steps():
            print(f"  {one.step_id}: {one.status}")


if __name__ == "__main__":
    asyncio.run(main())
