"""Where `kagzi bench` takes place: a namespace of its own in the user's database, with a server and workers of its own
as processes on loopback. Whatever happens, they end and the namespace is erased; nothing else is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from kagzi.cli import trial

if TYPE_CHECKING:
    from kagzi.server.settings import Settings

_PATIENCE = 30.0
# What a user set for the way of a run is measured as it is; doors and keys are the bench's own.
_KEPT = ("db_", "batcher_", "dispatcher_", "coordinator_", "worker_", "limit_", "retention_")


class Ground:
    """A server's address, the namespace, and workers on demand."""

    def __init__(self, address: str, namespace: str) -> None:
        self.address = address
        self.namespace = namespace
        self._workers: list[subprocess.Popen[str]] = []

    def start_worker(self, concurrency: int = 100) -> None:
        """One worker process."""
        options = ("--url", self.address, "--namespace", self.namespace, "--concurrency", str(concurrency))
        self._workers.append(_spawn("worker", trial.__name__, *options))

    async def stop_workers(self) -> None:
        """Ends them in order."""
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            await _ended(worker)
        self._workers.clear()


@contextlib.asynccontextmanager
async def ground(settings: Settings, url: str) -> AsyncIterator[Ground]:
    """Made and taken away."""
    import asyncpg

    from kagzi.store import erasure, namespaces

    connection = await asyncpg.connect(url)
    name = f"bench-{secrets.token_hex(4)}"
    try:
        await namespaces.create(connection, name, description="Made by `kagzi bench`, which erases it.")
        try:
            async with _serving(settings, url, name) as place:
                yield place
        finally:
            await erasure.erase(connection, name)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _serving(settings: Settings, url: str, name: str) -> AsyncIterator[Ground]:
    from kagzi.server.listener import StartError

    given = settings.model_dump(mode="json")
    environment = {f"KAGZI_{key.upper()}": str(value) for key, value in given.items() if _passed_on(key, value)}
    environment |= {"KAGZI_DB_URL": url, "KAGZI_HTTP_PORT": "0", "KAGZI_LOG_LEVEL": "error"}
    server = _spawn("server", "--port", "0", **environment)
    place = None
    try:
        assert server.stdout is not None
        async with asyncio.timeout(_PATIENCE):
            line = await asyncio.to_thread(server.stdout.readline)
        if not line:
            raise StartError("the server for the bench did not start: try `kagzi server` to see why")
        place = Ground(line.split()[-1], name)
        yield place
    finally:
        if place is not None:
            await place.stop_workers()
        server.send_signal(signal.SIGTERM)
        await _ended(server)


def _passed_on(key: str, value: object) -> bool:
    return key.startswith(_KEPT) and value is not None


def _spawn(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("KAGZI_")}
    return subprocess.Popen(
        [sys.executable, "-m", "kagzi.cli", *arguments],
        env={**inherited, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        # A Ctrl-C in the terminal is for the bench, which ends the others in order.
        start_new_session=True,
    )


async def _ended(process: subprocess.Popen[str]) -> None:
    try:
        await asyncio.to_thread(process.communicate, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        await asyncio.to_thread(process.communicate)
