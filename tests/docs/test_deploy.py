"""What docs/deploy.md tells to type is typed: the first steps, and a backup that is restored."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import asyncpg

from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.database import Databases
from tests.docs.blocks import of
from tests.docs.terminal import Terminal


async def emptied(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("drop schema kagzi cascade")
    finally:
        await connection.close()


async def test_the_first_steps_and_a_backup_go_as_told(databases: Databases, tmp_path: Path) -> None:
    ours, restored = databases.create(), databases.create()
    try:
        for url in (ours, restored):
            await emptied(url)
        terminal = Terminal(tmp_path, KAGZI_DB_URL=ours, RESTORED_URL=restored, KAGZI_URL="127.0.0.1:1")
        first, backup = of("docs/deploy.md", "sh")
        terminal.type(first)
        key = (tmp_path / "worker.key").read_text(encoding="utf-8")
        assert key.startswith("kagzi_shop.")
        assert json.loads((tmp_path / "health.json").read_text(encoding="utf-8"))
        terminal.type(backup)
        # Whoever holds a key of the backup still does.
        server = Server(Settings(server_port=0, server_require_keys=True), restored)
        await server.start()
        terminal.variables |= {"KAGZI_URL": server.address, "KAGZI_API_KEY": key.strip()}
        try:
            assert "no runs" in (await said(terminal, "kagzi runs list")).lower()
        finally:
            await server.stop(1.0)
    finally:
        databases.drop(ours)
        databases.drop(restored)


async def said(terminal: Terminal, script: str) -> str:
    return await asyncio.to_thread(terminal.type, script)
