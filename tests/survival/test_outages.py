"""Server and database go away under load and come back. Nothing that was acknowledged is missing, no step runs twice,
and every worker is still there.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from kagzi import Client
from kagzi.embedded import Embedded
from kagzi.store import migrate
from tests.survival import checker
from tests.survival.crew import Crew
from tests.survival.load import Load, until
from tests.survival.station import Station

SEED = int(os.environ.get("SURVIVAL_SEED", "20240607"))
WORKERS = 2
LANES = 6
SHORT = 3
# Longer than the lease, so that what is held has to be found again.
LONG = 7.0
LEASE = {"worker_visibility_timeout_secs": 6}


async def survive(
    url: str,
    station: Station,
    directory: Path,
    outages: Sequence[Callable[[], Awaitable[None]]],
    patience: float = 60,
) -> tuple[int, list[float]]:
    """Runs journeys while outages happen, and then finds nothing missing and nothing repeated. Answers how many
    journeys there were, and how long after each outage the work went on.
    """
    chance = random.Random(SEED)
    recoveries = []
    with Crew(station.address, directory) as crew:
        for _ in range(WORKERS):
            crew.hire()
        async with Client(station.address, patience=patience) as client:
            load = Load(client, chance, LANES, patience)
            async with load.flowing():
                await _at_work(crew)
                for outage in outages:
                    await asyncio.sleep(chance.uniform(0.0, 0.5))
                    await outage()
                    recoveries.append(await _at_work(crew))
                print(f"\nwork goes on {max(recoveries):.1f} s after an outage at the latest")  # noqa: T201
        assert all(worker.running for worker in crew.workers)
        found = await checker.check(url, load.told, crew.entries(), crew.deaths)
    assert found.violations == []
    assert all(told.result is not None for told in load.told)
    return len(load.told), recoveries


async def _at_work(crew: Crew) -> float:
    """Returns when something is done that had not been; after how many seconds."""
    before, began = len(crew.entries()), time.monotonic()
    await until(lambda: len(crew.entries()) > before)
    return time.monotonic() - began


@pytest.mark.slow
async def test_a_server_killed_under_load_loses_and_repeats_nothing(database_url: str, tmp_path: Path) -> None:
    with Station(database_url, tmp_path / "server", **LEASE) as station:

        async def short() -> None:
            station.kill()
            station.start()

        async def long() -> None:
            station.kill()
            await asyncio.sleep(LONG)
            station.start()

        await survive(database_url, station, tmp_path, [*[short] * SHORT, long])


@pytest.mark.slow
async def test_a_database_stopped_under_load_loses_and_repeats_nothing(postgres: Embedded, tmp_path: Path) -> None:
    await migrate.apply(postgres.url)
    with Station(postgres.url, tmp_path / "server", **LEASE) as station:

        async def short() -> None:
            await asyncio.to_thread(postgres.restart, immediate=True)

        async def long() -> None:
            await asyncio.to_thread(postgres.stop, immediate=True)
            await asyncio.sleep(LONG)
            await asyncio.to_thread(postgres.start)

        await survive(postgres.url, station, tmp_path, [*[short] * SHORT, long])
