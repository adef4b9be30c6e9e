"""Saga: every step that is done leaves behind how to undo it. Undoing is durable too, and survives a cancel."""

import asyncio
from contextlib import AsyncExitStack

import kagzi.testing
from kagzi import Context, NonRetryable, RunCancelled, RunFailed, step, workflow


@step
async def book(what: str) -> None:
    if what == "car":
        raise NonRetryable("no car left")
    print(f"  booked {what}")


@step
async def cancel(what: str) -> None:
    print(f"  cancelled {what}")


@workflow
async def trip(ctx: Context, parts: list[str]) -> str:
    # What is on the stack runs in reverse order when the block is left by an exception.
    async with AsyncExitStack() as undo:
        for part in parts:
            await ctx.step(f"book {part}", book, part)
            undo.push_async_callback(ctx.step, f"cancel {part}", cancel, part)
        await ctx.sleep("until the doors close", "2 days")
        undo.pop_all()
    return f"enjoy the {' and the '.join(parts)}"


async def main() -> None:
    async with kagzi.testing.environment(workflows=[trip]) as env:
        print("a trip that works:")
        handle = await env.client.start(trip, ["flight", "hotel"])
        await env.skip("2 days")
        print(f"  {await handle.result()}")

        print("a trip without a car:")
        try:
            await env.run(trip, ["flight", "hotel", "car"])
        except RunFailed as error:
            print(f"  failed: {error.message}")

        print("a trip that is called off:")
        handle = await env.client.start(trip, ["flight", "hotel"])
        await env.settle()
        await handle.cancel("the dog is ill")
        try:
            await handle.result()
        except RunCancelled as error:
            print(f"  called off: {error.reason}")


if __name__ == "__main__":
    asyncio.run(main())
