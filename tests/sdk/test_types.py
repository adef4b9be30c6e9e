"""What a type checker infers for users: results come back with the types their functions declare."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

# Each line that ends with `# -> X` must be inferred as X; each with `# error` must be refused.
PROGRAM = """
import asyncio
from dataclasses import dataclass
from typing import reveal_type

from kagzi import Client, Context, Worker, step, workflow
from kagzi.sdk.sync import SyncClient


@dataclass
class Order:
    cents: int


@dataclass
class Receipt:
    number: int


@step
async def charge(card: str, cents: int) -> float:
    return cents / 100


@step(timeout="30s")
def label(order: Order) -> bytes:
    return b""


def plain(order: Order) -> list[str]:
    return []


@workflow
async def buy(ctx: Context, order: Order) -> Receipt:
    reveal_type(await ctx.step("charge", charge, "4711", order.cents))  # -> float
    reveal_type(await ctx.step("label", label, order))  # -> bytes
    reveal_type(await ctx.step("plain", plain, order))  # -> list[str]
    reveal_type(await ctx.step("again", charge.with_options(timeout=3), "4711", 3))  # -> float
    reveal_type(await ctx.receive("approved", Order, timeout="3d"))  # -> Order | None
    reveal_type(await ctx.run_child("tick", tick))  # -> int
    paid, labels = await asyncio.gather(ctx.step("c", charge, "1", 1), ctx.step("p", plain, order))
    reveal_type(paid)  # -> float
    reveal_type(labels)  # -> list[str]
    reveal_type(await asyncio.create_task(ctx.step("t", charge, "1", 1)))  # -> float
    return Receipt(1)


@workflow(name="tock")
async def tick(ctx: Context) -> int:
    return 1


async def use(client: Client, run_id: str) -> None:
    handle = await client.start(buy, Order(1), id="order-1", labels={"a": "b"})
    reveal_type(await handle.result(timeout=3))  # -> Receipt
    reveal_type(await client.execute(buy, Order(1)))  # -> Receipt
    reveal_type(await client.execute(tick))  # -> int
    reveal_type(await client.execute("buy", 1))  # -> Any
    reveal_type(await client.handle(run_id, buy).result())  # -> Receipt
    reveal_type(await client.handle(run_id).result())  # -> Any
    reveal_type(await (await handle.retry()).result())  # -> Receipt
    reveal_type(await (await handle.fork("charge", outputs={"a": 1})).result())  # -> Receipt
    reveal_type((await handle.describe()).id)  # -> str | None
    async for run in client.runs(status="FAILED", type=buy):
        reveal_type(run.run_id)  # -> str
    await client.execute(buy, "no order")  # error
    await client.execute(tick, 3)  # error
    await client.start(buy, Order(1), idd="order-1")  # error
    await client.start(buy, Order(1), on_conflict="explode")  # error


def block(client: SyncClient, run_id: str) -> None:
    reveal_type(client.start(buy, Order(1)).result())  # -> Receipt
    reveal_type(client.execute(tick))  # -> int
    reveal_type(client.handle(run_id, buy).result())  # -> Receipt
    reveal_type(client.handle(run_id).describe().run_id)  # -> str
    client.handle(run_id).signal(3)  # error
    for run in client.runs(limit=3):
        reveal_type(run.labels["a"])  # -> str


Worker("localhost:50051", workflows=[buy, tick])
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says of each line of the program."""
    program = tmp_path_factory.mktemp("types") / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines: dict[int, str] = {}
    for found in re.finditer(r"^(.+?):(\d+): (.+)$", done.stdout, re.MULTILINE):
        if Path(found[1]).name == "program.py":
            lines[int(found[2])] = lines.get(int(found[2]), "") + found[3]
    return lines


def marked(mark: str) -> list[tuple[int, str]]:
    lines = enumerate(PROGRAM.splitlines(), 1)
    return [(number, line.partition(mark)[2].strip()) for number, line in lines if mark in line]


def test_the_types_of_results_are_inferred(said: dict[int, str]) -> None:
    wanted = {number: f'Revealed type is "{name}"' for number, name in marked("# ->")}
    assert len(wanted) > 20
    found = {
        number: re.sub(r"\b(?:builtins|program|tests\.sdk\.program)\.", "", said.get(number, "")) for number in wanted
    }
    assert {n: re.sub(r"^note: ", "", text) for n, text in found.items()} == wanted


def test_what_does_not_fit_is_refused(said: dict[int, str]) -> None:
    wanted = {number for number, _ in marked("# error")}
    assert {number for number, text in said.items() if "error: " in text} == wanted
