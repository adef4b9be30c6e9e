"""The database is stopped again and again, or is away for a minute: nothing acknowledged is missing, nothing is
repeated, no worker ends. The small ones are in tests/survival/test_outages.py.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from kagzi import Client
from kagzi.embedded import Embedded
from kagzi.store import migrate
from tests.faults.scale import WHOLE, figures
from tests.survival.load import until_async
from tests.survival.program import held
from tests.survival.record import rows
from tests.survival.station import Station
from tests.survival.test_outages import LEASE, survive
from tests.survival.test_zombie import recorded

# Liveness is allowed three times what is promised.
RECONNECT = 3 * 3.0

pytestmark = [
    pytest.mark.skipif(
        not WHOLE, reason="at full size in make faults; tests/survival/test_outages.py has the small ones"
    ),
    pytest.mark.timeout(400),
]


async def test_row_03_a_database_stopped_at_once_ten_times_loses_nothing(postgres: Embedded, tmp_path: Path) -> None:
    await migrate.apply(postgres.url)
    with Station(postgres.url, tmp_path / "server", **LEASE) as station:

        async def stop() -> None:
            await asyncio.to_thread(postgres.restart, immediate=True)

        runs, recoveries = await survive(postgres.url, station, tmp_path, [stop] * 10)
    figures(3, runs=runs, faults=10, slowest=max(recoveries))
    assert max(recoveries) < RECONNECT


async def test_row_04_a_minute_without_a_database_loses_nothing_and_ends_no_worker(
    postgres: Embedded, tmp_path: Path
) -> None:
    await migrate.apply(postgres.url)
    with Station(postgres.url, tmp_path / "server") as station:
        async with Client(station.address, patience="180s") as client:
            # In a body all the time, and for so long after it that whoever could take the run over would have.
            handle = await client.start(held, 90.0)

            async def away() -> None:
                await until_async(partial(recorded, postgres.url, handle.run_id, "before", "COMPLETED"))
                await asyncio.to_thread(postgres.stop, immediate=True)
                # Not to wait for anything: a minute is what the row says.
                await asyncio.sleep(60)
                await asyncio.to_thread(postgres.start)

            async def finished() -> None:
                await handle.result(timeout=180)

            runs, recoveries = await survive(postgres.url, station, tmp_path, [away, finished], patience=180)
        query = "select crashes from kagzi.workflow_runs where run_id = $1"
        assert await rows(postgres.url, query, handle.run_id) == [(0,)]
    figures(4, runs=runs, faults=1, slowest=recoveries[0])
