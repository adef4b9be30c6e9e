"""`Worker`: what it is told, how it works while servers and databases come and go, and how it stops."""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from kagzi.embedded import Embedded
from kagzi.protocol.v1 import admin_pb2, admin_pb2_grpc
from kagzi.protocol.v1.worker_pb2 import ConnectResponse
from kagzi.sdk.definition import workflow
from kagzi.sdk.errors import ConfigError, NotFound
from kagzi.sdk.worker import Worker
from kagzi.store import migrate
from tests.sdk.stage import MAIN, Caller, ServerProcess, child, idle, recording, serving, until

EFFECTS: list[str] = []


@pytest.fixture(autouse=True)
def no_effects() -> None:
    EFFECTS.clear()


async def note(number: int) -> int:
    EFFECTS.append(f"s{number}")
    await asyncio.sleep(0.03)
    return number


@workflow
async def count(ctx: Any, steps: int) -> int:
    return sum([await ctx.step(f"s{number}", note, number) for number in range(steps)])


@workflow
async def slow(ctx: Any) -> None:
    async def forever() -> None:
        EFFECTS.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            EFFECTS.append("stopped")

    await ctx.step("forever", forever)


def not_a_workflow() -> None: ...


@workflow(name="count")
async def another(ctx: Any) -> None: ...


