"""Batches with a time limit: readings are stored ten at a time, or when the oldest has waited for five minutes.

python -m examples.automations.batches
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import kagzi.testing
from kagzi import Automation, MutateContext, PrepareContext, Prepared, mutation
from kagzi.sdk.automations import NewEvent

SIZE = 10
PATIENCE = timedelta(minutes=5)

batches = Automation("batches", accepts=["reading"])
stored: list[list[int]] = []


@batches.consumer(subscribe=["reading"])
class Store:
    """Stores readings in batches."""

    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        """Takes a full batch, or what there is when the oldest has waited long enough."""
        found = await ctx.peek("reading", limit=SIZE)
        if not found:
            return Prepared()
        late = found[0].published_at + PATIENCE
        if len(found) < SIZE and ctx.now() < late:
            return Prepared(wake_at=late)
        return Prepared(
            reserve={"reading": [each.id for each in found]},
            data=[each.payload for each in found],
            title=f"Store {len(found)} readings",
        )

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        """Stores the batch."""
        await ctx.mutate(insert, prepared.data)


@mutation
async def insert(readings: list[int]) -> int:
    """Stands for a warehouse that likes few large writes."""
    stored.append(readings)
    return len(readings)


async def main() -> None:
    """Twenty-four readings: two full batches at once, four when their time is up."""
    async with kagzi.testing.environment(automations=[batches]) as env:
        events = [NewEvent("reading", id=f"{number:02}", payload=number) for number in range(24)]
        await env.client.automations.publish_many("batches", events)
        await env.settle()
        print(f"at once: {[len(batch) for batch in stored]}")
        await env.skip("6m")
        print(f"later:   {[len(batch) for batch in stored]}")


if __name__ == "__main__":
    asyncio.run(main())
