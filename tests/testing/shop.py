"""A small shop, as its owner would write it: what the tests of this room run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kagzi import Applied, Context, Retry, Unclear, step, workflow


@dataclass(frozen=True)
class Order:
    id: str
    cents: int


@dataclass(frozen=True)
class Approval:
    by: str


@dataclass(frozen=True)
class Receipt:
    order: str
    payment: str
    approved_by: str | None
    parcel: str


@dataclass
class Log:
    """What really happened, in this process."""

    happened: list[str] = field(default_factory=list)


log = Log()


@step
async def charge(order: Order) -> str:
    log.happened.append(f"charge {order.id}")
    return f"payment of {order.cents}"


@step
def hand_over(order_id: str) -> str:
    log.happened.append(f"hand over {order_id}")
    return f"parcel {order_id}"


@workflow
async def shipping(ctx: Context, order_id: str) -> str:
    await ctx.sleep("on its way", "2d")
    return await ctx.step("hand over", hand_over, order_id)


@workflow
async def buying(ctx: Context, order: Order) -> Receipt:
    payment = await ctx.step("charge", charge, order)
    await ctx.sleep("cool off", "24h")
    approval = await ctx.receive("approved", Approval, timeout="3d")
    await ctx.set_state({"approved": approval is not None})
    parcel = await ctx.run_child("ship", shipping, order.id)
    return Receipt(order.id, payment, approval.by if approval else None, parcel)


@workflow
async def digest(ctx: Context, days: int) -> list[str]:
    """Something for every day."""
    written = []
    for _ in range(days):
        await ctx.sleep("day", "1d")
        written.append(await ctx.step("write", note, "digest"))
    return written


@step
async def note(text: str) -> str:
    log.happened.append(text)
    return text


tries: list[datetime] = []


@workflow
async def stubborn(ctx: Context, succeeds_at: int) -> list[str]:
    """Tries again after 1, 2, 4 and 8 minutes; answers when it tried."""

    async def attempt() -> list[str]:
        tries.append(datetime.now())  # noqa: DTZ005 - only compared with each other
        if len(tries) < succeeds_at:
            raise ConnectionError("nobody answers")
        return [f"try {number + 1}" for number in range(len(tries))]

    patient = step(retry=Retry(max_attempts=5, initial="1m", backoff=2.0, max_interval="1h"))(attempt)
    return await ctx.step("call", patient)


@step(effect=True)
async def pay() -> str:
    raise ConnectionError("the line broke")


@pay.reconcile
async def ask(key: str) -> Applied | Unclear:
    tries.append(datetime.now())  # noqa: DTZ005 - only counted
    return Unclear() if len(tries) < 3 else Applied("paid before")


@workflow
async def paying(ctx: Context) -> str:
    """Nobody knows at first whether it paid."""
    return await ctx.step("pay", pay)


@workflow(retry=Retry(max_attempts=3, initial="1h", backoff=3.0, max_interval="1d"))
async def whole(ctx: Context) -> int:
    """Fails as a whole, twice."""
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return ctx.attempt


@workflow(timeout="2h")
async def hurried(ctx: Context) -> None:
    """Has two hours and would take a week; tidies up when its time is over."""
    try:
        await ctx.sleep("week", "7d")
    finally:
        await ctx.step("tidy up", note, "tidied up")


@workflow
async def racing(ctx: Context) -> list[timedelta]:
    """Several timers at once; answers when each rang."""
    began = ctx.now()

    async def ring(name: str, delay: str) -> timedelta:
        await ctx.sleep(name, delay)
        return ctx.now() - began

    return list(await asyncio.gather(ring("long", "3d"), ring("short", "10ms"), ring("middle", "90m")))


@workflow(queue="letters")
async def posting(ctx: Context, text: str) -> str:
    """Of another queue."""
    await ctx.sleep("dry", "1m")
    return await ctx.step("post", note, text)
