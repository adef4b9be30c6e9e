"""Many automations that each leave marks outside: when a handler begins and when it ends, under the run's id. Run by
workers that are killed; `SWARM` says how many there are, `OUTSIDE_URL` where the outside is. Everything outside names
the worker it came from, as far as that has a name.
"""

from __future__ import annotations

import os
from typing import Any

import kagzi
from kagzi import (
    Absent,
    Applied,
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    mutation,
)
from kagzi.automations.mutation import Mutation
from tests.automations_sdk.visits import visit
from tests.survival import effects

OUTSIDE = os.environ.get("OUTSIDE_URL", "")
EVERY = os.environ.get("SWARM_EVERY", "2s")
WORKER = os.environ.get(effects.WORKER, "")


async def mark(ctx: Any, what: str) -> None:
    """Somebody is at work."""
    facts = {"of": ctx.automation, "handler": ctx.handler, "run": ctx.run_id, "what": what, "worker": WORKER}
    await visit(OUTSIDE, "POST", "/marks", facts)


@mutation
async def append(of: str, event: str) -> int:
    facts = {"key": kagzi.idempotency_key(), "of": of, "event": event, "worker": WORKER}
    number: int = (await visit(OUTSIDE, "POST", "/rows", facts))["number"]
    return number


@append.reconcile
async def _(key: str, of: str, event: str) -> Applied | Absent:
    found = await visit(OUTSIDE, "GET", f"/rows?key={key}")
    return Applied(found[0]["number"]) if found else Absent()


def swarming(name: str, tool: Mutation[[str, str], int] = append) -> Automation:
    """A producer, a consumer that changes the outside, and one that follows it."""
    automation = Automation(name)

    @automation.producer(every=EVERY, publishes="mail")
    async def poll(ctx: ProducerContext, state: int | None) -> int:
        await mark(ctx, "begin")
        number = (state or 0) + 1
        ctx.publish("mail", id=str(number), input=ctx.register_input("outside", "mail", str(number)))
        await mark(ctx, "end")
        return number

    @automation.consumer(subscribe="mail", publishes="row")
    class Add:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("mail", limit=1)
            if found:
                await mark(ctx, "begin")
            return Prepared(reserve={"mail": [event.id for event in found]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(tool, ctx.automation, prepared.reserve["mail"][0])

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if prepared.reserved:
                ctx.publish("row", id=prepared.reserve["mail"][0], payload=outcome.result)
                await mark(ctx, "end")

    @automation.consumer(subscribe="row")
    class Tell:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("row")
            if found:
                await mark(ctx, "begin")
            return Prepared(reserve={"row": [event.id for event in found]})

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if prepared.reserved:
                await mark(ctx, "end")

    return automation


for _number in range(int(os.environ.get("SWARM", "0"))):
    globals()[f"swarming_{_number}"] = swarming(f"swarming-{_number}")
