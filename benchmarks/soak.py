"""The soak: half the load for minutes, and what grows meanwhile. From the second minute to the last, memory may grow by
5 %, p99 by 20 %, and indexes by 30 % for each row they hold, because ended runs are kept; dead rows stay under 20 % of
live ones. Runs begin when it is their time, whether or not earlier ones have ended, and are timed from then.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.lab import Lab, laboratory
from benchmarks.program import three
from kagzi import Client
from kagzi.cli import workloads

_CALIBRATION_SECS = 10.0


@dataclass(frozen=True, slots=True)
class Minute:
    """What one minute of the soak looked like."""

    number: int
    runs: int
    p50_ms: float
    p99_ms: float
    server_mb: float
    worker_mb: float
    live_rows: int
    dead_rows: int
    index_mb: float
    steal_percent: float

    @property
    def dead_percent(self) -> float:
        return 100 * self.dead_rows / max(1, self.live_rows)


async def run(console: Console, minutes: float, kept: Path | None) -> int:
    """The whole soak, told; answers the exit code."""
    async with laboratory() as lab:
        lab.start_worker(100)
        async with Client(lab.address) as client:
            await workloads.many_at_once(client, three, 2.0)
            count, seconds = await workloads.many_at_once(client, three, _CALIBRATION_SECS)
            rate = count / seconds / 2
            console.print(f"full load is {2 * rate:,.0f} runs/s here; {minutes:g} minutes at half of it")
            seen = await _soak(lab, client, rate, minutes, console)
    judgements = judged(seen)
    console.print(_table(seen))
    for what, fine in judgements.items():
        console.print(f"{'[green]fine[/green]' if fine else '[red]NOT fine[/red]'} {what}")
    if kept:
        _keep(kept, {"runs_per_s": rate, "minutes": [asdict(each) for each in seen], "judgements": judgements})
    return 0 if all(judgements.values()) else 1


def _keep(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


async def _soak(lab: Lab, client: Client, rate: float, minutes: float, console: Console) -> list[Minute]:
    times: list[float] = []
    load = asyncio.create_task(_load(client, rate, 60 * minutes, times))
    database = await asyncpg.connect(lab.database.url)
    seen: list[Minute] = []
    try:
        began, ticks = time.perf_counter(), machine.ticks()
        # A part of a minute at the end is no minute; a soak shorter than two is cut into three, to try it out.
        length = 60.0 if minutes >= 2 else 60 * minutes / 3
        for number in range(1, int(60 * minutes / length) + 1):
            await asyncio.wait({load}, timeout=max(0.0, began + number * length - time.perf_counter()))
            fresh = machine.ticks()
            steal = 100 * (fresh[1] - ticks[1]) / max(1, sum(fresh) - sum(ticks))
            ticks = fresh
            passed, times[:] = list(times), []
            seen.append(await _minute(lab, database, number, passed, steal))
            each = seen[-1]
            console.print(
                f"minute {number}: {each.runs:,} runs, p99 {each.p99_ms:.1f} ms, server {each.server_mb:.0f} MB"
            )
        await load
    finally:
        load.cancel()
        await database.close()
    return seen


async def _load(client: Client, rate: float, seconds: float, times: list[float]) -> None:
    """Starts runs at their times; waits for all in the end."""
    began = time.perf_counter()
    under_way: set[asyncio.Task[None]] = set()

    async def one(due: float) -> None:
        await client.execute(three, 1)
        times.append((time.perf_counter() - due) * 1_000)

    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        task = asyncio.create_task(one(due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)


async def _minute(
    lab: Lab, database: asyncpg.Connection[asyncpg.Record], number: int, times: list[float], steal: float
) -> Minute:
    cuts = statistics.quantiles(times, n=100)
    rows = await database.fetchrow(_ROWS)
    assert rows is not None
    parts = lab.parts()
    return Minute(
        number=number,
        runs=len(times),
        p50_ms=cuts[49],
        p99_ms=cuts[98],
        server_mb=machine.memory_mb(parts["server"]),
        worker_mb=machine.memory_mb(parts["worker"]),
        live_rows=rows["live"],
        dead_rows=rows["dead"],
        index_mb=rows["indexes"] / 2**20,
        steal_percent=steal,
    )


def judged(seen: list[Minute]) -> dict[str, bool]:
    """What is asked of a soak, and whether it was so."""
    second, last = seen[1], seen[-1]

    def grown(then: float, now: float) -> float:
        return 100 * (now / then - 1)

    memory = grown(second.server_mb + second.worker_mb, last.server_mb + last.worker_mb)
    latency = grown(second.p99_ms, last.p99_ms)
    indexes = grown(second.index_mb / second.live_rows, last.index_mb / last.live_rows)
    dead = max(each.dead_percent for each in seen[1:])
    return {
        f"memory of server and worker grew by {memory:.1f} %, at most 5 % wanted": memory <= 5,
        f"p99 grew by {latency:.1f} %, at most 20 % wanted": latency <= 20,
        f"dead rows were at most {dead:.1f} % of live ones, less than 20 % wanted": dead < 20,
        f"indexes grew by {indexes:.1f} % a row, at most 30 % wanted": indexes <= 30,
    }


def _table(seen: list[Minute]) -> Table:
    names = (
        "minute",
        "runs",
        "p50 ms",
        "p99 ms",
        "server MB",
        "worker MB",
        "live rows",
        "dead %",
        "indexes MB",
        "steal %",
    )
    table = Table(*names, title="minute by minute")
    for each in seen:
        figures = (each.p50_ms, each.p99_ms, each.server_mb, each.worker_mb)
        table.add_row(
            str(each.number),
            f"{each.runs:,}",
            *(f"{figure:.1f}" for figure in figures),
            f"{each.live_rows:,}",
            f"{each.dead_percent:.1f}",
            f"{each.index_mb:.1f}",
            f"{each.steal_percent:.1f}",
        )
    return table


_ROWS = """
select sum(n_live_tup)::bigint as live, sum(n_dead_tup)::bigint as dead,
       sum(pg_indexes_size(relid))::bigint as indexes
from pg_stat_user_tables where schemaname = 'kagzi'
"""
