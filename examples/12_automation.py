"""Automation: a producer watches the outside, consumers act on what it found, one change at a time, each on record.

`examples/automations/` has longer ones: reconcilers, digests, batches, events that belong together.
"""

import asyncio
from typing import Any

import kagzi.testing
from kagzi import (
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    mutation,
)

# Stand for a shop and for a warehouse.
orders = ["lamp", "chair"]
parcels: list[str] = []

shop = Automation("shop")


@shop.producer(every="10m", publishes=["order.placed"])
async def poll(ctx: ProducerContext, seen: int | None) -> int:
    """Publishes what is new; what it returns is its state, stored in the same transaction."""
    for number, item in enumerate(orders[seen or 0 :], start=seen or 0):
        source = ctx.register_input("shop", "order", str(number), title=f"an order of a {item}")
        ctx.publish("order.placed", id=str(number), payload=item, input=source)
    return len(orders)


@shop.consumer(subscribe=["order.placed"], publishes=["order.packed"])
class Pack:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Decides, changing nothing: which events to take and what to do."""
        placed = await ctx.peek("order.placed", limit=1)
        if not placed:
            return Prepared()
        [order] = placed
        return Prepared(reserve={"order.placed": [order.id]}, data=order.payload, title=f"Pack a {order.payload}")

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Asks for one change of the outside; the intent is on record before it is made."""
        await ctx.mutate(pack, prepared.data)

    async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
        """Tells the others what came of it."""
        ctx.publish("order.packed", id=str(outcome.result), payload=prepared.data)


@shop.consumer(subscribe=["order.packed"])
class Tell:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        packed = await ctx.peek("order.packed")
        return Prepared(reserve={"order.packed": [event.id for event in packed]})


@mutation
async def pack(item: str) -> int:
    parcels.append(item)
    return len(parcels)


async def main() -> None:
    async with kagzi.testing.environment(automations=[shop]) as env:
        await env.settle()
        print(f"packed: {', '.join(parcels)}")
        orders.append("table")
        await env.skip("10m")
        print(f"packed: {', '.join(parcels)}")
        async for found in env.client.automations.inputs("shop"):
            print(f"  {found.title}: {found.status}")


if __name__ == "__main__":
    asyncio.run(main())
