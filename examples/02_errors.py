"""Errors: a failed step is tried again as its policy says. What fails for good is an exception like any other."""

import asyncio

import kagzi.testing
from kagzi import Context, NonRetryable, Retry, RetryAfter, RunFailed, StepFailed, step, workflow

calls = 0
cards_accepted = False


@step(retry=Retry(max_attempts=4, initial="1s", backoff=2.0, max_interval="1m"), timeout="30s")
async def fetch_price(item: str) -> int:
    global calls  # noqa: PLW0603 - stands for a service that has a bad day
    calls += 1
    print(f"fetch_price, attempt {calls}")
    if calls == 1:
        raise ConnectionError("the price service hung up")
    if calls == 2:
        raise RetryAfter("10m", "the price service asks for patience")
    return 1999


@step
async def use_coupon(code: str) -> int:
    raise NonRetryable(f"there is no coupon {code!r}")  # trying again cannot help


@step
async def charge(cents: int) -> str:
    if not cards_accepted:
        raise NonRetryable("card declined")
    return f"charged {cents}"


@workflow
async def buy(ctx: Context, item: str) -> str:
    cents = await ctx.step("price", fetch_price, item)
    try:
        cents -= await ctx.step("coupon", use_coupon, "SPRING")
    except StepFailed as error:
        ctx.logger.info("no discount: %s", error.message)
    return await ctx.step("charge", charge, cents)


async def main() -> None:
    global cards_accepted  # noqa: PLW0603
    async with kagzi.testing.environment(workflows=[buy]) as env:
        handle = await env.client.start(buy, "lamp")
        await env.skip("1h")
        try:
            await handle.result()
        except RunFailed as error:
            print(f"failed: {error.message}")
        cards_accepted = True
        # A new run with the history before the failed step: the price is not fetched again.
        again = await handle.retry()
        print(await again.result())


if __name__ == "__main__":
    asyncio.run(main())
