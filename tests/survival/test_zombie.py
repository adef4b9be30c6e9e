"""A worker that stood still for longer than its lease wakes up with a run that is somebody else's: it writes nothing
for it and begins none of its steps. A lease that ran out and that nobody took is its own again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kagzi import Client, Handle, Workflow
from tests.survival.crew import Crew, WorkerProcess, stopped
from tests.survival.load import until, until_async
from tests.survival.program import held, held_in_thread, paying, resting, stumbling
from tests.survival.record import rows
from tests.survival.relay import Relay
from tests.survival.station import Station

_LEASE = 1.5


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Station]:
    with Station(database_url, tmp_path / "server", worker_visibility_timeout_secs=_LEASE) as server:
        yield server


async def written(url: str, run_id: str) -> list[str]:
    """Every row of the run as it stands, with the transaction that wrote it."""
    found = await rows(
        url,
        "select xmin::text || t::text as text from kagzi.workflow_runs t where run_id = $1 "
        "union all select xmin::text || t::text from kagzi.step_runs t where run_id = $1 "
        "union all select xmin::text || t::text from kagzi.workflow_payloads t where run_id = $1 order by 1",
        run_id,
    )
    return [text for (text,) in found]


async def recorded(url: str, run_id: str, step: str, status: str) -> bool:
    query = "select 1 from kagzi.step_runs where run_id = $1 and step_id = $2 and status = $3"
    return bool(await rows(url, query, run_id, step, status))


def begun(crew: Crew, run_id: str, step: str, worker: WorkerProcess) -> bool:
    return any(
        (entry.what, entry.run, entry.step, entry.worker) == ("begin", run_id, step, worker.name)
        for entry in crew.entries()
    )


async def busy_again(crew: Crew, client: Client, zombie: WorkerProcess, other: WorkerProcess) -> None:
    """Returns when the zombie has done something new: by then it has dealt with all that it woke up with."""
    other.send(signal.SIGTERM)
    await until(lambda: not other.running)
    another = await client.start(held, 0.0)
    await another.result(timeout=30)
    assert begun(crew, another.run_id, "after", zombie)


async def test_a_worker_stopped_past_its_lease_writes_nothing_and_begins_no_step(
    database_url: str, tmp_path: Path, server: Station
) -> None:
    with Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            zombie = crew.hire()
            # Waiting in place for a further attempt, sleeping in place, in a body, and in one that nothing can stop.
            runs: list[Handle[Any]] = [await client.start(stumbling), await client.start(resting)]
            for run, state in zip(runs, ("FAILED", "COMPLETED"), strict=True):
                await until_async(partial(recorded, database_url, run.run_id, "hold", state))
            runs += [await client.start(held, 0.5), await client.start(held_in_thread, 0.5)]
            for run in runs:
                await until(partial(begun, crew, run.run_id, "hold", zombie))
            with stopped(zombie):
                other = crew.hire()
                results = [await run.result(timeout=30) for run in runs]
                before = [await written(database_url, run.run_id) for run in runs]
                woken = time.monotonic_ns()
            await busy_again(crew, client, zombie, other)
        assert [await written(database_url, run.run_id) for run in runs] == before
        ours = {run.run_id for run in runs}
        entries = [entry for entry in crew.entries() if entry.run in ours]
        late = [entry for entry in entries if entry.worker == zombie.name and entry.at > woken]
        assert [entry for entry in late if entry.what == "begin"] == []
        assert [entry.value for entry in late if entry.value in str(results)] == []


@pytest.mark.parametrize("workflow", [held, held_in_thread])
async def test_a_worker_stopped_between_its_leave_to_begin_and_the_body_does_not_begin_it(
    tmp_path: Path, server: Station, workflow: Workflow[float, list[str]]
) -> None:
    with Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            zombie = crew.hire(KAGZI_FAULTS="worker.begin=stall:1@2")
            handle = await client.start(workflow, 0.0)
            await until(lambda: zombie.said("fault point"))
            with stopped(zombie):
                other = crew.hire()
                await handle.result(timeout=60)
            await busy_again(crew, client, zombie, other)
        assert not begun(crew, handle.run_id, "hold", zombie)


async def test_a_result_of_a_lost_lease_does_not_disturb_the_one_who_has_the_run(
    database_url: str, tmp_path: Path, server: Station
) -> None:
    with Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client:
            zombie = crew.hire()
            handle = await client.start(held_in_thread, 1.2)
            await until(lambda: begun(crew, handle.run_id, "hold", zombie))
            with stopped(zombie):
                other = crew.hire()
                await until(lambda: begun(crew, handle.run_id, "hold", other))
            result = await handle.result(timeout=30)
            await busy_again(crew, client, zombie, other)
        of_run = [entry for entry in crew.entries() if entry.run == handle.run_id]
        values = {(entry.step, entry.worker): entry.value for entry in of_run if entry.what == "effect"}
        assert ("hold", zombie.name) in values, "its body ended; that is outside of what can be promised"
        assert result == [
            values["before", zombie.name],
            values["hold", other.name],
            values["after", other.name],
        ]


async def test_an_effect_whose_intent_was_answered_too_late_is_not_begun(
    database_url: str, tmp_path: Path, server: Station
) -> None:
    with Crew(server.address, tmp_path) as crew:
        async with Client(server.address) as client, Relay(server.address) as relay:
            zombie = crew.hire("--url", relay.address)
            relay.hold("step_started")
            handle = await client.start(paying)
            await asyncio.wait_for(relay.held.wait(), 30)
            with stopped(zombie):
                relay.let_go()
                other = crew.hire()
                await until_async(partial(recorded, database_url, handle.run_id, "pay", "UNKNOWN"))
            await busy_again(crew, client, zombie, other)
        assert [entry for entry in crew.entries() if entry.step == "pay"] == []


async def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(
    database_url: str, tmp_path: Path, server: Station
) -> None:
    expired = "select 1 from kagzi.workflow_runs where run_id = $1 and available_at < kagzi.now()"

    async def ran_out() -> bool:
        return bool(await rows(database_url, expired, handle.run_id))

    with Crew(server.address, tmp_path, "--concurrency", "1") as crew:
        async with Client(server.address) as client:
            worker = crew.hire()
            handle = await client.start(held, 0.4)
            await until(lambda: begun(crew, handle.run_id, "hold", worker))
            with stopped(worker):
                await until_async(ran_out)
            result = await handle.result(timeout=30)
        begins = [entry.step for entry in crew.entries() if entry.what == "begin"]
        assert begins == ["before", "hold", "after"]
        assert result == [entry.value for entry in crew.entries() if entry.what == "effect"]
        query = "select crashes from kagzi.workflow_runs where run_id = $1"
        assert await rows(database_url, query, handle.run_id) == [(0,)]
