"""Who waits on the command line for a run that does not begin is told why."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kagzi import Client
from kagzi.cli.problems import FAILED
from kagzi.server.app import Server
from tests.sdk.serving import serving


async def test_who_waits_for_a_run_that_nobody_serves_is_told_why(database_url: str) -> None:
    told = "Not running yet: no worker serves the queue default. Start one: `kagzi worker MODULE"
    async with serving(database_url) as server, Client(server.address) as client:
        watched = await client.start("waits", id="watched")
        async with (
            _kagzi(server, "start", "waits", "--id", "awaited", "--wait", "--json") as awaiting,
            _kagzi(server, "runs", "watch", "watched", "--json") as watching,
            asyncio.timeout(120),
        ):
            for each in (awaiting, watching):
                assert await _says(each, told)
            await watched.terminate()
            await (await client.find("awaited")).terminate()
            for each in (awaiting, watching):
                out, _ = await each.communicate()
                assert each.returncode == FAILED
                assert json.loads(out)["run_id"]


@asynccontextmanager
async def _kagzi(server: Server, *words: str) -> AsyncIterator[Process]:
    """The command as a process, for what it says before it ends."""
    variables = os.environ | {"KAGZI_URL": server.address, "NO_COLOR": "1", "TERM": "dumb"}
    command = (sys.executable, "-m", "kagzi.cli", *words)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=variables)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _says(process: Process, beginning: str) -> bool:
    """Whether a line of its stderr begins so, once one does."""
    assert process.stderr is not None
    async for line in process.stderr:
        if line.decode().startswith(beginning):
            return True
    return False
