"""Four servers race on a hundred schedules a second while one of them is killed again and again: each slot has exactly
one run, and none came early. SCHEDULES_SECS=60 runs it for a minute, as long as the design says.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from kagzi import Client
from tests.conformance.contract import eventually
from tests.conformance.servers import ServerProcess

SECONDS = int(os.environ.get("SCHEDULES_SECS", "8"))
KILL_EVERY = 7.0 if SECONDS >= 60 else 2.5
SCHEDULES = 100
SEED = int(os.environ.get("SURVIVAL_SEED", "20260601"))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
async def test_each_slot_fires_exactly_once_while_servers_are_killed(database_url: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    servers = [ServerProcess(database_url, tmp_path / str(number), http_port=0) for number in range(4)]
    with ExitStack() as processes:
        for server in servers:
            processes.push(server)
        await asyncio.gather(*(asyncio.to_thread(server.start) for server in servers))
        begins, ends = await _create(servers[0].address)
        killed = await _kill_until(ends, servers, chance)
        connection = await asyncpg.connect(database_url)
        try:
            await eventually(lambda: _unfinished(connection), lambda left: left == 0, within=60)
            await _judge(connection, begins, killed)
        finally:
            await connection.close()


async def _create(address: str) -> tuple[dict[str, datetime], datetime]:
    """A hundred schedules of a second each, half of them due at the same instants: when each begins, and the end."""
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=4)
    begins = {
        f"s{number}": first + timedelta(milliseconds=0 if number % 2 else 10 * number) for number in range(SCHEDULES)
    }
    length = timedelta(seconds=SECONDS)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(address))
        await asyncio.gather(
            *(
                client.schedules.create(name, "work", every="1s", start_at=begin, end_at=begin + length)
                for name, begin in begins.items()
            )
        )
    return begins, max(begins.values()) + length


async def _kill_until(ends: datetime, servers: list[ServerProcess], chance: random.Random) -> int:
    """Kills a server again and again; each comes back as soon as it can, and the next does not wait for it."""
    killed = 0
    coming: dict[ServerProcess, asyncio.Task[None]] = {}
    while killed < 2 or datetime.now(UTC) + timedelta(seconds=KILL_EVERY) < ends:
        await asyncio.sleep(KILL_EVERY)
        alive = [server for server in servers if server not in coming or coming[server].done()]
        if len(alive) < 2:
            continue
        server = chance.choice(alive)
        server.send(signal.SIGKILL)
        coming[server] = asyncio.create_task(_restart(server))
        killed += 1
    await asyncio.gather(*coming.values())
    return killed


async def _restart(server: ServerProcess) -> None:
    await asyncio.to_thread(server.wait, 10)
    await asyncio.to_thread(server.start)


async def _unfinished(connection: asyncpg.Connection[asyncpg.Record]) -> int:
    left: int = await connection.fetchval("select count(*) from kagzi.workflow_runs where status = 'SCHEDULED'")
    return left


async def _judge(connection: asyncpg.Connection[asyncpg.Record], begins: dict[str, datetime], killed: int) -> None:
    rows = await connection.fetch(
        "select t.external_id as name, r.scheduled_for as slot, r.created_at - r.scheduled_for as late, t.fired,"
        " t.pause, t.schedule_error from kagzi.workflow_runs r join kagzi.workflow_runs t on t.run_id = r.schedule_id"
    )
    late = sorted(row["late"].total_seconds() for row in rows)
    cuts = statistics.quantiles(late, n=100)
    print(  # noqa: T201 - what was seen, for whoever reads the test's output
        f"\n{killed} kills, {len(rows)} slots: late by {cuts[49] * 1e3:.1f} ms (p50), {cuts[98] * 1e3:.1f} ms (p99), "
        f"{late[-1] * 1e3:.1f} ms at most"
    )
    fired = {name: sorted(row["slot"] for row in rows if row["name"] == name) for name in begins}
    expected = {
        name: [begin + timedelta(seconds=second) for second in range(SECONDS)] for name, begin in begins.items()
    }
    assert {name: len(slots) for name, slots in fired.items() if slots != expected[name]} == {}
    assert late[0] >= 0
    assert {(row["fired"], row["pause"], row["schedule_error"]) for row in rows} == {(SECONDS, "FINISHED", None)}
