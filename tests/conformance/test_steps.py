"""Steps of a workflow: each runs once, fails and is tried again as its policy says, and is replayed from its record."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    FAILED,
    FUNCTION,
    STEP_COMPLETED,
    STEP_RUNNING,
    Failure,
    RetryPolicy,
)
from tests.conformance.execution import Fatal, Run, StepFailed, decoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance

QUICK = RetryPolicy(maximum_attempts=3, initial_interval_ms=20, backoff_coefficient=1)


class Bodies:
    """Bodies that count how often they ran, and fail so many times first."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    def body(self, name: str, value: Any = None, *, fails: int = 0, error: type[Exception] = ValueError) -> Any:
        async def run() -> Any:
            self.ran[name] += 1
            if self.ran[name] <= fails:
                raise error(f"try {self.ran[name]}")
            return value

        return run


async def test_a_workflow_with_steps_returns_what_they_gave_and_runs_each_once(place: Place) -> None:
    bodies = Bodies()

    async def workflow(run: Run) -> Any:
        first = await run.step("add", bodies.body("first", run.input + 1))
        second = await run.step("add", bodies.body("second", first + 1))
        return await run.step("double", bodies.body("third", second * 2))

    async with place.worker(workflow):
        assert await place.result(await place.start(40)) == 84
    assert bodies.ran == {"first": 1, "second": 1, "third": 1}


async def test_a_delivery_carries_what_the_caller_gave(place: Place) -> None:
    worker = await place.hand()
    run_id = await place.start({"n": 1}, labels={"a": "b"}, external_id=place.type, timeout_ms=600_000)
    task = await worker.take(run_id)
    assert (task.workflow_type, task.external_id, dict(task.labels)) == (place.type, place.type, {"a": "b"})
    assert decoded(task.input) == {"n": 1}
    assert task.root_run_id == run_id
    assert task.created_at.ToMicroseconds() <= task.now_us < task.lease_until_us
    assert abs(task.deadline_at.ToMicroseconds() - task.created_at.ToMicroseconds() - 600_000_000) < 1_000_000
    assert task.seed
    assert not task.history
    seen = await place.get(run_id)
    assert seen.worker_id == worker.worker_id
    assert seen.started_at.ToMicroseconds() >= seen.created_at.ToMicroseconds()


async def test_a_failing_step_is_tried_again_by_replay_and_what_came_before_it_is_not(place: Place) -> None:
    bodies = Bodies()

    async def workflow(run: Run) -> Any:
        before = await run.step("before", bodies.body("before", 1))
        return before + await run.step("flaky", bodies.body("flaky", 2, fails=2), QUICK)

    async with place.worker(workflow):
        assert await place.result(await place.start()) == 3
    assert bodies.ran == {"before": 1, "flaky": 3}


async def test_a_failed_step_gives_the_run_back_until_its_delay_is_over(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    begun = await worker.begin(held(task), "flaky")
    policy = RetryPolicy(maximum_attempts=2, initial_interval_ms=300)
    failed = pb.StepFailed(
        step_id="flaky", attempt_id=begun.step.attempt_id, kind=FUNCTION, failure=Failure(type="E"), retry=policy
    )
    answer = await place.contract.workers.FailStep(pb.FailStepRequest(run=held(task), step=failed))
    assert answer.scheduled_retry
    assert answer.delay_ms == 300
    again = await worker.take(task.run_id)
    assert again.claim_token != task.claim_token
    assert again.now_us >= answer.retry_at_us
    [step] = again.history
    assert (step.step_id, step.attempt_number) == ("flaky", 1)
    begun = await worker.begin(held(again), "flaky")
    assert begun.should_execute
    assert begun.step.attempt_number == 2
    failed.attempt_id = begun.step.attempt_id
    answer = await place.contract.workers.FailStep(pb.FailStepRequest(run=held(again), step=failed))
    assert not answer.scheduled_retry, "the policy allows two attempts in all"
    begun = await worker.begin(held(again), "flaky")
    assert not begun.should_execute
    assert begun.step.failure.type == "E"
    await worker.complete(held(again))


async def test_a_step_that_used_up_its_tries_raises_in_the_workflow_which_may_go_on(place: Place) -> None:
    bodies = Bodies()

    async def workflow(run: Run) -> Any:
        try:
            await run.step("hopeless", bodies.body("hopeless", fails=9), QUICK)
        except StepFailed as error:
            return await run.step("instead", bodies.body("instead", error.failure.message))

    async with place.worker(workflow):
        assert await place.result(await place.start()) == "try 3"
    assert bodies.ran == {"hopeless": 3, "instead": 1}


async def test_a_step_is_not_tried_again_when_the_code_says_it_is_pointless(place: Place) -> None:
    bodies = Bodies()

    async def workflow(run: Run) -> Any:
        await run.step("fatal", bodies.body("fatal", fails=9, error=Fatal), QUICK)

    async with place.worker(workflow):
        run = await place.ended(await place.start())
    assert run.status == FAILED
    assert run.failure.type == "Fatal"
    assert bodies.ran == {"fatal": 1}


async def test_a_failure_may_ask_for_its_own_delay(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    begun = await worker.begin(held(task), "later")
    failure = Failure(type="RetryAfter", retry_after_ms=40)
    failed = pb.StepFailed(step_id="later", attempt_id=begun.step.attempt_id, kind=FUNCTION, failure=failure)
    answer = await place.contract.workers.FailStep(pb.FailStepRequest(run=held(task), step=failed))
    assert answer.delay_ms == 40, "and not the second that the default policy has"
    await worker.complete(held(await worker.take(task.run_id)))


async def test_a_step_with_a_result_is_answered_from_its_record_and_never_begins_again(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    begun = await worker.begin(held(task), "once")
    assert begun.should_execute
    assert begun.step.status == STEP_RUNNING
    await worker.complete_step(held(task), "once", "result", attempt_id=begun.step.attempt_id)
    begun = await worker.begin(held(task), "once")
    assert not begun.should_execute
    assert begun.step.status == STEP_COMPLETED
    assert decoded(begun.step.output) == "result"
    await worker.complete(held(task))


async def test_what_a_worker_left_behind_begins_again_under_a_new_attempt(place: Place) -> None:
    first, second = await place.hand(), await place.hand()
    task = await first.take(await place.start())
    await first.complete_step(held(task), "done", 1)
    attempt = new_id()
    await first.begin(held(task), "interrupted", attempt_id=attempt)
    assert await first.deregister() == 1
    task = await second.take(task.run_id)
    assert [step.step_id for step in task.history] == ["done", "interrupted"]
    begun = await second.begin(held(task), "interrupted")
    assert begun.should_execute
    assert begun.step.attempt_id != attempt
    assert begun.step.attempt_number == 2
    await second.complete(held(task))


async def test_an_effect_that_a_worker_left_behind_does_not_begin_again(place: Place) -> None:
    first, second = await place.hand(), await place.hand()
    task = await first.take(await place.start())
    begun = await first.begin(held(task), "charge", effect=True)
    assert begun.should_execute
    await first.deregister()
    task = await second.take(task.run_id)
    begun = await second.begin(held(task), "charge", effect=True)
    assert not begun.should_execute
    await place.terminate(task.run_id)
