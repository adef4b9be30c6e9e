"""SIGTERM: a worker takes no new runs, lets what it holds get on, gives the rest back and says goodbye. What finishes
in time runs once; what does not is interrupted, which is no failure and no crash, and goes on elsewhere at once.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from kagzi import Client
from tests.survival.crew import Crew
from tests.survival.load import until
from tests.survival.program import held
from tests.survival.record import rows
from tests.survival.station import Station


def begins(crew: Crew) -> list[tuple[str, str]]:
    return [(entry.step, entry.worker) for entry in crew.entries() if entry.what == "begin"]


async def test_what_finishes_within_the_drain_time_is_executed_once(database_url: str, tmp_path: Path) -> None:
    with Station(database_url, tmp_path / "server") as server, Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            first = crew.hire()
            handle = await client.start(held, 0.5)
            await until(lambda: ("hold", first.name) in begins(crew))
            first.send(signal.SIGTERM)
            result = await handle.result(timeout=30)
            await until(lambda: not first.running)
        assert begins(crew) == [("before", first.name), ("hold", first.name), ("after", first.name)]
        assert result == [entry.value for entry in crew.entries() if entry.what == "effect"]
        assert first.process.returncode == 0
        assert await rows(database_url, "select status from kagzi.workers") == [("OFFLINE",)]


async def test_a_draining_worker_takes_no_new_run(database_url: str, tmp_path: Path) -> None:
    with Station(database_url, tmp_path / "server") as server, Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            first = crew.hire()
            handle = await client.start(held, 1.0)
            await until(lambda: ("hold", first.name) in begins(crew))
            first.send(signal.SIGTERM)
            await until(lambda: first.said("draining"))
            late = await client.start(held, 0.0)
            await handle.result(timeout=30)
            await until(lambda: not first.running)
            assert (await late.describe()).status == "PENDING"
            second = crew.hire()
            await late.result(timeout=30)
        assert {entry.worker for entry in crew.entries() if entry.run == late.run_id} == {second.name}


@pytest.mark.parametrize("before", [True, False], ids=["another worker", "after a restart"])
async def test_a_body_longer_than_the_drain_time_is_interrupted_and_goes_on_elsewhere_at_once(
    database_url: str, tmp_path: Path, before: bool
) -> None:
    with Station(database_url, tmp_path / "server") as server, Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            first = crew.hire("--drain-timeout", "200ms")
            handle = await client.start(held, 1.0)
            await until(lambda: ("hold", first.name) in begins(crew))
            second = crew.hire() if before else None
            first.send(signal.SIGTERM)
            await until(lambda: not first.running)
            if second is None:
                second = crew.hire()
            # The lease of 30 s has not run out: the run was given back.
            result = await handle.result(timeout=15)
        assert begins(crew) == [
            ("before", first.name),
            ("hold", first.name),
            ("hold", second.name),
            ("after", second.name),
        ]
        assert result == [entry.value for entry in crew.entries() if entry.what == "effect"]
        assert first.process.returncode == 0
        attempts = "select status from kagzi.step_runs where run_id = $1 and step_id = 'hold' order by attempt_number"
        assert await rows(database_url, attempts, handle.run_id) == [("INTERRUPTED",), ("COMPLETED",)]
        run = "select crashes, attempts from kagzi.workflow_runs where run_id = $1"
        assert await rows(database_url, run, handle.run_id) == [(0, 0)]
