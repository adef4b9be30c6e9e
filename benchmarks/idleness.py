"""W7: what it costs to have nothing to do."""

from __future__ import annotations

import asyncio

from benchmarks.lab import Lab
from benchmarks.program import one
from benchmarks.runs import Results
from benchmarks.statements import counted
from kagzi import Client

_SECONDS = 10.0


async def w7(lab: Lab) -> Results:
    """Idle: one server, one worker, nothing to do for 10 s; then 10 s more, in which statements are counted."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(one, 1)
    await asyncio.sleep(2)
    with lab.span() as span:
        await asyncio.sleep(_SECONDS)
    async with counted(lab.database) as count:
        await asyncio.sleep(_SECONDS)
    figures = {f"cpu_percent_{part}": spent / span.seconds * 100 for part, spent in span.cpu.items()}
    del figures["cpu_percent_client"]
    statements = count.statements / _SECONDS
    return {"w7": {"cpu_percent": sum(figures.values()), "statements_per_s": statements} | figures | span.figures()}
