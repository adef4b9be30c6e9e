"""Schedules on running servers: a slot reaches a waiting worker without anybody looking, a schedule made elsewhere is
waited for, and without notices the interval finds it. Nothing here would happen in time by a tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kagzi import Client
from kagzi.server.app import Server
from tests.conformance.contract import eventually
from tests.sdk.serving import Hand, completed, serving, working

# Nobody looks by itself while a test lasts.
NEVER = {"coordinator_interval_secs": 3_600, "dispatcher_interval_secs": 60}


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url, **NEVER) as running:
        yield running


async def test_a_slot_reaches_a_waiting_worker_at_once(server: Server) -> None:
    async with Client(server.address) as client, working(server.address, tick=lambda run: [completed(run.run_id)]):
        schedule = await client.schedules.create("tick", "tick", every="1s", max_runs=3)

        async def ended() -> list[str]:
            return [run.run_id async for run in schedule.history(status="COMPLETED")]

        await eventually(ended, lambda runs: len(runs) == 3)
        late = [run.started_at - run.scheduled_for async for run in schedule.history()]  # type: ignore[operator]
    print(f"\nbegun {max(late).total_seconds() * 1e3:.0f} ms after its slot at most")  # noqa: T201 - what was seen
    assert min(late).total_seconds() >= 0


async def test_the_next_run_goes_to_a_worker_when_the_one_before_has_ended(server: Server) -> None:
    async with Client(server.address) as client, working(server.address, "held") as hand:
        schedule = await client.schedules.create("slow", "held", every="1h", overlap="queue_one")
        first = await schedule.trigger()
        second = await schedule.trigger()
        assert first is not None
        assert second is not None
        await _held(hand, first.run_id)
        await first.terminate()
        await _held(hand, second.run_id)


async def _held(hand: Hand, run_id: str) -> None:
    async def look() -> bool:
        return any(delivery.run_id == run_id for delivery in hand.delivered)

    await eventually(look)


async def test_a_schedule_made_on_another_server_is_waited_for(server: Server, database_url: str) -> None:
    async with serving(database_url, **NEVER) as other, Client(other.address) as client:
        async with asyncio.timeout(60):
            await server.notifier.connected.wait()
            await other.notifier.connected.wait()
        await other.firing.stop()
        schedule = await client.schedules.create("tick", "tick", every="1s")
        await eventually(lambda: _count(client), lambda count: count > 0)
        await schedule.pause()


async def test_without_notices_the_interval_finds_it(database_url: str) -> None:
    async with (
        serving(database_url, coordinator_interval_secs=0.2) as server,
        serving(database_url, **NEVER) as other,
        Client(other.address) as client,
    ):
        await server.notifier.stop()
        await other.notifier.stop()
        await other.firing.stop()
        schedule = await client.schedules.create("tick", "tick", every="1s")
        await eventually(lambda: _count(client), lambda count: count > 0)
        await schedule.pause()


async def _count(client: Client) -> int:
    return len([run async for run in client.schedules.handle("tick").history()])
