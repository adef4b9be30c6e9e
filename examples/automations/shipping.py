"""Two topics belong together: an order is shipped once it is paid and packed, in whichever order that happens.

python -m examples.automations.shipping
"""

from __future__ import annotations

import asyncio
from typing import Any

import kagzi.testing
from kagzi import Automation, MutateContext, NextContext, Outcome, PrepareContext, Prepared, mutation

orders = Automation("shipping", accepts=["order.paid", "order.packed"])
shipped: list[str] = []


@orders.consumer(subscribe=["order.paid", "order.packed"], publishes=["order.shipped"])
class Ship:
    """Ships what is paid and packed."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Finds the oldest order that is in both topics."""
        paid = await ctx.peek("order.paid", limit=1_000)
        packed = await ctx.get("order.packed", [payment.id for payment in paid])
        boxes = {event.id: event for event in packed if event.status == "PENDING"}
        for payment in paid:
            if payment.id in boxes:
                return Prepared(
                    reserve={"order.paid": [payment.id], "order.packed": [payment.id]},
                    data={"order": payment.id, "box": boxes[payment.id].payload},
                    title=f"Ship order {payment.id}",
                )
        return Prepared()

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Calls the carrier."""
        await ctx.mutate(collect, prepared.data["order"], prepared.data["box"])

    async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
        """Tells with which parcel."""
        if outcome.applied:
            ctx.publish("order.shipped", id=prepared.data["order"], payload=outcome.result)


@orders.consumer(subscribe=["order.shipped"])
class Notify:
    """Tells the customer."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Takes whatever was shipped."""
        parcels = await ctx.peek("order.shipped")
        return Prepared(reserve={"order.shipped": [parcel.id for parcel in parcels]})


@mutation
async def collect(order: str, box: str) -> str:
    """Stands for a carrier."""
    shipped.append(order)
    return f"parcel of {box} for {order}"


async def main() -> None:
    """Three orders, of which one is never packed."""
    async with kagzi.testing.environment(automations=[orders]) as env:
        publish = env.client.automations.publish
        for topic, order in (
            ("order.paid", "1"),
            ("order.packed", "2"),
            ("order.paid", "3"),
            ("order.paid", "2"),
            ("order.packed", "1"),
        ):
            await publish("shipping", topic, id=order, payload=f"box {order}")
            await env.settle()
        print(f"shipped: {', '.join(shipped)}")
        waiting = [event.id async for event in env.client.automations.events("shipping", status="PENDING")]
        print(f"waiting: {', '.join(waiting)}")


if __name__ == "__main__":
    asyncio.run(main())
