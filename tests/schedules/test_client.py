"""`client.schedules`, with and without `await`, against a real server."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kagzi import Client, Compression, Context, Retry, SyncClient, workflow
from kagzi.errors import ConfigError, Conflict, InvalidArgument, NotFound, PreconditionFailed
from kagzi.sdk.schedules import ScheduleHandle, Schedules
from kagzi.sdk.sync import SyncHandle, SyncScheduleHandle, SyncSchedules
from kagzi.server.app import Server
from tests.conformance.contract import eventually
from tests.sdk.serving import completed, serving, working

FAR = datetime(2100, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Order:
    cents: int


@workflow(queue="shop", version="2", retry=Retry(max_attempts=4), timeout="1h")
async def order(ctx: Context, order: Order) -> None: ...


@workflow
async def bare(ctx: Context) -> None: ...


@workflow
async def greeting(ctx: Context, name: str = "world") -> str:
    return f"hello {name}"


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.address, codecs=[Compression(min_size=1)]) as opened:
        yield opened


async def test_a_schedule_takes_over_what_its_workflow_declares(client: Client) -> None:
    handle = await client.schedules.create("nightly", order, Order(7), cron="0 2 * * *", timezone="Europe/Berlin")
    found = await handle.describe()
    assert (found.id, found.type, found.queue, found.version) == ("nightly", "order", "shop", "2")
    assert (found.retry, found.timeout) == (Retry(max_attempts=4), timedelta(hours=1))
    assert (found.cron, found.every, found.timezone, found.overlap) == ("0 2 * * *", None, "Europe/Berlin", "allow")
    assert found.input == {"cents": 7}
    assert found == await client.schedules.get("nightly")
    assert found.next_slot == (await handle.next_fires(1))[0]
    assert (await handle.next_fires(1))[0].utcoffset() in (timedelta(hours=1), timedelta(hours=2))


async def test_a_workflow_whose_input_has_a_default_needs_none(client: Client) -> None:
    handle = await client.schedules.create("greeting", greeting, every="1h")
    assert (await handle.describe()).input is None


async def test_a_schedule_is_told_everything(client: Client) -> None:
    handle = await client.schedules.create(
        "all",
        "anything",
        {"a": "x" * 100},
        every="90m",
        start_at=datetime(2090, 1, 1, tzinfo=UTC),
        end_at=FAR,
        jitter="5s",
        max_runs=9,
        overlap="queue_one",
        max_catchup=0,
        queue="far",
        version="3",
        priority=4,
        labels={"team": "a"},
        timeout=30,
        retry=Retry(max_attempts=2),
        paused=True,
    )
    found = await handle.describe()
    assert (found.status, found.pause, found.next_slot) == ("PAUSED", "asked", None)
    assert (found.every, found.start_at, found.end_at) == (
        timedelta(minutes=90),
        datetime(2090, 1, 1, tzinfo=UTC),
        FAR,
    )
    assert (found.jitter, found.max_runs, found.overlap, found.max_catchup) == (timedelta(seconds=5), 9, "queue_one", 0)
    assert (found.queue, found.version, found.priority, found.labels) == ("far", "3", 4, {"team": "a"})
    assert (found.timeout, found.input) == (timedelta(seconds=30), {"a": "x" * 100})


async def test_a_schedule_is_paused_changed_triggered_and_deleted(server: Server, client: Client) -> None:
    handle = await client.schedules.create("daily", "echo", {"n": 1}, text="every 2 hours")
    assert (await handle.pause("holiday")).pause_reason == "holiday"
    assert (await handle.resume()).status == "SCHEDULED"
    changed = await handle.update(cron="@yearly", input={"n": 2}, labels={"a": "b"}, timeout="5s", overlap="skip")
    assert (changed.cron, changed.labels, changed.timeout) == ("0 0 1 1 *", {"a": "b"}, timedelta(seconds=5))
    bare_again = await handle.update(timeout=None, labels=None, max_runs=None)
    assert (bare_again.timeout, bare_again.labels) == (None, {})
    run = await handle.trigger()
    assert run is not None
    assert await handle.trigger() is None
    other = await handle.trigger(input={"n": 3}, overlap="allow")
    assert other is not None
    async with working(server.address, echo=lambda delivery: [completed(delivery.run_id)]):
        for one, number in ((run, 2), (other, 3)):
            assert await one.result(timeout=60) == one.run_id
            described = await one.describe()
            assert (described.schedule, described.scheduled_for, described.input) == ("daily", None, {"n": number})
    assert [found.run_id async for found in handle.history(status="COMPLETED")] == [other.run_id, run.run_id]
    assert [found.run_id async for found in handle.history(limit=1)] == [other.run_id]
    template = await handle.delete()
    with pytest.raises(NotFound):
        await handle.describe()
    assert (await run.describe()).schedule is None
    assert [found.run_id async for found in handle.history()] == [other.run_id, run.run_id]
    stranger = client.schedules.handle("daily")
    with pytest.raises(NotFound):
        [found async for found in stranger.history()]
    assert [found.run_id async for found in stranger.history(template_run_id=template)] == [other.run_id, run.run_id]
    await client.schedules.create("daily", "echo", every="1h")
    assert [found async for found in handle.history()] == []


async def test_past_slots_are_made_up_for(client: Client) -> None:
    handle = await client.schedules.create("often", bare, every="1m", overlap="skip", paused=True)
    now = datetime.now(UTC)
    counted = await handle.backfill(now - timedelta(minutes=1_200), now, dry_run=True)
    assert (counted.started, counted.already_existed, len(counted.runs)) == (1_200, 0, 1_200)
    assert set(counted.runs.values()) == {None}
    done = await handle.backfill(now - timedelta(minutes=3), now)
    assert done.started == 3
    assert all(done.runs.values())
    again = await handle.backfill(now - timedelta(minutes=3), now)
    assert (again.started, again.already_existed, again.runs) == (0, 3, done.runs)


async def test_past_slots_may_be_made_up_for_one_after_another(client: Client) -> None:
    handle = await client.schedules.create("often", bare, every="1m", paused=True)
    now = datetime.now(UTC)
    since = now - timedelta(minutes=3)
    counted = await handle.backfill(since, now, overlap="skip", dry_run=True)
    assert (counted.started, counted.skipped) == (1, tuple(sorted(counted.runs))[:2])
    done = await handle.backfill(since, now, overlap="queue_all")
    assert (done.started, done.skipped) == (3, ())
    explained = [await client.handle(run_id).explain() for _, run_id in sorted(done.runs.items()) if run_id]
    assert ["previous run" in str(one.reasons) for one in explained] == [False, True, True]
    with pytest.raises(ConfigError, match="overlap='both'"):
        await handle.backfill(since, overlap="both")  # type: ignore[arg-type]  # the mistake


async def test_schedules_are_listed(client: Client) -> None:
    for number in range(3):
        await client.schedules.create(f"s{number}", bare, every="1h", labels={"n": str(number)}, paused=number == 1)
    assert [one.id async for one in client.schedules.list()] == ["s0", "s1", "s2"]
    assert [one.id async for one in client.schedules.list(limit=2)] == ["s0", "s1"]
    assert [one.id async for one in client.schedules.list(status="PAUSED")] == ["s1"]
    assert [one.id async for one in client.schedules.list(labels={"n": "2"}, type=bare)] == ["s2"]
    assert [one.id async for one in client.schedules.list(broken=True)] == []


async def test_a_preview_needs_no_schedule(client: Client) -> None:
    seen = await client.schedules.preview(2, cron="30 9 * * 1", timezone="Asia/Tokyo", after=FAR)
    assert [fire.isoformat() for fire in seen.fires] == ["2100-01-04T09:30:00+09:00", "2100-01-11T09:30:00+09:00"]
    assert (seen.cron, seen.every, seen.timezone) == ("30 9 * * 1", None, "Asia/Tokyo")
    again = await client.schedules.preview(2, text=seen.words, after=FAR)
    assert again.fires == seen.fires


async def test_what_makes_no_sense_is_told_where_it_was_written(client: Client) -> None:
    create: Any = client.schedules.create
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("given none", {}),
        ("given cron and every", {"cron": "@daily", "every": "1h"}),
        ("every='500ms' is too short", {"every": "500ms"}),
        ("every='-1h' is not a duration: it is negative", {"every": "-1h"}),
        ("every=-60 is not a duration: it is negative", {"every": -60}),
        ("every='soon'", {"every": "soon"}),
        ("overlap='both'", {"every": "1h", "overlap": "both"}),
        ("overlap='queue_all'", {"every": "1h", "overlap": "queue_all"}),
        ("start_at=", {"every": "1h", "start_at": datetime(2090, 1, 1)}),  # noqa: DTZ001 - the mistake
        ("end_at='tomorrow'", {"every": "1h", "end_at": "tomorrow"}),
        ("jitter='-1s' is not a duration: it is negative", {"every": "1h", "jitter": "-1s"}),
        ("timeout=-1", {"every": "1h", "timeout": -1}),
        ("max_runs=-1", {"every": "1h", "max_runs": -1}),
        ("max_catchup='all'", {"every": "1h", "max_catchup": "all"}),
        ("priority='high'", {"every": "1h", "priority": "high"}),
        ("retry=3", {"every": "1h", "retry": 3}),
        ("labels=7", {"every": "1h", "labels": 7}),
        ("takes no input", {"every": "1h", "input": 1}),
    ]
    for says, options in wrong:
        with pytest.raises(ConfigError, match=re.escape(says)):
            await create("x", bare, options.pop("input", None), **options)
    with pytest.raises(TypeError, match="'timezon': did you mean 'timezone'"):
        await create("x", bare, every="1h", timezon="UTC")
    for field, options in (
        ("timing.cron", {"cron": "0 0 30 2 *"}),
        ("timezone", {"every": "1h", "timezone": "Mars/Olympus"}),
        ("timing.text", {"text": "when the moon is blue"}),
        ("end_at", {"every": "1h", "start_at": FAR, "end_at": FAR}),
    ):
        with pytest.raises(InvalidArgument) as refused:
            await create("x", bare, **options)
        assert refused.value.field == field
    assert [one async for one in client.schedules.list()] == []
    handle = await create("x", bare, every="1h", max_runs=1)
    with pytest.raises(Conflict):
        await create("x", bare, every="1h")
    with pytest.raises(ConfigError):
        client.schedules.handle("")
    with pytest.raises(ConfigError):
        await handle.trigger(overlap="both")
    with pytest.raises(ConfigError):
        await handle.backfill(datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake
    with pytest.raises(InvalidArgument) as refused:
        await handle.update(every="1h", timezone="Mars/Olympus")
    assert refused.value.field == "timezone"
    run = await handle.trigger()
    assert run is not None
    with pytest.raises(NotFound, match="is the id of a run"):
        await client.schedules.handle(run.run_id).pause()


async def test_a_schedule_without_a_further_slot_says_what_to_do(client: Client) -> None:
    end = datetime.now(UTC) + timedelta(seconds=2)
    handle = await client.schedules.create("short", bare, every="1s", end_at=end)
    await eventually(handle.describe, lambda found: found.pause == "finished")
    with pytest.raises(PreconditionFailed, match="end_at"):
        await handle.resume()
    assert (await handle.update(end_at=None, enabled=True)).status == "SCHEDULED"


async def test_the_same_is_there_without_await(server: Server) -> None:
    def use() -> None:
        with SyncClient(server.address) as client:
            handle = client.schedules.create("daily", "echo", 7, cron="@daily", overlap="skip")
            assert handle.describe() == client.schedules.get("daily")
            assert client.schedules.handle("daily").pause("why").pause_reason == "why"
            assert handle.resume().status == "SCHEDULED"
            assert handle.update(priority=4).priority == 4
            assert len(handle.next_fires(3)) == 3
            run = handle.trigger(run_id=None)
            assert isinstance(run, SyncHandle)
            assert handle.trigger() is None
            assert [one.run_id for one in handle.history()] == [run.run_id]
            now = datetime.now(UTC)
            assert handle.backfill(now - timedelta(days=2), now, dry_run=True).started == 2
            assert [one.id for one in client.schedules.list()] == ["daily"]
            assert len(client.schedules.preview(4, every="1h").fires) == 4
            handle.delete()
            with pytest.raises(NotFound):
                handle.describe()

    await asyncio.to_thread(use)


@pytest.mark.parametrize(("twin", "sync"), [(Schedules, SyncSchedules), (ScheduleHandle, SyncScheduleHandle)])
def test_every_method_has_its_twin(twin: type, sync: type) -> None:
    public = {name for name, _ in inspect.getmembers(twin, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in public if not hasattr(sync, name)} == set()
