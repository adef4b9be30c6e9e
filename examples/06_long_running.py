"""Long-running: a subscription that lives for years. It sleeps between months and begins each with an empty history."""

import asyncio
from dataclasses import dataclass, replace

import kagzi.testing
from kagzi import Context, step, workflow


@dataclass(frozen=True)
class Subscription:
    customer: str
    month: int = 1


@step
async def bill(customer: str, month: int) -> None:
    print(f"month {month}: bill {customer}")


@step
async def say_goodbye(customer: str) -> None:
    print(f"goodbye, {customer}")


@workflow
async def subscription(ctx: Context, now: Subscription) -> int:
    await ctx.set_state({"month": now.month})  # for people and queries: handle.state()
    await ctx.step("bill", bill, now.customer, now.month)
    if await ctx.receive("cancelled", str, timeout="30 days") is None:
        # The same work goes on as a new run; who waits for the result of this one gets that of the last.
        ctx.continue_as_new(replace(now, month=now.month + 1))
    await ctx.step("goodbye", say_goodbye, now.customer)
    return now.month


async def main() -> None:
    async with kagzi.testing.environment(workflows=[subscription]) as env:
        handle = await env.client.start(subscription, Subscription("Ada"), id="subscription-ada")
        await env.skip("70 days")
        # The id leads to the run of today.
        current = await env.client.find("subscription-ada", subscription)
        print(f"after 70 days: {await current.state()}")
        await current.signal("cancelled", "moving away")
        print(f"it lasted {await handle.result()} months")


if __name__ == "__main__":
    asyncio.run(main())
