"""Everything that can fail, as real processes on this machine: a database of its own, servers, workers and clients,
with a wire between any two that speak to each other, and an outside that automations change. It starts, kills, stops
and replaces them, and knows nothing of what is right: those who judge do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from kagzi.embedded import Embedded
from kagzi.store import migrate
from tests.automations_sdk.visits import log_of, outside
from tests.faults import acknowledgements
from tests.faults.acknowledgements import Line
from tests.faults.books import Books
from tests.faults.wire import Wire
from tests.house.tree import ROOT
from tests.survival.checker import Trouble
from tests.survival.crew import Crew, WorkerProcess
from tests.survival.load import until
from tests.survival.station import Station

LEASE = 6.0
_PROGRAM = "tests.faults.program"
_SLOTS = "8"
# Errands that a client has under way.
_LANES = "10"


class Estate:
    """`servers` servers behind a wire to the database each; every worker and client has a wire to each server."""

    def __init__(self, postgres: Embedded, directory: Path, seed: int, servers: int = 2, clients: int = 2) -> None:
        self.postgres = postgres
        self.seed = seed
        self.directory = directory
        self.stations: list[Station] = []
        self.wires: dict[str, Wire] = {}
        self.crew = Crew("", directory, "--concurrency", _SLOTS, program=_PROGRAM)
        # The address of the outside.
        self.outside = ""
        # Who works behind which wires.
        self.berths: dict[str, WorkerProcess] = {}
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.troubles: list[Trouble] = []
        # Workers that were told to end.
        self.drained: set[str] = set()
        self._names = [f"client-{number}" for number in range(1, clients + 1)]
        self._count = servers
        self._outside_log = directory / "outside.jsonl"
        self._stack = AsyncExitStack()
        self._runs = itertools.count(1)

    async def __aenter__(self) -> Self:
        await migrate.apply(self.postgres.url)
        settings = {"worker_visibility_timeout_secs": LEASE, "faults_seed": self.seed}
        for number in range(self._count):
            wire = await self._wire(f"database of server {number}", self.postgres.url)
            station = Station(wire.url, self.directory / f"server-{number}", **settings)
            self._stack.push(station)
            self.stations.append(station)
        await asyncio.gather(*(asyncio.to_thread(station.start) for station in self.stations))
        self._stack.enter_context(self.crew)
        self.outside, _ = self._stack.enter_context(outside(self._outside_log))
        return self

    async def __aexit__(self, *error: object) -> None:
        for client in self.clients.values():
            client.kill()
            client.wait()
        await self._stack.__aexit__(None, None, None)

    async def staff(self, workers: int) -> None:
        """Workers begin; returns when one of them has got to work."""
        for number in range(1, workers + 1):
            await self.hire(f"worker {number}")
        await until(lambda: any(worker.connected for worker in self.berths.values()))

    async def open(self) -> None:
        """Clients begin."""
        for name in self._names:
            await self.call(name)

    async def hire(self, berth: str) -> None:
        environment = {"OUTSIDE_URL": self.outside, "SWARM_EVERY": "1s"}
        self.berths[berth] = self.crew.hire("--url", await self._servers(berth), **environment)

    async def call(self, name: str) -> None:
        """A client; one that was killed goes on with what it had set out for."""
        options = (await self._servers(name), str(self._log(name)), name, str(self.seed), _LANES)
        self.clients[name] = self._begin(name, *options)

    def _begin(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.caller", *options]
        with (self.directory / f"{name}.{next(self._runs)}.out").open("wb") as out:
            return subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)

    def kill_client(self, name: str) -> None:
        client = self.clients[name]
        client.kill()
        client.wait()

    async def finish(self, seconds: float) -> list[str]:
        """Clients end what is under way. Answers who did not."""
        for name in self.clients:
            acknowledgements.stop(self._log(name)).touch()
        with contextlib.suppress(TimeoutError):
            await until(lambda: all(client.poll() is not None for client in self.clients.values()), seconds)
        return [
            f"{name} ended with {client.returncode}" for name, client in self.clients.items() if client.returncode != 0
        ]

    def acknowledged(self) -> list[Line]:
        return acknowledgements.read(self._log(name) for name in self._names)

    async def changer(self, automation: str, seconds: float) -> str:
        """The worker that is the next to change the outside for this automation, as soon as it has."""
        with self._outside_log.open(encoding="utf-8") as log:
            log.seek(0, os.SEEK_END)
            async with asyncio.timeout(seconds):
                while True:
                    for line in log.read().splitlines():
                        entry = json.loads(line)
                        if (entry["kind"], entry.get("of")) == ("row", automation):
                            worker: str = entry["worker"]
                            return worker
                    await asyncio.sleep(0.01)

    def books(self) -> Books:
        """What the outside has written down."""
        return Books(log_of(self.outside, "row"), log_of(self.outside, "mark"))

    def progress(self) -> int:
        """Grows whenever a step or a client gets on."""
        logs = [self.crew.effects, *(self._log(name) for name in self._names)]
        return sum(log.stat().st_size for log in logs if log.exists())

    def trouble(self, began: int, worker: str = "") -> None:
        """A time that ends about now, in which leases could be lost, and what follows of it for a moment."""
        self.troubles.append(Trouble(worker, began, time.monotonic_ns() + int(LEASE * 1e9)))

    async def _servers(self, who: str) -> str:
        """The way to every server for one of those who use them."""
        wires = [
            await self._wire(f"{who} to server {number}", station.address)
            for number, station in enumerate(self.stations)
        ]
        return ",".join(wire.address for wire in wires)

    async def _wire(self, name: str, upstream: str) -> Wire:
        if name not in self.wires:
            self.wires[name] = await self._stack.enter_async_context(Wire(upstream))
        return self.wires[name]

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.jsonl"
