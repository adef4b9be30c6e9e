"""W8 and W9: ten thousand runs that wake in the same second, and a thousand schedules that fire in the same second."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta

import asyncpg

from benchmarks.lab import Lab
from benchmarks.program import nap, one
from benchmarks.runs import Results
from kagzi import Client


async def w8(lab: Lab) -> Results:
    """10,000 runs sleeping to the same second."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        until = time.time() + 20
        handles = await asyncio.gather(*(client.start(nap, until) for _ in range(10_000)))
        waiting = asyncio.gather(*(handle.result() for handle in handles))
        await asyncio.sleep(until - time.time())
        with lab.span() as span:
            late = await waiting
        figures = {"all_woken_s": time.time() - until, "earliest_s": min(late)}
    return {"w8": figures | span.figures(10_000)}


async def w9(lab: Lab) -> Results:
    """1,000 schedules due in the same second, and 50 others that fire every second at times of their own."""
    lab.start_worker(100)
    together = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=20)
    begin, end = together - timedelta(seconds=5), together + timedelta(seconds=10)
    async with Client(lab.address) as client:
        create = client.schedules.create
        await client.execute(one, 1)
        await asyncio.gather(*(create(f"burst-{n}", one, n, every="1h", start_at=together) for n in range(1_000)))
        for n in range(50):
            phase = timedelta(milliseconds=20 * n)
            await create(f"other-{n}", one, n, every="1s", start_at=begin + phase, end_at=end + phase)
    database = await asyncpg.connect(lab.database.url)
    try:
        await asyncio.sleep((together - datetime.now(UTC)).total_seconds() - 0.1)
        with lab.span() as span:
            while await database.fetchval(_FIRED, "burst-%") < 1_000:  # noqa: ASYNC110 - a database tells nobody
                await asyncio.sleep(0.01)
            all_fired = (datetime.now(UTC) - together).total_seconds()
            await asyncio.sleep((end - datetime.now(UTC)).total_seconds() + 2)
        burst, others = [await database.fetch(_LATENESS, pattern) for pattern in ("burst-%", "other-%")]
    finally:
        await database.close()
    assert len(others) == 50 * 15, "each slot fires once"
    figures = {"all_fired_s": all_fired, "earliest_ms": min(row["fired_ms"] for row in [*burst, *others])}
    for name, rows in (("burst", burst), ("others", others)):
        for what in ("fired_ms", "began_ms"):
            cuts = statistics.quantiles([row[what] for row in rows], n=100)
            figures |= {f"{name}_{what}_p50": cuts[49], f"{name}_{what}_p99": cuts[98]}
    return {"w9": figures | span.figures()}


_FIRED = "select count(*) from kagzi.workflow_runs where schedule_id is not null and external_id like $1"
_LATENESS = """
select (extract(epoch from created_at - scheduled_for) * 1000)::float8 as fired_ms,
       (extract(epoch from started_at - scheduled_for) * 1000)::float8 as began_ms
from kagzi.workflow_runs where schedule_id is not null and external_id like $1
"""
