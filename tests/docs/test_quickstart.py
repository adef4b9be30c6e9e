"""The quickstart, as somebody who reads it would go through it. Only the day of sleep is shorter."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import kagzi
from tests.docs.blocks import of
from tests.docs.fragments import executed, names
from tests.docs.terminal import Terminal

QUICKSTART = "docs/quickstart.md"


def shop(folder: Path) -> dict[str, Any]:
    """The names that the fragments use, from the program that comes before them."""
    [program] = of(QUICKSTART, "python")
    short = program.replace('ctx.sleep("cool-off", "24h")', 'ctx.sleep("cool-off", "100ms")')
    assert short != program
    return names(short, folder / "shop.py")


async def test_the_quickstart_goes_as_it_says(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = shop(tmp_path)
    variables = {"KAGZI_DB_URL": database_url, "KAGZI_SERVER_PORT": "0", "KAGZI_HTTP_PORT": "0"}
    terminal = Terminal(tmp_path, **variables)
    worker, client = of(QUICKSTART, "python", "fragment")
    work, commands = of(QUICKSTART, "sh")
    [_, serve] = of(QUICKSTART, "console")[0].splitlines()
    with terminal.running(serve, "dashboard: ") as said:
        address = said.split("listens on ")[1].split()[0]
        working = asyncio.create_task(executed(worker.replace("localhost:50051", address), known))
        await executed(client.replace("localhost:50051", address), known)
        assert capsys.readouterr().out == "parcel-of-42\n"
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working
        terminal.variables["KAGZI_URL"] = address
        with terminal.running(work.strip(), "Runs process"):
            listed = await asyncio.to_thread(terminal.type, commands)
            assert "order-43" in listed
            async with kagzi.Client(address) as made:
                assert await (await made.find("order-43")).result(timeout=60) == "parcel-of-43"
