"""Errors that a busy database gives reach nobody, and of two endings at once exactly one happens and everybody is told
which.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kagzi import Client, Context, Handle, Worker, step, workflow
from kagzi.errors import RunCancelled
from tests.faults.scale import SEED, figures, scaled
from tests.sdk.serving import serving
from tests.survival import checker
from tests.survival.crew import Crew
from tests.survival.load import Load, until
from tests.survival.record import rows
from tests.survival.station import Station

# 5 in 100 transactions: what they met before they could commit, and what became of the connection after they had.
_ERRORS = (
    "transaction.commit=error:40P01%2; transaction.commit=error:40001%1; "
    "transaction.commit=error:57P01%1; transaction.committed=error:08006%1"
)


@pytest.mark.timeout(300)
async def test_row_08_errors_of_a_busy_database_are_surfaced_to_nobody(database_url: str, tmp_path: Path) -> None:
    journeys = scaled(30, 300)
    # Each of the four has come more than once by then.
    settings = {"faults": _ERRORS, "faults_seed": SEED}
    with Station(database_url, tmp_path / "server", **settings) as server, Crew(server.address, tmp_path) as crew:
        crew.hire()
        async with Client(server.address) as client:
            load = Load(client, random.Random(SEED), lanes=10)
            async with load.flowing():
                await until(lambda: len(load.told) >= journeys and len(injected(server)) == 4, 100)
        found = await checker.check(database_url, load.told, crew.entries(), crew.deaths)
        errors = injected(server)
    print(f"\n{dict(errors)}")  # noqa: T201
    figures(8, runs=len(load.told), faults=errors.total(), violations=len(found.violations))
    assert found.violations == []
    assert all(told.result is not None for told in load.told)


def injected(server: Station) -> Counter[str]:
    """How often each error was raised, as the server itself has said."""
    said = server.log.read_text(encoding="utf-8").splitlines()
    return Counter(line.rpartition(" ")[2] for line in said if line.startswith("fault point"))


@step
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@workflow
async def napping(ctx: Context, seconds: float) -> str:
    return await ctx.step("nap", nap, seconds)


async def _race(client: Client, chance: random.Random, nap: float, within: float) -> tuple[str, str]:
    """What the caller of cancel was told, and how the run ended for whoever waits."""
    handle: Handle[Any] = await client.start(napping, chance.uniform(0, nap))
    waiting = asyncio.ensure_future(handle.result(timeout=60))
    await asyncio.sleep(chance.uniform(0, within))
    told = await handle.cancel("enough")
    try:
        await waiting
    except RunCancelled:
        ended = "CANCELLED"
    else:
        ended = "COMPLETED"
    assert (await handle.describe()).status == ended
    if told in ("COMPLETED", "CANCELLED"):
        assert told == ended
    return told, ended


@pytest.mark.timeout(200)
async def test_row_10_of_cancel_and_complete_one_ends_the_run_and_the_caller_is_told_which(database_url: str) -> None:
    chance = random.Random(SEED)
    outcomes: Counter[tuple[str, str]] = Counter()
    async with (
        serving(database_url) as server,
        Worker(server.address, workflows=[napping]),
        Client(server.address) as client,
    ):
        longest, within = 0.02, 0.05
        while outcomes.total() < scaled(200, 500) or len({ended for _, ended in outcomes}) < 2:
            some = await asyncio.gather(*(_race(client, chance, longest, within) for _ in range(25)))
            outcomes.update(some)
            # It is a race only while both win some, on any machine: whoever loses gets a longer start.
            cancelled = sum(ended == "CANCELLED" for _, ended in some)
            if cancelled > 15:
                within *= 1.5
            elif cancelled < 10:
                longest *= 1.5
        open_runs = "select count(*) from kagzi.workflow_runs where status not in ('COMPLETED', 'CANCELLED')"
        assert await rows(database_url, open_runs) == [(0,)]
    print(f"\n{dict(outcomes)}")  # noqa: T201
    figures(10, runs=outcomes.total(), faults=outcomes.total())
