"""Heartbeats: what a worker holds stays its own while it lives, whatever its code does, and not a moment longer."""

import asyncio
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.sdk.definition import workflow
from kagzi.sdk.worker import Worker
from tests.sdk.stage import (
    MAIN,
    Caller,
    ServerProcess,
    child,
    delivery,
    idle,
    on_shift,
    post,
    recording,
    serving,
    until,
)


async def test_a_run_is_named_from_its_first_chunk_until_its_last_operation_is_answered() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.answers = False
        recorder.lease_ms = 300
        await recorder.until(lambda: bool(recorder.heartbeats))
        first = delivery(more=True)
        held = pb.Held(run_id=first.run_id, claim_token=first.claim_token)
        recorder.say(pb.ConnectResponse(deliveries=[first]))
        await recorder.until(lambda: recorder.heartbeats[-1].held == [held])
        recorder.say(pb.ConnectResponse(deliveries=[pb.Delivery(run_id=held.run_id, claim_token=held.claim_token)]))
        (await crew.run()).finish()
        await recorder.until(lambda: len(recorder.operations) == 1)
        count = len(recorder.heartbeats)
        await recorder.until(lambda: len(recorder.heartbeats) == count + 2)
        assert recorder.heartbeats[-1].held == [held]
        recorder.say(pb.ConnectResponse(accepted=[recorder.operations[0].number]))
        await recorder.until(lambda: not recorder.heartbeats[-1].held)


async def test_no_step_begins_when_the_lease_is_too_old_and_one_does_once_it_is_renewed() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.lease_ms = 2_000
        await recorder.until(lambda: bool(recorder.heartbeats))
        recorder.silence = grpc.StatusCode.UNAVAILABLE
        recorder.say(pb.ConnectResponse(deliveries=[delivery(lease_until_us=1 + 60_000_000)]))
        run = await crew.run()
        lease = crew.shift.leases.by_token[run.token]
        # A sixth of the lease that the server grants before its end is the last moment to begin something.
        assert lease.begin_until < time.monotonic() + 60
        assert crew.shift.may_begin(run)
        lease.begin_until = time.monotonic()
        assert not crew.shift.may_begin(run)
        recorder.silence = None
        await until(lambda: crew.shift.may_begin(run))


async def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        await recorder.until(lambda: recorder.credit == 3)
        recorder.say(pb.ConnectResponse(deliveries=[delivery()]))
        run = await crew.run()
        leases = crew.shift.leases
        leases.by_token[run.token].begin_until = 0.0
        # A sixth of a lease of 30 s before its end is the last moment to begin something.
        answer = pb.HeartbeatResponse(now_us=5, lease_until_us=5 + 60_000_000)
        leases.renewed(leases.all(), answer, time.monotonic() - 56)
        assert not crew.shift.may_begin(run)
        leases.renewed(leases.all(), answer, time.monotonic() - 54)
        assert crew.shift.may_begin(run)


async def test_a_delivery_that_may_be_too_late_is_not_begun_before_a_heartbeat_says_that_it_is_ours() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        await recorder.until(lambda: bool(recorder.heartbeats))
        late, lost = (delivery(now_us=-10_000_000, lease_until_us=20_000_000) for _ in range(2))
        recorder.news.lost.add(run_id=lost.run_id, claim_token=lost.claim_token)
        recorder.say(pb.ConnectResponse(deliveries=[late, lost]))
        run = await crew.run()
        assert [held.run_id for held in recorder.heartbeats[-1].held] == [late.run_id, lost.run_id]
        await recorder.until(lambda: recorder.credit == 4)
        assert [run.run_id for run in crew.runs] == [late.run_id]
        assert crew.shift.may_begin(run)


async def test_a_run_that_a_heartbeat_reports_lost_is_dropped_and_writes_no_more() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.lease_ms = 300
        await recorder.until(lambda: recorder.credit == 3)
        recorder.say(pb.ConnectResponse(deliveries=[delivery()]))
        run = await crew.run()
        recorder.news.lost.add(run_id=run.run_id, claim_token=run.token)
        await recorder.until(lambda: recorder.credit == 4)
        assert run.dropped
        assert not crew.shift.may_begin(run)
        run.step("too late")
        await recorder.until(lambda: not recorder.heartbeats[-1].held)
        assert not recorder.operations


async def test_facts_that_come_with_a_heartbeat_reach_the_run() -> None:
    async with recording() as recorder, on_shift(post(recorder.address)) as crew:
        recorder.lease_ms = 300
        await recorder.until(lambda: recorder.credit == 3)
        recorder.say(pb.ConnectResponse(deliveries=[delivery()]))
        run = await crew.run()
        signal_fact = pb.Fact(child_ended=pb.ChildEnded(child_run_id="c"))
        cancel_fact = pb.Fact(cancel_requested=pb.CancelRequested(reason="why"))
        held = pb.Held(run_id=run.run_id, claim_token=run.token)
        recorder.news.wakes.add(run=held, facts=[signal_fact, cancel_fact])
        count = len(recorder.heartbeats)
        await recorder.until(lambda: len(recorder.heartbeats) > count + 1)
        assert run.facts
        assert run.facts[0] == signal_fact
        assert run.cancelled


