"""A small shop, for the pictures of the dashboard: something of everything that a page can show. It touches nothing
outside.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kagzi import (
    Automation,
    Context,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Retry,
    mutation,
    step,
    workflow,
)


@step
async def reserve(order: dict[str, Any]) -> list[str]:
    await asyncio.sleep(0.15)
    items: list[str] = order["items"]
    return items


@step(retry=Retry(max_attempts=4, initial="300ms"))
async def charge(order: dict[str, Any], answers: bool) -> str:
    await asyncio.sleep(0.1)
    if not answers and not _known(order["id"]):
        raise ConnectionError("the card terminal did not answer")
    return f"payment-{order['id']}"


_asked: set[str] = set()


def _known(order: str) -> bool:
    """Whether it was asked for before, by an attempt that failed."""
    known = order in _asked
    _asked.add(order)
    return known


@step
async def print_label(order: dict[str, Any]) -> str:
    await asyncio.sleep(0.4)
    return f"label-{order['id']}"


@step
async def mail(order: dict[str, Any]) -> None:
    await asyncio.sleep(0.2)


@step
async def ship(order: dict[str, Any]) -> dict[str, str]:
    await asyncio.sleep(0.2)
    return {"parcel": order["id"], "carrier": "Snail & Sons"}


@workflow
async def remind(ctx: Context, who: str) -> str:
    await ctx.sleep("later", "1s")
    return f"reminded {who}"


@workflow
async def order(ctx: Context, order: dict[str, Any]) -> dict[str, str]:
    await ctx.set_state({"phase": "reserving"})
    await ctx.step("reserve", reserve, order)
    await ctx.step("charge", charge, order, order["cents"] % 3 > 0)
    await ctx.set_state({"phase": "charged"})
    await asyncio.gather(ctx.step("print label", print_label, order), ctx.step("mail", mail, order))
    await ctx.sleep("cool-off", "700ms")
    await ctx.run_child("remind", remind, f"customer {order['id']}")
    return await ctx.step("ship", ship, order)


@step(retry=Retry(max_attempts=3, initial="200ms"))
async def parse(text: str) -> int:
    return int(text)


@workflow
async def import_prices(ctx: Context, text: str) -> int:
    return await ctx.step("parse", parse, text)


@workflow
async def holiday(ctx: Context, who: str) -> str:
    await ctx.set_state({"asks": f"may {who} go?"})
    answer = await ctx.receive("approved", dict, timeout="3d")
    return f"{who}: {answer}"


@step(effect=True)
async def transfer(cents: int) -> str:
    raise TimeoutError(f"the bank did not answer about {cents}")


@workflow
async def refund(ctx: Context, cents: int) -> str:
    return await ctx.step("transfer", transfer, cents)


@workflow
async def nightly_report(ctx: Context) -> None:
    await ctx.sleep("until morning", "8h")


inbox = Automation("email-to-sheets")


@inbox.producer(every="20s", publishes=["email.received"])
async def poll(ctx: ProducerContext, seen: int | None) -> int:
    first = seen or 0
    for number in (first, first + 1):
        source = ctx.register_input("mailbox", "email", f"m{number}", title=f"Invoice {number} from Ada")
        ctx.publish("email.received", id=f"m{number}", payload={"invoice": number}, input=source)
    return first + 2


@mutation
async def append_row(sheet: str, row: dict[str, Any]) -> int:
    await asyncio.sleep(0.2)
    number: int = row["invoice"]
    return number


@inbox.consumer(subscribe=["email.received"], publishes=["row.added"])
class AddRow:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        for event in await ctx.peek("email.received", limit=1):
            return Prepared(reserve={event.topic: [event.id]}, data=event.payload, title=f"Add a row for {event.id}")
        return Prepared()

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        await ctx.mutate(append_row, "invoices", prepared.data)

    async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
        if outcome.applied:
            ctx.publish("row.added", id=f"r{outcome.result}", payload={"row": outcome.result})


@inbox.consumer(subscribe=["row.added"])
class Tell:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        rows = [event.id for event in await ctx.peek("row.added", limit=10)]
        return Prepared(reserve={"row.added": rows}, title=f"Tell of {len(rows)} rows") if rows else Prepared()


payouts = Automation("payouts", accepts=["payout.asked"])


@payouts.consumer(subscribe=["payout.asked"])
class PayOut:
    async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
        for event in await ctx.peek("payout.asked", limit=1):
            return Prepared(reserve={"payout.asked": [event.id]}, data=event.payload, title="Pay 5.00 to Ada")
        return Prepared()

    async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
        await ctx.mutate(pay_out, 500)


@mutation
async def pay_out(cents: int) -> str:
    raise TimeoutError(f"the bank did not answer about {cents}")
