"""Retries of whole workflows, which set aside what has to happen again, and the time limit of a run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    CANCEL,
    CANCELLED,
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    SLEEPING,
    Failure,
    RetryPolicy,
)
from tests.conformance.contract import eventually
from tests.conformance.execution import Cancelled, Fatal, Run, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance

TWICE = RetryPolicy(maximum_attempts=2, initial_interval_ms=20)


async def _fail(place: Place, run: pb.Held, step_id: str = "", **failure: Any) -> pb.FailWorkflowResponse:
    body = pb.Fail(failure=Failure(type="E", message="m", **failure), failed_step_id=step_id, operation_id=new_id())
    return await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=run, fail=body))


async def test_a_failed_workflow_without_a_policy_is_not_tried_again(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    assert (await _fail(place, run)).status == FAILED
    seen = await place.get(run.run_id)
    assert (seen.failure.type, seen.failure.message, seen.attempts) == ("E", "m", 1)


async def test_a_retried_workflow_keeps_what_came_before_the_failed_step(place: Place) -> None:
    ran: Counter[str] = Counter()

    def body(name: str) -> Any:
        async def run() -> str:
            ran[name] += 1
            if name == "charge" and ran[name] == 1:
                raise Fatal("no money")
            return name

        return run

    async def workflow(run: Run) -> Any:
        return [await run.step(name, body(name)) for name in ("reserve", "charge", "ship")] + [run.task.attempts]

    async with place.worker(workflow):
        assert await place.result(await place.start(retry=TWICE)) == ["reserve", "charge", "ship", 1]
    assert ran == {"reserve": 1, "charge": 2, "ship": 1}


async def test_what_is_set_aside_gives_its_signal_back_and_ends_its_children(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start(retry=TWICE)))
    await worker.complete_step(run, "before")
    await worker.complete_step(run, "culprit")
    await place.signal(run.run_id, "go", 1)
    receive = pb.ReceiveSignalRequest(run=run, step_id="wait", attempt_id=new_id(), name="go")
    received = await place.contract.workers.ReceiveSignal(receive)
    child = place.request(run_id=new_id(), workflow_type="nobody serves this")
    start = pb.StartChild(step_id="child", attempt_id=new_id(), child=child)
    await place.contract.workers.StartChild(pb.StartChildRequest(run=run, start_child=start))
    answer = await _fail(place, run, "culprit")
    assert answer.status == PENDING
    assert await place.status(child.run_id) == CANCELLED
    again = await worker.take(run.run_id)
    assert again.now_us >= answer.available_at_us
    assert again.attempts == 1
    assert [step.step_id for step in again.history] == ["before"]
    assert [fact.signal.signal_id for fact in again.facts] == [received.signal.signal_id]
    receive = pb.ReceiveSignalRequest(run=held(again), step_id="wait", attempt_id=new_id(), name="go")
    assert (await place.contract.workers.ReceiveSignal(receive)).signal == received.signal
    begun = await worker.begin(held(again), "culprit")
    assert begun.should_execute
    assert (await _fail(place, held(again), "culprit")).status == FAILED, "two attempts in all"
    listed = await place.contract.admin.ListSteps(
        ad.ListStepsRequest(run_id=run.run_id, step_id="culprit", include_superseded=True)
    )
    assert len(listed.steps) == 2


async def test_a_workflow_is_not_tried_again_when_its_error_says_it_is_pointless(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start(retry=TWICE)))
    assert (await _fail(place, run, non_retryable=True)).status == FAILED


async def test_a_workflow_may_ask_for_its_own_delay(place: Place) -> None:
    worker = await place.hand()
    policy = RetryPolicy(maximum_attempts=2, initial_interval_ms=3_600_000, maximum_interval_ms=3_600_000)
    task = await worker.take(await place.start(retry=policy))
    answer = await _fail(place, held(task), retry_after_ms=30)
    assert answer.available_at_us - task.now_us < 60_000_000
    await worker.complete(held(await worker.take(task.run_id)))


async def test_a_run_that_never_started_before_its_time_was_up_has_failed(place: Place) -> None:
    run_id = await place.start(timeout_ms=100, delay_ms=3_600_000)
    run = await place.ended(run_id)
    assert (run.status, run.failure.type) == (FAILED, "DeadlineExceeded")
    assert run.finished_at.ToMicroseconds() >= run.deadline_at.ToMicroseconds()


async def test_a_suspended_run_is_woken_when_its_time_is_up_and_ends_as_late(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        await run.receive("never")

    async with place.worker(workflow):
        run = await place.ended(await place.start(timeout_ms=150))
    assert (run.status, run.failure.type) == (FAILED, "DeadlineExceeded")


async def test_a_run_that_returns_normally_after_its_time_was_up_is_completed(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        try:
            await run.sleep("long", 3_600_000)
        except Cancelled:
            return "just in time"

    async with place.worker(workflow):
        assert await place.result(await place.start(timeout_ms=150)) == "just in time"


async def test_a_running_run_is_told_that_its_time_is_up(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start(timeout_ms=100))
    assert task.HasField("deadline_at")
    beat = await eventually(lambda: worker.beat(held(task)), lambda beat: bool(beat.cancelled))
    assert list(beat.cancelled) == [task.run_id]
    release = pb.ReleaseRequest(run=held(task), release=pb.Release(operation_id=new_id()))
    await place.contract.workers.Release(release)
    again = await worker.take(task.run_id)
    [fact] = again.facts
    assert fact.cancel_requested.deadline
    assert await place.status(task.run_id) == RUNNING
    assert (await _fail(place, held(again))).status == FAILED
    assert (await place.get(task.run_id)).failure.type == "DeadlineExceeded"


async def test_a_run_may_be_released_and_goes_on_with_what_it_had(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await worker.complete_step(held(task), "done", 1)
    release = pb.ReleaseRequest(run=held(task), release=pb.Release(operation_id=new_id()))
    assert (await place.contract.workers.Release(release)).status == PENDING
    again = await worker.take(task.run_id)
    assert [step.step_id for step in again.history] == ["done"]
    assert again.seed == task.seed
    assert again.attempts == 0
    assert await worker.complete(held(again)) == COMPLETED


async def test_a_step_that_waits_for_its_retry_is_a_wait_like_others(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    begun = await worker.begin(run, "flaky")
    failed = pb.StepFailed(
        step_id="flaky",
        attempt_id=begun.step.attempt_id,
        kind=begun.step.kind,
        failure=Failure(type="E"),
        retry=RetryPolicy(maximum_attempts=3, initial_interval_ms=150),
    )
    answer = await place.contract.workers.FailStep(pb.FailStepRequest(run=run, step=failed))
    await place.cancel(run.run_id)
    early = await worker.take(run.run_id)
    assert early.now_us < answer.retry_at_us, "a cancel does not wait for the delay"
    begun = await worker.begin(held(early), "flaky")
    assert not begun.should_execute
    cancel = pb.StepCompleted(step_id="cancel", attempt_id=new_id(), kind=CANCEL)
    await place.contract.workers.CompleteStep(pb.CompleteStepRequest(run=held(early), step=cancel))
    suspend = pb.SuspendRequest(run=held(early), suspend=pb.Suspend(step_ids=["flaky"], operation_id=new_id()))
    assert (await place.contract.workers.Suspend(suspend)).status == SLEEPING
    again = await worker.take(run.run_id)
    assert again.now_us >= answer.retry_at_us
    assert (await worker.begin(held(again), "flaky")).should_execute
    await worker.complete(held(again))