async def test_heartbeats_go_on_at_the_next_server() -> None:
    async with recording() as first, recording() as second:
        first.lease_ms = second.lease_ms = 300
        async with on_shift(post(f"{first.address},{second.address}")):
            await first.until(lambda: len(first.heartbeats) > 1)
            first.silence = grpc.StatusCode.UNAVAILABLE
            await second.until(lambda: len(second.heartbeats) > 1)


async def test_a_worker_that_no_server_knows_registers_again(database_url: str) -> None:
    async with (
        serving(database_url, worker_visibility_timeout_secs=1) as server,
        Caller(server.address, database_url) as caller,
        on_shift(post(server.address)) as crew,
    ):
        await caller.start(idle)
        run = await crew.run()
        await caller.until("update kagzi.workers set status = 'OFFLINE' where status = 'ONLINE' returning 1")
        await caller.until("select 1 from kagzi.workers where status = 'ONLINE'")
        assert len(await caller.fetch("select 1 from kagzi.workers")) == 1
        run.finish()
        assert await caller.ended(run.run_id) == ["COMPLETED"]


def block(seconds: float) -> None:
    time.sleep(seconds)


@workflow
async def blocking(ctx: Any) -> None:
    async def hold_up() -> None:
        block(2.2)

    await ctx.step("hold up", hold_up)


async def test_code_that_blocks_the_loop_for_two_leases_loses_nothing_and_is_warned_of_by_name(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kagzi.worker")
    with ServerProcess(database_url, lease=1.0) as server:
        async with (
            Caller(server.address, database_url) as caller,
            Worker(server.address, workflows=[blocking], concurrency=3),
        ):
            run_id = await caller.start(blocking)
            assert await caller.ended(run_id) == ["COMPLETED"]
            [run] = await caller.fetch("select crashes from kagzi.workflow_runs")
            [step] = await caller.fetch("select attempt_number, status from kagzi.step_runs")
    assert run["crashes"] == 0
    assert (step["attempt_number"], step["status"]) == (1, "COMPLETED")
    [warning] = [record.getMessage() for record in caplog.records if "blocked" in record.message]
    assert "step hold up" in warning
    assert f"{__file__}:" in warning
    assert "in block" in warning


TWO_STEPS = """
import asyncio, os
from kagzi.sdk.definition import workflow

def note(step: str) -> None:
    with open(os.environ["EFFECTS"], "a") as effects:
        effects.write(f"{step} {os.environ['NAME']}\\n")

async def one() -> None:
    note("one")
    while not os.path.exists(os.environ["EFFECTS"] + ".go"):
        await asyncio.sleep(0.01)

async def two() -> None:
    note("two")

@workflow
async def pair(ctx) -> None:
    await ctx.step("one", one)
    await ctx.step("two", two)
"""


async def test_a_worker_stopped_past_its_lease_writes_nothing_and_begins_nothing_afterwards(
    database_url: str, tmp_path: Path
) -> None:
    module, effects = tmp_path / "pair.py", tmp_path / "effects"
    module.write_text(TWO_STEPS)
    effects.touch()

    def done() -> list[str]:
        return effects.read_text().splitlines()

    with ServerProcess(database_url) as server:
        command = (sys.executable, "-c", MAIN, "worker", str(module), "--url", server.address)
        async with Caller(server.address, database_url) as caller:
            with child(*command, env={"NAME": "A", "EFFECTS": str(effects)}) as zombie:
                await caller.until("select 1 from kagzi.workers where status = 'ONLINE'")
                run_id = await caller.start(workflow(name="pair")(idle.function))
                await until(lambda: done() == ["one A"])
                zombie.send_signal(signal.SIGSTOP)
                Path(f"{effects}.go").touch()
                with child(*command, env={"NAME": "B", "EFFECTS": str(effects)}) as heir:
                    assert await caller.ended(run_id) == ["COMPLETED"]
                    zombie.send_signal(signal.SIGCONT)
                    assert zombie.stdout is not None
                    lines = iter(zombie.stdout.readline, "")
                    said = await asyncio.to_thread(lambda: next(line for line in lines if run_id in line))
                    assert "lost" in said or "cannot go on" in said or "somebody else" in said
                    for process in (zombie, heir):
                        process.send_signal(signal.SIGTERM)
                        assert await asyncio.to_thread(process.wait, 10) == 0
            steps = await caller.fetch("select step_id, status from kagzi.step_runs order by position")
        assert [tuple(step) for step in steps] == [("one", "COMPLETED"), ("two", "COMPLETED")]
        assert done() == ["one A", "one B", "two B"]
