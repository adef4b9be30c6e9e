"""The automations of W11: a producer, a consumer and another one behind it, with one mutation each.
`kagzi worker benchmarks.chain` serves them; CHAINS says how many there are, LINKS how many events each gets.
"""

from __future__ import annotations

import os
from typing import Any

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

CHAINS = int(os.environ.get("CHAINS", "100"))
LINKS = int(os.environ.get("LINKS", "50"))


@mutation
async def change(number: int) -> int:
    """Stands for a change of the outside that takes no time."""
    return number + 1


def chain(name: str) -> Automation:
    """Publishes nothing when it is deployed, and everything when it is asked to run."""
    automation = Automation(name)

    @automation.producer(every="1d", publishes="first")
    async def poll(ctx: ProducerContext, state: int | None) -> int:
        passes = 0 if state is None else state + 1
        for number in range(LINKS if passes else 0):
            name = f"{passes}/{number}"
            source = ctx.register_input("bench", "number", name)
            ctx.publish("first", id=name, payload={"number": number}, input=source)
        return passes

    @automation.consumer(subscribe="first", publishes="second")
    class First:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return await _one(ctx, "first")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(change, prepared.data["number"])

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if outcome.applied:
                ctx.publish("second", id=prepared.reserve["first"][0], payload={"number": outcome.result})

    @automation.consumer(subscribe="second")
    class Second:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return await _one(ctx, "second")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(change, prepared.data["number"])

    return automation


async def _one(ctx: PrepareContext, topic: str) -> Prepared:
    found = await ctx.peek(topic, limit=1)
    if not found:
        return Prepared()
    return Prepared(reserve={topic: [found[0].id]}, data=found[0].payload)


def names() -> list[str]:
    """The automations that are served."""
    return [f"chain-{number}" for number in range(CHAINS)]


for _name in names():
    globals()[_name] = chain(_name)
