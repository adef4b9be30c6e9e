"""Many automations side by side while workers and the server are killed again and again. The outside's own log shows
that no two handlers of one automation ever overlapped, and that every event changed it once at most.

`SWARM=200 SWARM_SECS=60 pytest tests/automations_sdk/test_swarm.py` is the long version.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from kagzi import Client
from tests.automations_sdk.visits import log_of, outside
from tests.house.tree import ROOT
from tests.survival.load import until, until_async
from tests.survival.station import Station

COUNT = int(os.environ.get("SWARM", "30"))
SECONDS = float(os.environ.get("SWARM_SECS", "9"))
EVERY = os.environ.get("SWARM_EVERY", "1s" if COUNT < 100 else "5s")
SEED = int(os.environ.get("SURVIVAL_SEED", "20240607"))
BETWEEN_KILLS = 3.0
WORKERS = 2


def test_overlaps_and_repeats_are_found() -> None:
    def mark(run: str, what: str, of: str = "a") -> dict[str, Any]:
        return {"of": of, "run": run, "what": what, "handler": "h"}

    assert overlaps([mark("1", "begin"), mark("1", "end"), mark("2", "begin"), mark("2", "end")]) == []
    assert overlaps([mark("1", "begin"), mark("2", "begin", "b"), mark("1", "end")]) == []
    # A worker died after the first mark, and another one began the run again.
    assert overlaps([mark("1", "begin"), mark("1", "begin"), mark("1", "end")]) == []
    assert overlaps([mark("1", "begin"), mark("2", "begin"), mark("1", "end")]) == [("a", "1", "2")]


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_two_handlers_of_one_automation_overlap_whoever_is_killed(database_url: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    settings = {"worker_visibility_timeout_secs": 2, "worker_heartbeat_interval_secs": 0.5}
    kills: Counter[str] = Counter()
    with (
        outside(tmp_path / "log") as (address, _),
        Station(database_url, tmp_path / "server", **settings) as server,
    ):
        workers = [hire(server.address, address, tmp_path) for _ in range(WORKERS)]
        try:
            over_at = time.monotonic() + SECONDS
            while time.monotonic() < over_at:
                # Work goes on meanwhile, for the next kill to fall into.
                await asyncio.sleep(BETWEEN_KILLS)
                if chance.random() < 0.4:
                    server.kill()
                    server.start()
                    kills["server"] += 1
                else:
                    end(workers.pop(chance.randrange(WORKERS)))
                    workers.append(hire(server.address, address, tmp_path))
                    kills["worker"] += 1
            async with Client(server.address) as client:
                await rested(client)
                await all_worked(address)
                blocked = [info async for info in client.automations.list(status="BLOCKED")]
        finally:
            for worker in workers:
                end(worker)
        marks, rows = log_of(address, "mark"), log_of(address, "row")
    worked = {mark["of"] for mark in marks}
    print(f"\n{dict(kills)} killed, {len(marks)} marks, {len(rows)} rows of {len(worked)} automations")  # noqa: T201
    assert blocked == []
    assert overlaps(marks) == []
    assert [row for row, count in Counter((row["of"], row["event"]) for row in rows).items() if count > 1] == []
    assert len(worked) == COUNT
    assert {row["of"] for row in rows} == worked


def overlaps(marks: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Runs of one automation of which one left a mark between two of another."""
    by_automation: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for mark in marks:
        by_automation[mark["of"]].append(mark)
    found = []
    for name, several in by_automation.items():
        last = {mark["run"]: number for number, mark in enumerate(several)}
        current = ""
        for number, mark in enumerate(several):
            if current and mark["run"] != current and last[current] > number:
                found.append((name, current, mark["run"]))
            current = mark["run"]
    return found


async def rested(client: Client) -> None:
    """Every automation has come to an end of something since the last kill: nothing is stuck."""

    async def all_rest() -> bool:
        infos = [info async for info in client.automations.list()]
        return len(infos) == COUNT and all(info.live_run is None or info.pending < 2 for info in infos)

    await until_async(all_rest)


async def all_worked(address: str) -> None:
    """Every automation has changed the outside, which on a slow machine the kills may have kept it from."""
    await until(lambda: len({row["of"] for row in log_of(address, "row")}) == COUNT, 120)


def hire(server: str, address: str, directory: Path) -> subprocess.Popen[bytes]:
    """A worker for the whole swarm."""
    environment = {"OUTSIDE_URL": address, "SWARM": str(COUNT), "SWARM_EVERY": EVERY}
    command = [sys.executable, "-c", "from kagzi.cli import main; main()", "worker", "tests.automations_sdk.swarm"]
    with (directory / f"worker-{time.monotonic_ns()}").open("wb") as out:
        return subprocess.Popen(
            [*command, "--url", server],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def end(worker: subprocess.Popen[bytes]) -> None:
    """SIGKILL; returns when it is dead."""
    worker.kill()
    worker.wait()
