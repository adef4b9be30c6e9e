"""W5 and W6: one run with many steps, in a row and at once, and what it takes to go on after a crash."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import datetime, timedelta

import asyncpg

from benchmarks.lab import Lab
from benchmarks.program import fan, row
from benchmarks.runs import Results
from kagzi import Client

# Short, because a killed worker's run is free when its lease has run out; the default is 30 s.
LEASE_SECS = 2


async def w5(lab: Lab) -> Results:
    """One run of 1,000 steps in a row; then another one, whose worker is killed at step 500."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(row, 10)
        with lab.span() as span:
            await client.execute(row, 1_000)
        resumed = await _killed_and_resumed(lab, client)
    return {"w5": {"steps_per_s": 1_000 / span.seconds} | resumed | span.figures()}


async def _killed_and_resumed(lab: Lab, client: Client) -> dict[str, float]:
    database = await asyncpg.connect(lab.database.url)
    try:
        handle = await client.start(row, 1_000)
        while await database.fetchval(_STEPS, handle.run_id) < 500:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.005)
        lab.kill_workers()
        killed = time.perf_counter()
        done = await database.fetchval(_STEPS, handle.run_id)
        token = await database.fetchval(_TOKEN, handle.run_id)
        lab.start_worker(100)
        while (found := await database.fetchrow(_CLAIM, handle.run_id, token)) is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.002)
        claimed: datetime = found["available_at"] - timedelta(seconds=LEASE_SECS)
        await handle.result()
        resumed = time.perf_counter() - killed
        first = await database.fetchval(_FIRST_AFTER, handle.run_id, done)
    finally:
        await database.close()
    return {"replay_ms": (first - claimed).total_seconds() * 1_000, "killed_at_step": done, "kill_to_end_s": resumed}


async def w6(lab: Lab) -> Results:
    """One run of 500 parallel steps; the median of five such runs."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(fan, 10)
        times = []
        with lab.span() as span:
            for _ in range(5):
                began = time.perf_counter()
                await client.execute(fan, 500)
                times.append(time.perf_counter() - began)
    return {"w6": {"run_s": statistics.median(times)} | span.figures(len(times))}


_STEPS = "select count(*) from kagzi.step_runs where run_id = $1 and status = 'COMPLETED'"
_TOKEN = "select claim_token from kagzi.workflow_runs where run_id = $1"  # noqa: S105 - a statement
# A claim sets the end of the lease: who sees it first knows when it was.
_CLAIM = (
    "select available_at from kagzi.workflow_runs where run_id = $1 and status = 'RUNNING'"
    " and claim_token is distinct from $2"
)
_FIRST_AFTER = (
    "select finished_at from kagzi.step_runs where run_id = $1 and status = 'COMPLETED'"
    " order by completed_seq offset $2 limit 1"
)
