"""The laboratory: a database, a server and workers as processes of their own, with their CPU time and memory.
Durability is asserted, never assumed.
"""

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

from kagzi import Client
from kagzi.embedded import Embedded
from kagzi.store import migrate

_TICKS = os.sysconf("SC_CLK_TCK")


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

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far, by part."""
        return {
            "client": _cpu(os.getpid()),
            "server": _cpu(self.server.pid),
            "worker": sum(_cpu(worker.pid) for worker in self.workers),
            "database": sum(_cpu(pid) for pid in _family(self.database.pid)),
        }

    def memory_mb(self) -> dict[str, float]:
        """Resident memory now, by part."""
        return {"server": _memory(self.server.pid), "worker": sum(_memory(worker.pid) for worker in self.workers)}


@contextlib.asynccontextmanager
async def laboratory() -> AsyncIterator[Lab]:
    """A fresh database on disk, a server, no workers yet."""
    with tempfile.TemporaryDirectory(prefix="kagzi-bench-") as folder, Embedded(Path(folder) / "postgres") as database:
        await migrate.apply(database.url)
        await _assert_durable(database.url)
        port = _free_port()
        environment = {"KAGZI_DB_URL": database.url, "KAGZI_LOG_LEVEL": "warning", "KAGZI_HTTP_PORT": "0"}
        server = _start("server", "--port", str(port), environment=environment)
        lab = Lab(database, f"127.0.0.1:{port}", server)
        try:
            await _answers(lab.address)
            yield lab
        finally:
            lab.stop_workers()
            server.send_signal(signal.SIGTERM)
            server.wait(20)


async def _assert_durable(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            value = await connection.fetchval("select current_setting($1)", setting)
            assert value == "on", f"{setting} is {value}: a figure without durability is no figure"
    finally:
        await connection.close()


async def _answers(address: str) -> None:
    async with asyncio.timeout(20), Client(address) as client:
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
        cwd=Path(__file__).resolve().parents[1],
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [pid, *(grandchild for child in found for grandchild in _family(child))]


def _memory(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
