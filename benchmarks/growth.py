"""W10 and W12: W1 and W2 beside a million finished runs and a hundred thousand sleeping ones, and what that does to
memory. A laboratory that is full and one that is empty stand side by side and are measured in turn, so that a change of
the machine meets both.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg

from benchmarks.lab import Lab, laboratory
from benchmarks.runs import Results, alone, many
from kagzi import Client

FINISHED = int(os.environ.get("FINISHED", "1000000"))
SLEEPING = int(os.environ.get("SLEEPING", "100000"))
_BATCH = 100_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two laboratories that differ in what stands in their tables."""

    empty: Lab
    full: Lab


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    """Both, the full one filled and vacuumed as a database of that age is."""
    async with laboratory() as empty, laboratory() as full:
        await _fill(full.database.url)
        for lab in (empty, full):
            lab.start_worker(100)
        yield Pair(empty, full)


async def w10_w12(pair: Pair) -> Results:
    """W1 and W2 in both, the empty one first."""
    seen = {}
    for name, lab in (("empty", pair.empty), ("full", pair.full)):
        async with Client(lab.address) as client:
            seen[name] = (await many(lab, client), await alone(lab, client))
    (runs, times), (full_runs, full_times) = seen["empty"], seen["full"]
    figures = {
        "runs_lost_percent": 100 * (1 - full_runs["runs_per_s"] / runs["runs_per_s"]),
        "p50_gained_percent": 100 * (full_times["p50_ms"] / times["p50_ms"] - 1),
        "cpu_gained_percent": 100 * (full_runs["cpu_us_per_run"] / runs["cpu_us_per_run"] - 1),
    }
    for name, (w1, w2) in seen.items():
        figures |= {f"{name}_runs_per_s": w1["runs_per_s"], f"{name}_p50_ms": w2["p50_ms"]}
        figures |= {f"{name}_p99_ms": w2["p99_ms"], f"{name}_cpu_us_per_run": w1["cpu_us_per_run"]}
    steal = max(each["steal_percent"] for both in seen.values() for each in both)
    memory = {
        "server_mb": runs["memory_mb_server"],
        "server_when_full_mb": full_runs["memory_mb_server"],
        "worker_mb": runs["memory_mb_worker"],
        "steal_percent": steal,
    }
    size = {"finished_runs": float(FINISHED), "sleeping_runs": float(SLEEPING)}
    others = max(each["others_percent"] for both in seen.values() for each in both)
    noise = {"steal_percent": steal, "others_percent": others}
    return {"w10": figures | size | noise, "w12": memory | noise}


async def _fill(url: str) -> None:
    # What is filled in is no part of the measurement; what is measured commits as always.
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    try:
        for status, count in (("COMPLETED", FINISHED), ("SLEEPING", SLEEPING)):
            for first in range(0, count, _BATCH):
                await connection.execute(_RUNS, status, first, min(first + _BATCH, count) - 1, timeout=600)
        await connection.execute("vacuum (analyze)", timeout=600)
        await connection.execute("checkpoint", timeout=600)
    finally:
        await connection.close()


# Old runs as three steps left them; those that sleep have two of them behind them and wait for the third.
_RUNS = """
with made as (
    insert into kagzi.workflow_runs
        (namespace, run_id, task_queue, workflow_type, status, available_at, created_at, started_at, finished_at)
    select 'default', uuidv7(make_interval(secs => n - 1100000)), 'default', 'three', $1,
           case when $1 = 'SLEEPING' then kagzi.now() + interval '1 day' end,
           kagzi.now() + make_interval(secs => n - 1100000), kagzi.now() + make_interval(secs => n - 1100000),
           case when $1 = 'COMPLETED' then kagzi.now() + make_interval(secs => n - 1099999.9) end
    from generate_series($2::int, $3::int) n
    returning run_id, status, created_at
), paid as (
    insert into kagzi.workflow_payloads (namespace, run_id, input, output, created_at)
    select 'default', made.run_id, '1', case when made.status = 'COMPLETED' then '1'::bytea end, made.created_at
    from made
)
insert into kagzi.step_runs
    (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq, status, kind, output, created_at,
     started_at, finished_at)
select 'default', made.run_id, 'small' || case when s = 1 then '' else '#' || s end, 1, gen_random_uuid(), s,
       case when made.status = 'COMPLETED' or s < 3 then s end,
       case when made.status = 'COMPLETED' or s < 3 then 'COMPLETED' else 'RUNNING' end,
       case when made.status = 'COMPLETED' or s < 3 then 'FUNCTION' else 'SLEEP' end,
       case when made.status = 'COMPLETED' or s < 3 then '{"number":1}'::bytea end, made.created_at, made.created_at,
       case when made.status = 'COMPLETED' or s < 3 then made.created_at end
from made cross join generate_series(1, 3) s
"""
