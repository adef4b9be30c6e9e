"""The laboratory: a database, a server and workers as processes of their own. Durability is asserted, never assumed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from benchmarks.span import Parts, Span
from kagzi import Client
from kagzi.embedded import Embedded
from kagzi.store import migrate

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Lab:
    """Running parts. `address` is the server's."""

    database: Embedded
    address: str
    server: subprocess.Popen[bytes]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(self, concurrency: int = 100, program: str = "benchmarks.program") -> subprocess.Popen[bytes]:
        """A worker of the benchmark's workflows, or of another program's."""
        process = _start("worker", program, "--url", self.address, "--concurrency", str(concurrency))
        self.workers.append(process)
        return process

    def stop_workers(self) -> None:
        """Ends all workers in order."""
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.wait(40)
        self.workers.clear()

    def kill_workers(self) -> None:
        """Ends all workers as a crash does."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers.clear()

    def parts(self) -> Parts:
        """The processes, by the part they play; this one is the client."""
        return {
            "client": [os.getpid()],
            "server": [self.server.pid],
            "worker": [worker.pid for worker in self.workers],
            "database": [self.database.pid],
        }

    def span(self) -> Span:
        """Time that is measured from `with` to its end."""
        return Span(self.parts())


@contextlib.asynccontextmanager
async def laboratory(**settings: str) -> AsyncIterator[Lab]:
    """A fresh database on disk, a server with these `KAGZI_…` settings, no workers yet."""
    async with fresh_database() as database:
        await migrate.apply(database.url)
        port = free_port()
        environment = {"KAGZI_DB_URL": database.url, "KAGZI_LOG_LEVEL": "warning", "KAGZI_HTTP_PORT": "0", **settings}
        server = _start("server", "--port", str(port), environment=environment)
        lab = Lab(database, f"127.0.0.1:{port}", server)
        try:
            await _answers(lab.address)
            yield lab
        finally:
            lab.stop_workers()
            server.send_signal(signal.SIGTERM)
            server.wait(20)


@contextlib.asynccontextmanager
async def fresh_database() -> AsyncIterator[Embedded]:
    """An empty PostgreSQL on disk that is as durable as a commit promises."""
    with tempfile.TemporaryDirectory(prefix="kagzi-bench-") as folder:
        async with Embedded(Path(folder) / "postgres") as database:
            await _assert_durable(database.url)
            yield database


async def _assert_durable(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            value = await connection.fetchval("select current_setting($1)", setting)
            assert value == "on", f"{setting} is {value}: a figure without durability is no figure"
    finally:
        await connection.close()


async def _answers(address: str) -> None:
    async with asyncio.timeout(30), Client(address) as client:
        while True:
            try:
                async for _ in client.runs():
                    break
                return
            except Exception:  # noqa: BLE001 - it is starting
                await asyncio.sleep(0.05)


def _start(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "kagzi.cli", *arguments],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL,
        cwd=ROOT,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
