"""Restate: a server of its own that stores what happens, and a worker that it calls over HTTP/2. Started as its pages
say, with granian before the application: it was a third faster there than hypercorn, which its examples use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.lab import free_port
from benchmarks.peers import environment
from benchmarks.peers.environment import PROGRAMS
from benchmarks.peers.stage import Stage, closing, end, heard, logged, spawn

PACKAGES = ("restate-sdk==1.2.0", "granian==2.8.7", "aiohttp==3.14.5")
SERVER = "@restatedev/restate-server@1.7.12"


@contextlib.asynccontextmanager
async def restate(poll: float | None = None) -> AsyncIterator[Stage]:  # noqa: ARG001 - nobody polls here
    """One server, one worker process."""
    python = environment.python("restate", *PACKAGES)
    program = environment.npm("restate-server", SERVER, "restate-server")
    ingress, admin, node, service = (free_port() for _ in range(4))
    with tempfile.TemporaryDirectory(prefix="kagzi-bench-") as folder, logged("restate") as log:
        server = spawn(program, "--base-dir", folder, log=log, **_settings(ingress, admin, node))
        try:
            await _answers(f"http://127.0.0.1:{admin}/health")

            def work() -> list[subprocess.Popen[str]]:
                made = spawn(*_worker(python, service), log=log)
                _until_listening(service, made)
                return [made]

            async def unended(_: int) -> int:
                return await asyncio.to_thread(_count, admin)

            client = spawn(python, PROGRAMS / "on_restate.py", "client", f"http://127.0.0.1:{ingress}", log=log)
            stage = Stage(client, unended, work, {"server": [server.pid]})
            async with closing(stage):
                await heard(client)
                await asyncio.to_thread(stage.work)
                await asyncio.to_thread(_post, f"http://127.0.0.1:{admin}/deployments", _deployment(service))
                await _answers(f"http://127.0.0.1:{ingress}/restate/health")
                await stage.execute("one", 5)
                stage.rest()
                yield stage
        finally:
            end(server)


def _settings(ingress: int, admin: int, node: int) -> dict[str, str]:
    return {
        "DO_NOT_TRACK": "1",
        "RESTATE_LOG_FILTER": "warn",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{admin}",
    }


def _worker(python: Path, port: int) -> list[str]:
    granian = str(python.parent / "granian")
    return [granian, "--interface", "asgi", "--http", "2", "--host", "127.0.0.1", "--port", str(port), "on_restate:app"]


def _deployment(port: int) -> dict[str, Any]:
    return {"uri": f"http://127.0.0.1:{port}", "use_http_11": False, "force": True}


def _count(admin: int) -> int:
    query = {"query": "select count(*) as c from sys_invocation where status <> 'completed'"}
    return int(_post(f"http://127.0.0.1:{admin}/query", query)["rows"][0]["c"])


def _post(url: str, document: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", "accept": "application/json"}
    request = urllib.request.Request(url, json.dumps(document).encode(), headers)  # noqa: S310 - loopback
    for _ in range(50):
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - loopback
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} refuses")


async def _answers(url: str) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(_ask, url):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


def _ask(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - loopback
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def _until_listening(port: int, process: subprocess.Popen[str]) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise RuntimeError("the worker of Restate does not listen")
