"""Idempotency: one run for one id, one key for one step, and effects in doubt that are looked up, never guessed."""

import asyncio

import kagzi
import kagzi.testing
from kagzi import Absent, Applied, Context, step, workflow

# Stands for a payment provider.
payments: dict[str, int] = {}


@step(effect=True)
async def pay(cents: int) -> str:
    key = kagzi.idempotency_key()  # the same whenever this step runs again
    payments[key] = cents
    raise ConnectionError("the provider took the money, and the answer was lost")


@pay.reconcile
async def find_payment(key: str, cents: int) -> Applied | Absent:
    """Asked because nobody knows whether the money moved. `Absent` would let the step run again."""
    print("reconciling: was it paid?")
    return Applied("paid, as the provider's books say") if key in payments else Absent()


@workflow
async def checkout(ctx: Context, cents: int) -> str:
    return await ctx.step("pay", pay, cents)


async def main() -> None:
    async with kagzi.testing.environment(workflows=[checkout]) as env:
        first = await env.client.start(checkout, 1999, id="order-42", dedupe="forever")
        second = await env.client.start(checkout, 1999, id="order-42", dedupe="forever")
        print(f"one run: {first.run_id == second.run_id}, it existed already: {second.already_exists}")
        print(await second.result())
        print(f"payments made: {len(payments)}")


if __name__ == "__main__":
    asyncio.run(main())