@workflow(queue="billing")
async def invoice(ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs something to run"),
        ({"workflows": [not_a_workflow]}, "'not_a_workflow' is no workflow: put @workflow"),
        ({"workflows": ["count"]}, "'count' is no workflow"),
        (
            {"workflows": [count, another]},
            r"Two workflows are called 'count' \(.*\.count and .*\.another\): rename one",
        ),
        ({"workflows": [invoice]}, "declared for the queue 'billing', but this worker serves 'default'"),
        ({"workflows": [idle], "concurrency": 0}, "concurrency .* from 1 to 10000, and not 0"),
        ({"workflows": [idle], "concurrency": True}, "and not True"),
        ({"workflows": [idle], "drain_timeout": "soon"}, "drain_timeout='soon' is not a duration"),
        ({"workflows": [idle], "queue": ""}, "queue must be 1 to 255 bytes"),
        ({"workflows": [idle], "labels": 5}, "labels=5 must be a mapping"),
        ({"workflows": [idle], "automations": ["inbox"]}, "is no automation"),
        ({"workflows": [idle], "target": "nowhere:port"}, "names no server"),
        ({"workflows": [idle], "target": 50051}, "50051 names no server: that is text, as 'localhost:50051'"),
        ({"workflows": idle}, r"workflows is a list, also of one: Worker\(workflows=\[idle\]\)"),
    ],
)
def test_a_worker_that_is_told_nonsense_says_what_to_change(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Worker(options.pop("target", None), **options)


def test_a_workflow_that_is_listed_twice_is_one() -> None:
    Worker(workflows=[count, count, idle])


async def test_what_is_not_given_comes_from_the_environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        monkeypatch.setenv("KAGZI_URL", server.address)
        monkeypatch.setenv("KAGZI_QUEUE", "billing")
        monkeypatch.setenv("KAGZI_CONCURRENCY", "7")
        async with Worker(workflows=[invoice], labels={"zone": "a"}):
            [known] = await caller.fetch("select * from kagzi.workers")
        assert (known["task_queue"], known["concurrency"], known["namespace"]) == ("billing", 7, "default")
        assert json.loads(known["labels"]) == {"zone": "a"}
        assert known["pid"] == os.getpid()


async def test_runs_end_with_their_results_and_the_worker_says_goodbye(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        async with Worker(server.address, workflows=[count], concurrency=5):
            runs = [await caller.start(count, b"3") for _ in range(20)]
            assert set(await caller.ended(*runs)) == {"COMPLETED"}
        outputs = await caller.fetch("select output from kagzi.workflow_payloads")
        assert {row["output"] for row in outputs} == {b"3"}
        assert [row["status"] for row in await caller.fetch("select status from kagzi.workers")] == ["OFFLINE"]


async def test_a_worker_is_refused_where_its_namespace_does_not_exist(database_url: str) -> None:
    async with serving(database_url) as server:
        with pytest.raises(NotFound, match="nowhere"):
            await Worker(server.address, workflows=[idle], namespace="nowhere").run()
        with pytest.raises(NotFound, match="nowhere"):
            async with Worker(server.address, workflows=[idle], namespace="nowhere"):
                pass


async def test_two_workers_of_one_process_are_two(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        Caller(server.address, database_url) as caller,
        Worker(server.address, workflows=[idle]),
        Worker(server.address, workflows=[idle]),
    ):
        assert len(await caller.fetch("select 1 from kagzi.workers where status = 'ONLINE'")) == 2


async def test_a_worker_can_work_again_but_not_twice_at_a_time(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        worker = Worker(server.address, workflows=[count])
        for _ in range(2):
            async with worker:
                with pytest.raises(RuntimeError, match="runs already"):
                    await worker.run()
                assert await caller.ended(await caller.start(count, b"1")) == ["COMPLETED"]


async def exactly_once(caller: Caller, run_id: str, steps: int) -> None:
    """The run has ended well, every step was done once, and the record is whole."""
    assert await caller.ended(run_id) == ["COMPLETED"]
    wanted = [f"s{number}" for number in range(steps)]
    assert wanted == EFFECTS
    rows = await caller.fetch(
        "select step_id, attempt_number, status, completed_seq from kagzi.step_runs order by position"
    )
    assert [tuple(row) for row in rows] == [(name, 1, "COMPLETED", seq) for seq, name in enumerate(wanted, 1)]
    [run] = await caller.fetch("select crashes from kagzi.workflow_runs")
    assert run["crashes"] == 0


async def effects(number: int) -> None:
    await until(lambda: len(EFFECTS) >= number)


async def test_a_server_killed_and_started_again_costs_nothing(database_url: str) -> None:
    with ServerProcess(database_url) as server:
        async with (
            Caller(server.address, database_url) as caller,
            Worker(server.address, workflows=[count]),
        ):
            run_id = await caller.start(count, b"40")
            for number in (5, 15, 25):
                await effects(number)
                server.kill()
                server.start()
            await exactly_once(caller, run_id, 40)


async def test_a_run_goes_on_at_another_server_when_its_own_is_killed(database_url: str) -> None:
    with ServerProcess(database_url) as first, ServerProcess(database_url) as second:
        async with (
            Caller(first.address, database_url) as caller,
            Worker(f"{first.address},{second.address}", workflows=[count]),
        ):
            run_id = await caller.start(count, b"30")
            await effects(10)
            first.kill()
            await effects(20)
            first.start()
            second.kill()
            await exactly_once(caller, run_id, 30)


async def test_a_server_that_stops_in_order_hands_its_workers_on(database_url: str) -> None:
    async with (
        serving(database_url) as first,
        serving(database_url) as second,
        Caller(second.address, database_url) as caller,
        Worker(f"{first.address},{second.address}", workflows=[count]),
    ):
        run_id = await caller.start(count, b"20")
        await effects(5)
        await first.stop(1)
        await exactly_once(caller, run_id, 20)


async def test_a_database_that_is_away_for_longer_than_a_lease_costs_nothing(
    postgres: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kagzi.worker")
    await migrate.apply(postgres.url)

    def failures() -> int:
        return sum("heartbeat failed" in record.getMessage() for record in caplog.records)

    with ServerProcess(postgres.url, lease=3) as server:
        async with Caller(server.address, postgres.url) as caller, Worker(server.address, workflows=[count]):
            run_id = await caller.start(count, b"40")
            await effects(10)
            await asyncio.to_thread(postgres.crash)
            await until(lambda: failures() >= 3)
            await asyncio.to_thread(postgres.start)
            await exactly_once(caller, run_id, 40)


async def test_a_worker_finishes_what_it_holds_before_it_stops(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        async with Worker(server.address, workflows=[count], concurrency=1):
            first = await caller.start(count, b"10")
            await effects(2)
            second = await caller.start(count, b"1")
        rows = await caller.fetch("select run_id::text, status from kagzi.workflow_runs")
        assert dict(tuple(row) for row in rows) == {first: "COMPLETED", second: "PENDING"}


async def test_a_body_that_outlasts_the_drain_is_interrupted_and_its_run_given_back(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        async with Worker(server.address, workflows=[slow], drain_timeout="100ms"):
            await caller.start(slow)
            await effects(1)
        assert EFFECTS == ["began", "stopped"]
        [run] = await caller.fetch(
            "select status, crashes, available_at <= kagzi.now() as due from kagzi.workflow_runs"
        )
        assert tuple(run) == ("PENDING", 0, True)
        [attempt] = await caller.fetch("select status from kagzi.step_runs")
        assert attempt["status"] == "INTERRUPTED"


async def test_a_cancelled_worker_gives_its_runs_back_at_once(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        running = asyncio.create_task(Worker(server.address, workflows=[slow]).run())
        await caller.start(slow)
        await effects(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        [run] = await caller.fetch("select status from kagzi.workflow_runs")
        assert run["status"] == "PENDING"


async def test_a_worker_that_is_asked_to_drain_by_a_server_ends(database_url: str) -> None:
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        running = asyncio.create_task(Worker(server.address, workflows=[count]).run())
        [known] = await caller.until("select worker_id::text from kagzi.workers where status = 'ONLINE'")
        run_id = await caller.start(count, b"10")
        await effects(1)
        async with grpc.aio.insecure_channel(server.address) as channel:
            admin = admin_pb2_grpc.AdminServiceStub(channel)
            await admin.DrainWorker(admin_pb2.DrainWorkerRequest(worker_id=known["worker_id"]))
        await asyncio.wait_for(running, 60)
        assert await caller.ended(run_id) == ["COMPLETED"]


BODIES = """
import asyncio, os, time
from pathlib import Path
from kagzi.sdk.definition import workflow

def began() -> None:
    Path(os.environ["EFFECTS"]).write_text("began")

async def short() -> None:
    began()
    await asyncio.sleep(0.5)

async def endless() -> None:
    began()
    await asyncio.Event().wait()

def stuck() -> None:
    began()
    time.sleep(60)

@workflow
async def brief(ctx) -> None:
    await ctx.step("body", short)

@workflow
async def long(ctx) -> None:
    await ctx.step("body", endless)

@workflow
async def deaf(ctx) -> None:
    await ctx.step("body", stuck)
"""


@pytest.mark.parametrize(
    ("kind", "drain_timeout", "signals", "status", "attempt"),
    [
        pytest.param("brief", "20s", 1, "COMPLETED", "COMPLETED", id="what can end does"),
        pytest.param("long", "200ms", 1, "PENDING", "INTERRUPTED", id="what takes too long is interrupted"),
        pytest.param("long", "60s", 2, "PENDING", "INTERRUPTED", id="a second signal means at once"),
        pytest.param("deaf", "200ms", 1, "PENDING", "INTERRUPTED", id="a thread that hears nothing is left behind"),
    ],
)
async def test_a_signal_drains_a_worker(
    database_url: str, tmp_path: Path, kind: str, drain_timeout: str, signals: int, status: str, attempt: str
) -> None:
    module, effect = tmp_path / "bodies.py", tmp_path / "effect"
    module.write_text(BODIES)
    async with serving(database_url) as server, Caller(server.address, database_url) as caller:
        command = (sys.executable, "-c", MAIN, "worker", str(module), "--url", server.address)
        with child(*command, "--drain-timeout", drain_timeout, env={"EFFECTS": str(effect)}) as worker:
            run_id = await caller.start(workflow(name=kind)(idle.function))
            await caller.until("select 1 from kagzi.step_runs where status = 'RUNNING'")
            assert effect.exists()
            for _ in range(signals):
                worker.send_signal(signal.SIGTERM)
                assert worker.stdout is not None
                lines = iter(worker.stdout.readline, "")
                await asyncio.to_thread(lambda: next(line for line in lines if "SIGTERM" in line))  # noqa: B023
            assert await asyncio.to_thread(worker.wait, 10) == 0
        [run] = await caller.fetch("select run_id::text, status, crashes from kagzi.workflow_runs")
        assert tuple(run) == (run_id, status, 0)
        [row] = await caller.fetch("select status from kagzi.step_runs")
        assert row["status"] == attempt
        assert await caller.fetch("select 1 from kagzi.workers where status = 'OFFLINE'")


async def test_a_drain_that_no_row_knows_of_ends_no_worker() -> None:
    async with recording() as recorder, Worker(recorder.address, workflows=[idle]) as worker:
        await recorder.until(lambda: bool(recorder.heartbeats))
        recorder.say(ConnectResponse(drain=True))
        await recorder.until(lambda: len(recorder.heartbeats) == 2)
        assert worker._task is not None
        assert not worker._task.done()
    assert recorder.goodbyes == 1
