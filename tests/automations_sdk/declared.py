"""Automations to try things with: the example of the documentation, whole and with one thing wrong."""

from __future__ import annotations

from typing import Any

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


@mutation
async def append_row(sheet: str, row: dict[str, Any]) -> int:
    return len(sheet) + len(row)


@append_row.reconcile
async def _(key: str, sheet: str, row: dict[str, Any]) -> Applied | Absent:
    return Applied(len(sheet) + len(row)) if key else Absent()


def inbox(name: str = "email-to-sheets") -> Automation:
    """A producer and two consumers, as they should be."""
    automation = Automation(name)

    @automation.producer(every="5m", publishes=["email.received"])
    async def poll(ctx: ProducerContext, state: dict[str, Any] | None) -> dict[str, Any]:
        source = ctx.register_input("gmail", "email", "1", title="Email from Ann")
        ctx.publish("email.received", id="1", payload={"from": "Ann"}, input=source)
        return {"cursor": (state or {}).get("cursor", 0) + 1}

    @automation.consumer(subscribe=["email.received"], publishes=["row.created"])
    class AddRow:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            mails = await ctx.peek("email.received", limit=10)
            if not mails:
                return Prepared()
            return Prepared(reserve={"email.received": [mails[0].id]}, data=mails[0].payload, title="Add a row")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(append_row, "reports", prepared.data)

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if outcome.applied:
                ctx.publish("row.created", id=f"row-{outcome.result}", payload={"row": outcome.result})

    @automation.consumer(subscribe=["row.created"])
    class Tell:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            rows = await ctx.peek("row.created")
            return Prepared(reserve={"row.created": [row.id for row in rows]})

    return automation
