"""The order workflow of `kagzi demo`. Each step body notes in a file outside the engine that it ran, and by which
process: what the demo shows at the end is that file, not what the engine believes.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from kagzi.sdk.context import Context
from kagzi.sdk.definition import step, workflow

# Where bodies note that they ran; set by the demo for its workers.
NOTES = "KAGZI_DEMO_NOTES"
STEPS = ("reserve", "charge", "label", "notify", "pack", "ship")


@dataclass
class Order:
    """What was ordered."""

    id: str
    items: list[str]
    cents: int


async def _work(name: str, seconds: float) -> None:
    _note(name)
    await asyncio.sleep(seconds)


def _note(name: str) -> None:
    with Path(os.environ[NOTES]).open("a", encoding="utf-8") as notes:
        notes.write(f"{name} {os.getpid()}\n")


@step
async def reserve(order: Order) -> int:
    await _work("reserve", 0.6)
    return len(order.items)


@step
async def charge(order: Order) -> str:
    await _work("charge", 0.8)
    return f"payment-{order.id}"


@step
async def label(order: Order) -> str:
    await _work("label", 0.5)
    return f"label-{order.id}"


@step
async def notify(order: Order) -> str:
    await _work("notify", 0.7)
    return f"mail-{order.id}"


@step
async def pack(items: int) -> str:
    # Long enough to be killed in the middle of it.
    await _work("pack", 1.5)
    return f"parcel with {items} items"


@step
async def ship(parcel: str, label: str) -> str:
    await _work("ship", 0.6)
    return f"{parcel}, {label}"


@workflow
async def fulfil(ctx: Context, order: Order) -> str:
    """Reserve, charge, prepare label and mail side by side, cool off, pack, ship."""
    items = await ctx.step("reserve", reserve, order)
    await ctx.step("charge", charge, order)
    paper, _ = await asyncio.gather(ctx.step("label", label, order), ctx.step("notify", notify, order))
    await ctx.sleep("cool-off", "1s")
    parcel = await ctx.step("pack", pack, items)
    return await ctx.step("ship", ship, parcel, paper)
