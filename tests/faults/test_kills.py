"""Whoever is killed, nothing is lost and nothing repeated without a reason: workers under many runs, a server on either
side of a commit, a run that takes its workers down with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from kagzi import Client
from kagzi.errors import RunFailed
from tests.faults.scale import SEED, WHOLE, figures, scaled
from tests.survival import checker
from tests.survival.crew import Crew
from tests.survival.effects import Entry
from tests.survival.load import Load, until
from tests.survival.program import five, poison
from tests.survival.record import rows
from tests.survival.station import Station

# No multiple of the two seconds between kills: the runs of a dead worker would come to others just when one of those is
# killed, again and again, and five such in a row are what sets a run aside.
LEASE = 3.0
# Liveness is allowed three times what is promised.
RECLAIM = 3 * (LEASE + 1)
SLOTS = 50


@pytest.mark.skipif(not WHOLE, reason="at full size in make faults; tests/survival/test_kills.py is the small one")
@pytest.mark.timeout(300)
async def test_row_01_runs_of_killed_workers_complete_and_repeat_only_what_was_not_acknowledged(
    database_url: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    with (
        Station(database_url, tmp_path / "server", worker_visibility_timeout_secs=LEASE) as server,
        Crew(server.address, tmp_path, "--concurrency", str(SLOTS)) as crew,
    ):
        for _ in range(4):
            crew.hire()
        async with Client(server.address) as client:

            async def go(number: int) -> list[str]:
                # Not all at once: whoever takes over the run of a dead worker must have room.
                await asyncio.sleep(number / 12)
                handle = await client.start(five, f"run-{number}")
                return await handle.result(timeout=200)

            ends = asyncio.gather(*(go(number) for number in range(300)))
            while not ends.done():
                # Not to wait for anything: every two seconds is what the row says.
                await asyncio.sleep(2)
                # On a slow machine new ones take longer to come than this, and somebody must be left.
                await until(lambda: sum(worker.connected for worker in crew.workers) > 2, 100)
                crew.kill(chance.choice([worker for worker in crew.workers if worker.connected]))
                crew.hire()
            results = await ends
        entries = crew.entries()
        found = await checker.check(database_url, [], entries, crew.deaths)
    reclaims = reclaimed(entries, crew.deaths)
    print("\n".join(map(str, found.repeats)))  # noqa: T201
    figures(1, runs=300, faults=len(crew.deaths), violations=len(found.violations), slowest=max(reclaims, default=0))
    assert found.violations == []
    assert len(results) == 300
    assert len(found.repeats) <= SLOTS * len(crew.deaths)
    assert max(reclaims, default=0) < RECLAIM


def reclaimed(entries: list[Entry], deaths: dict[str, tuple[int, int]]) -> list[float]:
    """How long after a worker's death each body that it had not ended ran elsewhere."""
    last: dict[tuple[str, str], Entry] = {}
    took = []
    for entry in (entry for entry in entries if entry.what == "begin"):
        before = last.get((entry.run, entry.step))
        if before is not None and before.worker in deaths:
            took.append((entry.at - deaths[before.worker][1]) / 1e9)
        last[entry.run, entry.step] = entry
    return took


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_row_02_a_server_killed_on_either_side_of_a_commit_duplicates_and_loses_nothing(
    database_url: str, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    points = ("transaction.commit", "transaction.committed", "batcher.answer", "dispatcher.deliver")
    crashes = 0
    with Station(database_url, tmp_path / "server") as server, Crew(server.address, tmp_path) as crew:
        crew.hire()
        async with Client(server.address, patience="120s") as client:
            load = Load(client, chance, lanes=4, patience=120)
            async with load.flowing():
                for point in points * scaled(1, 6):
                    visit = chance.randint(1, 6 if point == "dispatcher.deliver" else scaled(12, 40))
                    server.kill()
                    server.arm(f"{point}=crash@{visit}")
                    # It may die before it says that it listens.
                    with contextlib.suppress(AssertionError):
                        await asyncio.to_thread(server.start)
                    await until(lambda: not server.running, 60)
                    crashes += 1
                server.arm("")
                await asyncio.to_thread(server.start)
        found = await checker.check(database_url, load.told, crew.entries(), crew.deaths)
        assert all(worker.running for worker in crew.workers)
    figures(2, runs=len(load.told), faults=crashes, violations=len(found.violations))
    assert found.violations == []
    assert all(told.result is not None for told in load.told)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_row_12_a_run_that_takes_its_workers_down_is_set_aside_and_others_do_not_suffer(
    database_url: str, tmp_path: Path
) -> None:
    lease = 1.0
    with (
        Station(database_url, tmp_path / "server", worker_visibility_timeout_secs=lease) as server,
        Crew(server.address, tmp_path) as crew,
    ):
        async with Client(server.address) as client:
            bad = await client.start(poison)
            good = await asyncio.gather(*(client.start(five, f"good-{number}") for number in range(10)))
            crew.hire()
            end = asyncio.ensure_future(bad.result(timeout=300))
            while not end.done():
                for worker in [worker for worker in crew.workers if not worker.running]:
                    crew.kill(worker)
                while len(crew.workers) < 2:
                    crew.hire()
                await asyncio.sleep(0.05)
            with pytest.raises(RunFailed, match="5"):
                await end
            results = [await handle.result(timeout=300) for handle in good]
        begun = [entry for entry in crew.entries() if entry.step == "swallow"]
    [(status, crashes, kind)] = await rows(
        database_url, "select status, crashes, error->>'type' from kagzi.workflow_runs where run_id = $1", bad.run_id
    )
    figures(12, runs=11, faults=len(begun))
    assert (status, crashes, kind) == ("FAILED", 5, "Poisoned")
    # A lease may run out before its worker has begun anything.
    assert 1 <= len(begun) <= 5
    assert all(len(result) == 5 for result in results)
