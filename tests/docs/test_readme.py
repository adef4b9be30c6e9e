"""What the README shows is what runs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from kagzi import Client
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.docs.blocks import of
from tests.docs.fragments import executed, names

ROOT = Path(__file__).resolve().parents[2]


async def test_the_first_workflow_of_the_readme_runs_as_it_stands(database_url: str, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    program = tmp_path / "first.py"
    program.write_text(code, encoding="utf-8")
    server = Server(Settings(server_port=0), database_url)
    await server.start()
    try:
        environment = {**os.environ, "KAGZI_URL": server.address}
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), env=environment, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        await server.stop(1.0)
    assert process.returncode == 0
    assert output.decode().strip() == "parcel-of-42"


async def test_its_schedule_is_made_and_tells_its_next_times(database_url: str, tmp_path: Path) -> None:
    [program], [fragment] = of("README.md", "python"), of("README.md", "python", "fragment")
    server = Server(Settings(server_port=0), database_url)
    await server.start()
    try:
        async with Client(server.address) as client:
            await executed(fragment, {**names(program, tmp_path / "first.py"), "client": client})
            info = await client.schedules.get("weekly")
    finally:
        await server.stop(1.0)
    assert (info.type, info.timezone) == ("process", "Europe/Berlin")


def test_every_make_target_the_readme_names_exists() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets
