"""Repeats: whoever did not get an answer sends the same again, is answered as the first time, and it takes effect once,
also when somebody else has gone on with the run meanwhile.
"""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import (
    CANCELLED,
    COMPLETED,
    FAILED,
    FUNCTION,
    PENDING,
    REJECT,
    REPLACE,
    SLEEPING,
    ErrorDetail,
    Failure,
    RetryPolicy,
    Step,
)
from tests.conformance.contract import refused
from tests.conformance.execution import decoded, encoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _twice(call: Any, request: Any) -> Any:
    """Sends the same twice; both answers are one."""
    first = await call(request)
    assert await call(request) == first
    return first


async def _steps(place: Place, run_id: str) -> list[Step]:
    request = ad.ListStepsRequest(run_id=run_id, include_superseded=True, include_outputs=True)
    return list((await place.contract.admin.ListSteps(request)).steps)


@pytest.mark.parametrize("conflict", [0, REJECT, REPLACE])
async def test_a_start_is_known_by_its_run_id_whatever_else_it_says(place: Place, conflict: Any) -> None:
    request = place.request(1, run_id=new_id(), external_id=place.type, on_conflict=conflict)
    first = await _twice(place.contract.workflows.StartWorkflow, request)
    assert (first.run_id, first.status, first.already_exists) == (request.run_id, PENDING, False)
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(workflow_type=place.type))
    assert [run.run_id for run in listed.runs] == [request.run_id]
    await place.cancel(request.run_id)
    again = await place.contract.workflows.StartWorkflow(request)
    assert (again.run_id, again.status) == (request.run_id, CANCELLED)


async def test_starts_of_one_run_in_one_call_are_one_run(place: Place) -> None:
    start = place.request(run_id=new_id())
    request = wf.StartWorkflowsRequest(starts=[start, start, place.request()])
    answer = await place.contract.workflows.StartWorkflows(request)
    first, second, third = (result.started.run_id for result in answer.results)
    assert first == second == start.run_id
    assert third != first
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(workflow_type=place.type))
    assert len(listed.runs) == 2


async def test_a_signal_sent_twice_is_received_once(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    request = wf.SignalWorkflowRequest(run_id=task.run_id, name="go", payload=encoded(1), signal_id=new_id())
    await _twice(place.contract.workflows.SignalWorkflow, request)
    receive = pb.ReceiveSignalRequest(run=held(task), step_id="one", attempt_id=new_id(), name="go")
    received = await _twice(place.contract.workers.ReceiveSignal, receive)
    assert received.signal.signal_id == request.signal_id
    other = pb.ReceiveSignalRequest(run=held(task), step_id="two", attempt_id=new_id(), name="go")
    assert (await place.contract.workers.ReceiveSignal(other)).outcome == pb.ReceiveSignalResponse.WAITING
    await worker.complete(held(task))
    answer = await place.contract.workflows.SignalWorkflow(request)
    assert answer.signal_id == request.signal_id, "also after the run has ended"


async def test_a_registration_sent_twice_is_one_worker(place: Place) -> None:
    types = [pb.ServedType(name=place.type)]
    request = pb.RegisterRequest(task_queue=place.queue, instance=new_id(), types=types)
    first = await place.contract.workers.Register(request)
    assert (await place.contract.workers.Register(request)).worker_id == first.worker_id
    listed = await place.contract.admin.ListWorkers(ad.ListWorkersRequest(task_queue=place.queue))
    assert [worker.worker_id for worker in listed.workers] == [first.worker_id]
    goodbye = pb.DeregisterRequest(worker_id=first.worker_id)
    await _twice(place.contract.workers.Deregister, goodbye)


async def test_a_namespace_created_twice_is_one(quiet: Place) -> None:
    request = ns.CreateNamespaceRequest(name=quiet.queue, description="mine")
    first = await quiet.contract.namespaces.CreateNamespace(request)
    request.description = "other"
    second = await quiet.contract.namespaces.CreateNamespace(request)
    assert not first.already_exists
    assert second.already_exists
    assert second.namespace == first.namespace


async def test_a_step_begun_twice_under_one_id_is_one_attempt(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    step = pb.StepStarted(step_id="s", attempt_id=new_id(), kind=FUNCTION)
    begun = await _twice(place.contract.workers.BeginStep, pb.BeginStepRequest(run=run, step=step))
    assert begun.should_execute
    assert len(await _steps(place, run.run_id)) == 1
    await worker.complete(run)


async def test_a_result_sent_twice_is_stored_once_and_the_first_bytes_stay(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    step = pb.StepCompleted(step_id="s", attempt_id=new_id(), kind=FUNCTION, output=encoded("first"))
    request = pb.CompleteStepRequest(run=run, step=step)
    await _twice(place.contract.workers.CompleteStep, request)
    request.step.output.CopyFrom(encoded("second"))
    await place.contract.workers.CompleteStep(request)
    [stored] = await _steps(place, run.run_id)
    assert decoded(stored.output) == "first"
    await worker.complete(run)
    await place.contract.workers.CompleteStep(request)
    assert [stored] == await _steps(place, run.run_id)


async def test_a_failure_sent_twice_counts_once_also_after_the_run_went_on(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    policy = RetryPolicy(maximum_attempts=3, initial_interval_ms=30, backoff_coefficient=1)
    begun = await worker.begin(run, "s")
    step = pb.StepFailed(
        step_id="s", attempt_id=begun.step.attempt_id, kind=FUNCTION, failure=Failure(type="E"), retry=policy
    )
    request = pb.FailStepRequest(run=run, step=step, operation_id=new_id())
    first = await place.contract.workers.FailStep(request)
    second = await place.contract.workers.FailStep(request)
    again = held(await worker.take(run.run_id))
    third = await place.contract.workers.FailStep(request)
    for answer in (first, second, third):
        assert answer.scheduled_retry
        assert answer.status == PENDING
        assert answer.retry_at_us == first.retry_at_us
    assert len(await _steps(place, run.run_id)) == 1
    request.operation_id = ""
    assert (await place.contract.workers.FailStep(request)).retry_at_us == first.retry_at_us
    await worker.complete(again)


async def test_a_final_failure_sent_twice_is_one(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    step = pb.StepFailed(step_id="s", attempt_id=new_id(), kind=FUNCTION, failure=Failure(type="E", non_retryable=True))
    request = pb.FailStepRequest(run=run, step=step, operation_id=new_id())
    answer = await _twice(place.contract.workers.FailStep, request)
    assert not answer.scheduled_retry
    assert len(await _steps(place, run.run_id)) == 1
    await worker.complete(run)


async def test_a_sleep_sent_twice_is_one_timer_also_after_the_run_went_on(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    request = pb.SleepRequest(run=run, step_id="s", attempt_id=new_id(), duration_ms=40, operation_id=new_id())
    first = await _twice(place.contract.workers.Sleep, request)
    assert (first.elapsed, first.status) == (False, SLEEPING)
    again = held(await worker.take(run.run_id))
    assert (await place.contract.workers.Sleep(request)).wake_at_us == first.wake_at_us
    request = pb.SleepRequest(run=again, step_id="s", attempt_id=new_id(), duration_ms=40, operation_id=new_id())
    assert (await _twice(place.contract.workers.Sleep, request)).elapsed
    assert len(await _steps(place, run.run_id)) == 1
    await worker.complete(again)


async def test_a_suspension_sent_twice_is_one_and_takes_nothing_from_who_has_the_run_now(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    receive = pb.ReceiveSignalRequest(run=run, step_id="s", attempt_id=new_id(), name="go")
    await _twice(place.contract.workers.ReceiveSignal, receive)
    body = pb.Suspend(step_ids=["s"], operation_id=new_id())
    request = pb.SuspendRequest(run=run, suspend=body)
    assert (await _twice(place.contract.workers.Suspend, request)).status == SLEEPING
    await place.signal(run.run_id, "go")
    again = held(await worker.take(run.run_id))
    await place.contract.workers.Suspend(request)
    assert await worker.complete(again) == COMPLETED


async def test_a_release_sent_twice_is_one_and_takes_nothing_from_who_has_the_run_now(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    request = pb.ReleaseRequest(run=run, release=pb.Release(operation_id=new_id()))
    assert (await _twice(place.contract.workers.Release, request)).status == PENDING
    again = held(await worker.take(run.run_id))
    await place.contract.workers.Release(request)
    assert await worker.complete(again) == COMPLETED


async def test_a_completion_sent_twice_is_one_and_another_is_refused(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    request = pb.CompleteWorkflowRequest(run=run, complete=pb.Complete(output=encoded(1), operation_id=new_id()))
    assert (await _twice(place.contract.workers.CompleteWorkflow, request)).status == COMPLETED
    request.complete.operation_id = new_id()
    request.complete.output.CopyFrom(encoded(2))
    with refused(ErrorDetail.LEASE_LOST):
        await place.contract.workers.CompleteWorkflow(request)
    assert decoded((await place.get(run.run_id)).output) == 1


@pytest.mark.parametrize("retried", [False, True])
async def test_the_failure_of_a_run_sent_twice_is_one(place: Place, retried: bool) -> None:
    worker = await place.hand()
    policy = RetryPolicy(maximum_attempts=3, initial_interval_ms=60_000) if retried else None
    run = held(await worker.take(await place.start(retry=policy)))
    fail = pb.Fail(failure=Failure(type="E"), operation_id=new_id())
    answer = await _twice(place.contract.workers.FailWorkflow, pb.FailWorkflowRequest(run=run, fail=fail))
    assert answer.status == (PENDING if retried else FAILED)
    assert answer.HasField("available_at_us") == retried
    assert (await place.get(run.run_id)).attempts == 1
    await place.terminate(run.run_id)


async def test_a_continuation_sent_twice_is_one_successor(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    body = pb.ContinueAsNew(new_run_id=new_id(), input=encoded(1), operation_id=new_id())
    request = pb.ContinueAsNewRequest(run=run, continue_as_new=body)
    answer = await _twice(place.contract.workers.ContinueAsNew, request)
    assert (answer.status, answer.new_run_id) == (COMPLETED, body.new_run_id)
    await worker.complete(held(await worker.take(body.new_run_id)))
    assert await place.contract.workers.ContinueAsNew(request) == answer
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(workflow_type=place.type))
    assert len(listed.runs) == 2


@pytest.mark.parametrize("start_only", [False, True])
async def test_a_child_started_twice_is_one(place: Place, start_only: bool) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    child = place.request(run_id=new_id(), delay_ms=3_600_000)
    body = pb.StartChild(step_id="s", attempt_id=new_id(), child=child, start_only=start_only)
    answer = await _twice(place.contract.workers.StartChild, pb.StartChildRequest(run=run, start_child=body))
    assert (answer.child_run_id, answer.status) == (child.run_id, PENDING)
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(parent_run_id=run.run_id))
    assert len(listed.runs) == 1
    assert len(await _steps(place, run.run_id)) == 1
    await place.cancel(child.run_id)
    await worker.complete(run)


async def test_a_resumption_is_known_by_its_id_also_when_the_run_has_ended_since(place: Place) -> None:
    hand = await place.hand()
    run_id = await place.start()
    run = held(await hand.take(run_id))
    parked = pb.Suspend(parked_json='{"reason": "a test"}', parked_hash="1")
    await place.contract.workers.Suspend(pb.SuspendRequest(run=run, suspend=parked))
    request = wf.ResumeWorkflowRequest(run_id=run_id, resume_id=new_id())
    await _twice(place.contract.workflows.ResumeWorkflow, request)
    await hand.complete(held(await hand.take(run_id)))
    assert (await place.contract.workflows.ResumeWorkflow(request)).status == COMPLETED
    with refused(ErrorDetail.PRECONDITION_FAILED):
        await place.contract.workflows.ResumeWorkflow(wf.ResumeWorkflowRequest(run_id=run_id, resume_id=new_id()))


async def test_cancel_and_terminate_sent_twice_are_one(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    cancel = wf.CancelWorkflowRequest(run_id=run.run_id, reason="a")
    await _twice(place.contract.workflows.CancelWorkflow, cancel)
    asked = (await place.get(run.run_id)).cancel_requested_at
    cancel.reason = "b"
    await place.contract.workflows.CancelWorkflow(cancel)
    assert (await place.get(run.run_id)).cancel_requested_at == asked
    terminate = wf.TerminateWorkflowRequest(run_id=run.run_id, reason="a")
    await _twice(place.contract.workflows.TerminateWorkflow, terminate)
    ended = await place.get(run.run_id)
    terminate.reason = "b"
    await place.contract.workflows.TerminateWorkflow(terminate)
    assert await place.get(run.run_id) == ended
