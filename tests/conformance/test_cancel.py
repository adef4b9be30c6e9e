"""Cancel asks, terminate ends: who hears of it, and what becomes of the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SLEEPING,
    ErrorDetail,
    Failure,
    RetryPolicy,
)
from tests.conformance.contract import refused
from tests.conformance.execution import Cancelled, Run, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _noop() -> Any:
    return None


async def test_a_run_that_never_started_is_cancelled_at_once(place: Place) -> None:
    run_id = await place.start(delay_ms=3_600_000)
    assert await place.cancel(run_id, "not needed") == CANCELLED
    run = await place.get(run_id)
    assert run.status == CANCELLED
    assert (run.failure.type, run.failure.message) == ("Cancelled", "not needed")
    assert not run.HasField("available_at")
    assert run.HasField("finished_at")
    assert await (await place.hand()).poll(wait_ms=0) is None


async def test_a_suspended_run_is_woken_to_hear_of_it_and_cleans_up(place: Place) -> None:
    cleaned: list[int] = []

    async def workflow(run: Run) -> Any:
        try:
            await run.receive("never")
        except Cancelled:
            await run.sleep("settle", 20)
            await run.step("clean up", lambda: _clean(cleaned))
            raise

    async with place.worker(workflow):
        run_id = await place.start()
        await place.becomes(run_id, SLEEPING)
        assert await place.cancel(run_id) == SLEEPING
        run = await place.ended(run_id)
    assert run.status == CANCELLED
    assert cleaned == [1]


async def _clean(cleaned: list[int]) -> None:
    cleaned.append(1)


async def test_a_suspended_run_may_return_normally_after_a_cancel(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        try:
            await run.sleep("long", 3_600_000)
        except Cancelled:
            return "saved"

    async with place.worker(workflow):
        run_id = await place.start()
        await place.becomes(run_id, SLEEPING)
        await place.cancel(run_id)
        assert await place.result(run_id) == "saved"


async def test_a_heartbeat_tells_the_worker_of_a_running_run(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    assert not (await worker.beat(held(task))).cancelled
    assert await place.cancel(task.run_id, "enough") == RUNNING
    beat = await worker.beat(held(task))
    assert list(beat.cancelled) == [task.run_id]
    assert not beat.lost
    assert (await place.get(task.run_id)).HasField("cancel_requested_at")
    fail = pb.Fail(failure=Failure(type="Cancelled"), operation_id=new_id())
    answer = await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=held(task), fail=fail))
    assert answer.status == CANCELLED


async def test_a_workers_run_hears_of_a_cancel_between_its_steps(hasty: Place) -> None:
    going = asyncio.Event()

    async def workflow(run: Run) -> Any:
        going.set()
        while True:
            await run.step("tick", _noop)
            await asyncio.sleep(0.02)

    async with hasty.worker(workflow):
        run_id = await hasty.start()
        await going.wait()
        assert await hasty.cancel(run_id) == RUNNING
        assert (await hasty.ended(run_id)).status == CANCELLED


async def test_a_run_that_returns_after_a_cancel_is_completed(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await place.cancel(task.run_id)
    assert await worker.complete(held(task)) == COMPLETED


async def test_a_cancelled_run_is_not_retried(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start(retry=RetryPolicy(maximum_attempts=5, initial_interval_ms=1)))
    await place.cancel(task.run_id)
    fail = pb.Fail(failure=Failure(type="E"), operation_id=new_id())
    answer = await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=held(task), fail=fail))
    assert answer.status == CANCELLED


async def test_a_run_that_waits_for_a_retry_is_handed_out_to_hear_of_it(place: Place) -> None:
    worker = await place.hand()
    policy = RetryPolicy(maximum_attempts=5, initial_interval_ms=3_600_000, maximum_interval_ms=3_600_000)
    task = await worker.take(await place.start(retry=policy))
    fail = pb.Fail(failure=Failure(type="E"), operation_id=new_id())
    answer = await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=held(task), fail=fail))
    assert answer.status == PENDING
    assert await place.cancel(task.run_id, "stop trying") == PENDING
    again = await worker.take(task.run_id)
    [fact] = again.facts
    assert fact.cancel_requested.reason == "stop trying"
    assert not fact.cancel_requested.deadline
    fail = pb.Fail(failure=Failure(type="Cancelled"), operation_id=new_id())
    answer = await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=held(again), fail=fail))
    assert answer.status == CANCELLED


async def test_what_has_ended_stays_as_it_is(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await worker.complete(held(task), "kept")
    before = await place.get(task.run_id)
    assert await place.cancel(task.run_id) == COMPLETED
    assert await place.terminate(task.run_id) == COMPLETED
    assert await place.get(task.run_id) == before


@pytest.mark.parametrize("state", ["waiting", "running", "suspended"])
async def test_terminate_ends_a_run_now_whatever_it_does(place: Place, state: str) -> None:
    worker = await place.hand()
    run_id = await place.start()
    task = None
    if state != "waiting":
        task = await worker.take(run_id)
    if state == "suspended" and task is not None:
        sleep = pb.SleepRequest(
            run=held(task), step_id="s", attempt_id=new_id(), duration_ms=3_600_000, operation_id=new_id()
        )
        await place.contract.workers.Sleep(sleep)
    assert await place.terminate(run_id, "power cut") == CANCELLED
    run = await place.get(run_id)
    assert (run.status, run.failure.type, run.failure.message) == (CANCELLED, "Terminated", "power cut")
    if task is not None:
        with refused(ErrorDetail.LEASE_LOST):
            await worker.complete(held(task))
        beat = await worker.beat(held(task))
        assert [lost.run_id for lost in beat.lost] == ([run_id] if state == "running" else [])
    assert await worker.poll(wait_ms=0) is None


async def test_a_cancel_and_a_completion_race_to_one_end_and_the_caller_is_told_which(place: Place) -> None:
    worker = await place.hand()
    for _ in range(10):
        task = await worker.take(await place.start())
        told, completed = await asyncio.gather(place.cancel(task.run_id), worker.complete(held(task)))
        assert completed == COMPLETED
        assert told in (RUNNING, COMPLETED)
        assert await place.status(task.run_id) == COMPLETED


async def test_a_terminate_and_a_completion_race_to_one_end_and_both_are_told_which(place: Place) -> None:
    worker = await place.hand()
    for _ in range(10):
        task = await worker.take(await place.start())
        told, completed = await asyncio.gather(
            place.terminate(task.run_id), worker.complete(held(task)), return_exceptions=True
        )
        final = await place.status(task.run_id)
        assert told == final
        assert (completed == COMPLETED) == (final == COMPLETED)
        assert final in (COMPLETED, CANCELLED)
        assert final != FAILED
