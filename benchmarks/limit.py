"""The limit: the life of a run of three steps as plain SQL, on the same PostgreSQL and with the same durability.
Batched it is what an engine can hope for on one connection; one by one it is what an engine without batches cannot
pass.
"""

from __future__ import annotations

import asyncio
import os
import time

import asyncpg

from benchmarks.lab import fresh_database
from benchmarks.runs import Results
from benchmarks.span import Figures, Span

_SECONDS = 3.0


async def limit() -> Results:
    """Batches of 100 and of 10 on one connection; then one by one, on one connection and on eight."""
    figures: Figures = {}
    async with fresh_database() as database:
        with Span({"client": [os.getpid()], "database": [database.pid]}) as span:
            for size in (100, 10):
                figures[f"batched_{size}_runs_per_s"] = await _measured(database.url, 1, size)
            for connections in (1, 8):
                figures[f"unbatched_{connections}_runs_per_s"] = await _measured(database.url, connections, 1)
    return {"w1": figures | span.figures()}


async def _measured(url: str, connections: int, size: int) -> float:
    pool = await asyncpg.create_pool(url, min_size=connections, max_size=connections)
    count = 0

    async def live(until: float) -> None:
        nonlocal count
        async with pool.acquire() as connection:
            while time.perf_counter() < until:
                await _life(connection, size)
                count += size

    try:
        await pool.execute(_SCHEMA)
        await live(time.perf_counter() + 0.3)
        count, began = 0, time.perf_counter()
        await asyncio.gather(*(live(began + _SECONDS) for _ in range(connections)))
        return count / (time.perf_counter() - began)
    finally:
        await pool.close()


async def _life(connection: asyncpg.pool.PoolConnectionProxy[asyncpg.Record], size: int) -> None:
    """Six commits: started, claimed, three results, ended."""
    await connection.execute(_START, [_DATA] * size)
    claimed: list[int] = []
    while not claimed:
        claimed = [row["id"] for row in await connection.fetch(_CLAIM, size)]
    outputs = [_DATA] * len(claimed)
    for position in range(3):
        await connection.execute(_STEP, claimed, position, outputs)
    await connection.execute(_END, claimed, outputs)


_DATA = b'{"number":1}'
_SCHEMA = """
drop table if exists runs, steps;
create table runs (id bigserial primary key, status smallint not null default 0, input bytea, output bytea, owner text,
                   created_at timestamptz not null default now(), finished_at timestamptz) with (fillfactor = 75);
create index on runs (id) where status = 0;
create table steps (run_id bigint, position int, output bytea, created_at timestamptz not null default now(),
                    primary key (run_id, position));
"""
_START = "insert into runs (input) select unnest($1::bytea[])"
_CLAIM = """
with due as (select id from runs where status = 0 order by id limit $1 for update skip locked)
update runs set status = 1, owner = 'w' from due where runs.id = due.id returning runs.id, runs.input
"""
_STEP = "insert into steps (run_id, position, output) select i, $2, o from unnest($1::bigint[], $3::bytea[]) u (i, o)"
_END = """
update runs set status = 2, output = o, finished_at = now()
from unnest($1::bigint[], $2::bytea[]) u (i, o) where id = i
"""
