"""W11: events through producer, consumer and consumer of many automations at once, with one mutation each."""

from __future__ import annotations

import asyncio

import asyncpg

from benchmarks import chain
from benchmarks.lab import Lab
from benchmarks.runs import Results
from benchmarks.statements import counted
from kagzi import Client

_PATIENCE = 240.0


async def w11(lab: Lab) -> Results:
    """100 automations with 50 events each. Every event costs two consumer runs and two mutations."""
    # More places than automations: what is chosen next is handed over before the place of its predecessor is free.
    lab.start_worker(concurrency=200, program="benchmarks.chain")
    connection = await asyncpg.connect(lab.database.url)
    try:
        async with Client(lab.address) as client:
            await _deployed(connection)
            with lab.span() as span:
                await _pass(client, connection, 1)
            async with counted(lab.database) as count:
                await _pass(client, connection, 2)
    finally:
        await connection.close()
    events = chain.CHAINS * chain.LINKS
    figures = {
        "events_per_s": events / span.seconds,
        "consumer_runs_per_s": 2 * events / span.seconds,
        "statements_per_event": count.statements / events,
    }
    return {"w11": figures | span.figures(events)}


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
