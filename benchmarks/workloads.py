"""The workloads of `make bench`, by name. Each answers figures that a person can read and a program can compare."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import asyncpg

from benchmarks.automations import w11
from benchmarks.lab import Lab
from benchmarks.program import fan, nap, one, row, three
from benchmarks.residents import residents
from kagzi import Client

Figures = dict[str, float]


async def w1(lab: Lab) -> Figures:
    """Runs of 3 small steps, 100 in progress at once, one worker with 100 slots, for 10 s."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await _for_a_while(client, 1.0)
        before = lab.cpu_seconds()
        count, seconds = await _for_a_while(client, 10.0)
        after = lab.cpu_seconds()
    figures = {"runs_per_s": count / seconds, "steps_per_s": 3 * count / seconds}
    figures |= {f"cpu_us_per_run_{part}": (after[part] - before[part]) / count * 1e6 for part in after}
    figures |= {f"memory_mb_{part}": value for part, value in lab.memory_mb().items()}
    return figures


async def _for_a_while(client: Client, seconds: float) -> tuple[int, float]:
    began = time.perf_counter()
    count = 0

    async def one_after_another() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await client.execute(three, 1)
            count += 1

    await asyncio.gather(*(one_after_another() for _ in range(100)))
    return count, time.perf_counter() - began


async def w2(lab: Lab) -> Figures:
    """200 runs of 1 step, one after another, from start to result."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        for _ in range(20):
            await client.execute(one, 1)
        times = []
        for _ in range(200):
            began = time.perf_counter()
            await client.execute(one, 1)
            times.append((time.perf_counter() - began) * 1_000)
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


async def w3_w4(lab: Lab) -> Figures:
    """Start 5,000 runs with no worker; then one worker drains them, 1 step each."""
    async with Client(lab.address) as client:
        began = time.perf_counter()
        handles = await asyncio.gather(*(client.start(one, number) for number in range(5_000)))
        started = time.perf_counter() - began
        waiting = asyncio.gather(*(handle.result() for handle in handles))
        lab.start_worker(100)
        first = asyncio.ensure_future(handles[0].result())
        await first
        began = time.perf_counter()
        await waiting
        drained = time.perf_counter() - began
    return {"starts_per_s": 5_000 / started, "drained_per_s": 5_000 / drained}


async def w5(lab: Lab) -> Figures:
    """One run of 1,000 steps in a row."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(row, 10)
        began = time.perf_counter()
        await client.execute(row, 1_000)
        return {"steps_per_s": 1_000 / (time.perf_counter() - began)}


async def w6(lab: Lab) -> Figures:
    """One run of 500 parallel steps."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(fan, 10)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            await client.execute(fan, 500)
            times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times)}


async def w7(lab: Lab) -> Figures:
    """Idle: one server, one worker, nothing to do."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        await client.execute(one, 1)
    await asyncio.sleep(2)
    before = lab.cpu_seconds()
    await asyncio.sleep(10)
    after = lab.cpu_seconds()
    figures = {f"cpu_percent_{part}": (after[part] - before[part]) * 10 for part in after if part != "client"}
    return figures | {"cpu_percent": sum(figures.values())}


async def w8(lab: Lab) -> Figures:
    """10,000 runs sleeping to the same second."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        until = time.time() + 20
        handles = await asyncio.gather(*(client.start(nap, until) for _ in range(10_000)))
        late = await asyncio.gather(*(handle.result() for handle in handles))
        return {"all_woken_s": time.time() - until, "earliest_s": min(late)}


async def w9(lab: Lab) -> Figures:
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
    return figures


_FIRED = "select count(*) from kagzi.workflow_runs where schedule_id is not null and external_id like $1"
_LATENESS = """
select (extract(epoch from created_at - scheduled_for) * 1000)::float8 as fired_ms,
       (extract(epoch from started_at - scheduled_for) * 1000)::float8 as began_ms
from kagzi.workflow_runs where schedule_id is not null and external_id like $1
"""

WORKLOADS: dict[str, Callable[[Lab], Awaitable[Figures]]] = {
    "w1": w1,
    "w2": w2,
    "w3": w3_w4,
    "w5": w5,
    "w6": w6,
    "w7": w7,
    "w8": w8,
    "w9": w9,
    "w11": w11,
    "residents": residents,
}
