"""What Prometheus reads is what happened, and the dashboard for Grafana asks for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from kagzi import Client, Context, NonRetryable, Worker, workflow
from kagzi.sdk.errors import RunFailed
from kagzi.server.app import Server
from kagzi.server.meters import Meters
from kagzi.server.settings import Settings
from kagzi.server.tallies import Tallies
from tests.dashboard.workflows import payouts
from tests.house.tree import ROOT

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def _double(number: int) -> int:
    return number * 2


@workflow
async def counted(ctx: Context, number: int) -> int:
    return await ctx.step("double", _double, number)


@workflow
async def unlucky(ctx: Context) -> None:
    raise NonRetryable("no")


@pytest_asyncio.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    made = Server(Settings(server_port=0), database_url)
    await made.start()
    yield made
    await made.stop(1.0)


async def scraped(server: Server) -> Samples:
    text, media_type = await server.meters.scrape()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def test_runs_steps_claims_and_flushes_are_counted(server: Server) -> None:
    async with Worker(server.address, workflows=[counted, unlucky]), Client(server.address) as client:
        for number in range(3):
            assert await client.execute(counted, number) == number * 2
        with pytest.raises(RunFailed):
            await client.execute(unlucky)
        samples = await scraped(server)
    of = {"namespace": "default", "type": "counted"}
    assert value(samples, "kagzi_runs_started_total", **of) == 3
    assert value(samples, "kagzi_runs_ended_total", **of, status="completed") == 3
    assert value(samples, "kagzi_runs_ended_total", namespace="default", type="unlucky", status="failed") == 1
    assert value(samples, "kagzi_claims_total", **of) == 3
    assert value(samples, "kagzi_run_pickup_seconds_count", **of) == 3
    assert value(samples, "kagzi_run_duration_seconds_bucket", **of, le="+Inf") == 3
    assert value(samples, "kagzi_step_attempts_total", namespace="default", status="completed") == 3
    assert value(samples, "kagzi_flush_operations_sum") >= value(samples, "kagzi_flush_operations_count") > 0
    assert value(samples, "kagzi_connected_workers") == 1
    assert value(samples, "kagzi_loop_crashes_total", loop="coordinator") == 0


async def test_a_run_that_waited_is_counted_by_how_long(server: Server) -> None:
    async with Client(server.address) as client:
        handle = await client.start(counted, 1)
        async with Worker(server.address, workflows=[counted]):
            await handle.result(timeout=20)
        samples = await scraped(server)
    assert value(samples, "kagzi_run_pickup_seconds_count", namespace="default", type="counted") == 1


async def test_queues_schedules_and_automations_are_measured(server: Server) -> None:
    async with Client(server.address) as client:
        await client.start("nobody-knows-it", queue="empty")
        await client.schedules.create("often", "nobody-knows-it", every="1s")
        async with Worker(server.address, automations=[payouts]):
            while not [each async for each in client.automations.list()]:
                pass
        await client.automations.pause("payouts")
        await client.automations.publish("payouts", "payout.asked", id="p-1")
        while not await _runs_of(client):
            pass
    await server.gauges.count()
    samples = await scraped(server)
    queue = {"namespace": "default", "queue": "empty", "type": "nobody-knows-it"}
    assert value(samples, "kagzi_queue_runs", **queue, state="pending_due") == 1
    assert value(samples, "kagzi_queue_oldest_due_seconds", **queue) >= 0
    assert value(samples, "kagzi_schedule_lateness_seconds_count") >= 1
    assert value(samples, "kagzi_automation_pending", namespace="default", automation="payouts") == 1
    assert value(samples, "kagzi_automation_blocked", namespace="default", automation="payouts") == 0


async def _runs_of(client: Client) -> bool:
    return len([run async for run in client.runs(queue="default", type="nobody-knows-it")]) > 0


async def test_names_beyond_the_busiest_share_one(server: Server) -> None:
    tallies = Tallies(server.database, "")
    tallies.started("default", [f"type-{number % 400}" for number in range(500)])
    text, _ = await Meters(server.database, tallies).scrape()
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    started = {sample.labels["type"]: sample.value for sample in families["kagzi_runs_started"].samples}
    assert len(started) == 301
    assert sum(started.values()) == 500
    assert started["(others)"] == 100


async def test_grafana_asks_only_for_what_there_is(server: Server) -> None:
    tallies = Tallies(server.database, "")
    tallies.started("default", ["order"])
    tallies.applied("default", [])
    tallies._now["default"][""].leases_lost += 1
    text, _ = await Meters(server.database, tallies, loops=[server.coordinator], gauges=server._standing).scrape()
    known = {
        name
        for family in text_string_to_metric_families(text.decode())
        for name in [*(sample.name for sample in family.samples), family.name, f"{family.name}_total"]
    }
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bkagzi_\w+", target["expr"])
    }
    assert len(asked) > 15
    assert asked - known == set()
