"""W11: events through producer, consumer and consumer of many automations at once, with one mutation each."""

from __future__ import annotations

import asyncio
import re
import time

import asyncpg

from benchmarks import chain
from benchmarks.lab import Lab
from kagzi import Client

# What the log of the database says of every statement that it runs.
_STATEMENT = re.compile(rb"LOG:  (?:execute [^:]*|statement): (?!begin|commit|rollback)", re.IGNORECASE)
_PATIENCE = 240.0


async def w11(lab: Lab) -> dict[str, float]:
    """100 automations with 50 events each. Every event costs two consumer runs and two mutations."""
    # More places than automations: what is chosen next is handed over before the place of its predecessor is free.
    lab.start_worker(concurrency=200, program="benchmarks.chain")
    connection = await asyncpg.connect(lab.database.url)
    try:
        async with Client(lab.address) as client:
            await _deployed(connection)
            before = lab.cpu_seconds()
            began = time.perf_counter()
            await _pass(client, connection, 1)
            seconds = time.perf_counter() - began
            after = lab.cpu_seconds()
            statements = await _statements(lab, client, connection)
    finally:
        await connection.close()
    events = chain.CHAINS * chain.LINKS
    figures = {
        "events_per_s": events / seconds,
        "consumer_runs_per_s": 2 * events / seconds,
        "statements_per_event": statements / events,
    }
    return figures | {f"cpu_us_per_event_{part}": (after[part] - before[part]) / events * 1e6 for part in after}


async def _pass(client: Client, connection: asyncpg.Connection[asyncpg.Record], number: int) -> None:
    """Every automation publishes its events once more; returns when all of them have gone all the way."""
    await asyncio.gather(*(client.automations.run_now(name) for name in chain.names()))
    wanted = 2 * chain.CHAINS * chain.LINKS
    query = (
        "select count(*) from kagzi.mutations m where m.status = 'APPLIED'"
        " and not exists (select 1 from kagzi.deliveries d where d.status = 'RESERVED' limit 1)"
    )
    async with asyncio.timeout(_PATIENCE):
        while await connection.fetchval(query) < wanted * number:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.2)


async def _deployed(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Every automation is there and has nothing to do."""
    query = (
        "select (select count(*) from kagzi.automations)"
        " - (select count(*) from kagzi.workflow_runs where status in ('PENDING', 'RUNNING', 'SLEEPING'))"
        " - (select count(*) from kagzi.handlers where dirty or queued or next_run_at <= kagzi.now())"
    )
    async with asyncio.timeout(_PATIENCE):
        while await connection.fetchval(query) < chain.CHAINS:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)


async def _statements(lab: Lab, client: Client, connection: asyncpg.Connection[asyncpg.Record]) -> int:
    """How many statements one more pass takes, by the database's own log. It is slower so, and not timed."""
    log = lab.database.directory / "postgres.log"
    await _log(connection, "all")
    size = log.stat().st_size
    await _pass(client, connection, 2)
    await _log(connection, "none")
    with log.open("rb") as lines:
        lines.seek(size)
        return sum(1 for line in lines if _STATEMENT.search(line))


async def _log(connection: asyncpg.Connection[asyncpg.Record], what: str) -> None:
    await connection.execute("alter system set log_parameter_max_length = 0")
    await connection.execute(f"alter system set log_statement = '{what}'")
    await connection.execute("select pg_reload_conf()")
    # Every backend hears of it between two statements.
    await asyncio.sleep(0.5)
