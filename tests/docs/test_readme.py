"""What the README shows is what runs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from kagzi.server.app import Server
from kagzi.server.settings import Settings

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


def test_every_make_target_the_readme_names_exists() -> None:
    named = set(re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named <= targets
