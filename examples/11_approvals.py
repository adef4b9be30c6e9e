"""Approvals: a run waits days for a person, holding nothing. A signal is kept until it is received."""

import asyncio
from dataclasses import dataclass

import kagzi.testing
from kagzi import Context, step, workflow


@dataclass(frozen=True)
class Decision:
    approved: bool
    by: str


@step
async def notify(who: str, text: str) -> None:
    print(f"to {who}: {text}")


@workflow
async def expense(ctx: Context, euros: int) -> str:
    for who, patience in (("the manager", "3 days"), ("the director", "1 week")):
        await ctx.set_state({"waiting for": who})
        await ctx.step(f"ask {who}", notify, who, f"approve {euros} euros?")
        decision = await ctx.receive("decision", Decision, timeout=patience)
        if decision is not None:
            return f"{'approved' if decision.approved else 'refused'} by {decision.by}"
    return "refused: nobody answered"


async def main() -> None:
    async with kagzi.testing.environment(workflows=[expense]) as env:
        quick = await env.client.start(expense, 120, id="expense-1")
        await env.settle()
        # From a web handler, by the id that you chose.
        found = await env.client.find("expense-1")
        await found.signal("decision", Decision(approved=True, by="Grace"))
        print(await quick.result())

        slow = await env.client.start(expense, 9_000)
        await env.skip("3 days")
        print(f"after three days: {await slow.state()}")
        await slow.signal("decision", Decision(approved=False, by="Edsger"))
        print(await slow.result())


if __name__ == "__main__":
    asyncio.run(main())
