"""Children: runs with lineage that are waited for durably, or only started, and that fall with their parent."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, FAILED, PENDING, RUNNING, SLEEPING, Failure
from tests.conformance.contract import eventually
from tests.conformance.execution import Run, StepFailed, decoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _double(run: Run) -> Any:
    return run.input * 2


async def _fail(run: Run) -> Any:
    raise ValueError("bad luck")


async def _start_child(place: Place, task: pb.Delivery, **fields: Any) -> pb.StartChildResponse:
    given = {"step_id": "child", "attempt_id": new_id(), "child": place.request(run_id=new_id()), **fields}
    return await place.contract.workers.StartChild(
        pb.StartChildRequest(run=held(task), start_child=pb.StartChild(**given))
    )


async def test_a_parent_waits_for_its_childs_result(place: Place) -> None:
    async def parent(run: Run) -> Any:
        return 1 + await run.child("double it", place.request(run.input, workflow_type="double"))

    async with place.worker(parent, double=_double):
        run_id = await place.start(20)
        assert await place.result(run_id) == 41
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(parent_run_id=run_id))
    [child] = listed.runs
    assert (child.parent_run_id, child.root_run_id, child.status) == (run_id, run_id, COMPLETED)


async def test_a_child_of_a_child_belongs_to_the_first_run_of_the_lineage(place: Place) -> None:
    async def parent(run: Run) -> Any:
        return await run.child("middle", place.request(run.input, workflow_type="middle"))

    async def middle(run: Run) -> Any:
        return [run.task.root_run_id, await run.child("leaf", place.request(3, workflow_type="leaf"))]

    async def leaf(run: Run) -> Any:
        return run.task.root_run_id

    async with place.worker(parent, middle=middle, leaf=leaf):
        run_id = await place.start()
        assert await place.result(run_id) == [run_id, run_id]


async def test_the_failure_of_a_child_is_raised_in_its_parent(place: Place) -> None:
    async def parent(run: Run) -> Any:
        try:
            await run.child("try", place.request(workflow_type="fail"))
        except StepFailed as error:
            return error.failure.message

    async with place.worker(parent, fail=_fail):
        assert await place.result(await place.start()) == "bad luck"


async def test_a_started_child_is_not_waited_for(place: Place) -> None:
    async def parent(run: Run) -> Any:
        return await run.start_child("off you go", place.request(4, workflow_type="double"))

    async with place.worker(parent):
        run_id = await place.start()
        child_id = await place.result(run_id)
        assert await place.status(child_id) == PENDING
    async with place.worker(_fail, double=_double):
        assert await place.result(child_id) == 8, "the end of its parent does not touch it"


async def test_a_child_that_ended_before_its_parent_suspended_is_not_slept_over(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    started = await _start_child(place, task)
    assert started.status in (PENDING, RUNNING)
    assert not started.HasField("ended")
    child = await worker.take(started.child_run_id)
    await worker.complete(held(child), "done")
    body = pb.Suspend(step_ids=["child"], operation_id=new_id())
    answer = await place.contract.workers.Suspend(pb.SuspendRequest(run=held(task), suspend=body))
    assert answer.HasField("available_at_us"), "due at once"
    again = await worker.take(task.run_id)
    [fact] = again.facts
    assert fact.child_ended.child_run_id == started.child_run_id
    told = await _start_child(place, again)
    assert told.child_run_id == started.child_run_id, "the step has its child"
    assert decoded(told.ended.output) == "done"
    once_more = await _start_child(place, again)
    assert once_more.ended == told.ended
    await worker.complete(held(again))


async def test_the_end_of_a_child_reaches_a_held_parent_with_its_heartbeat(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    started = await _start_child(place, task)
    await worker.complete(held(await worker.take(started.child_run_id)), 5)
    [wake] = (await worker.beat(held(task))).wakes
    [fact] = wake.facts
    assert decoded(fact.child_ended.output) == 5
    assert (await _start_child(place, task)).ended.status == COMPLETED
    await worker.complete(held(task))


async def test_the_children_of_a_terminated_parent_fall_with_it_unless_detached(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    bound = await _start_child(place, task, step_id="bound", child=place.request(run_id=new_id()))
    detached = await _start_child(place, task, step_id="detached", child=place.request(run_id=new_id(), detached=True))
    assert await place.terminate(task.run_id) == CANCELLED
    assert await place.status(bound.child_run_id) == CANCELLED
    assert await place.status(detached.child_run_id) == PENDING
    await worker.complete(held(await worker.take(detached.child_run_id)))


async def test_a_running_child_of_a_failed_parent_is_asked_to_cancel(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    started = await _start_child(place, task)
    child = await worker.take(started.child_run_id)
    fail = pb.Fail(failure=Failure(type="E"), operation_id=new_id())
    answer = await place.contract.workers.FailWorkflow(pb.FailWorkflowRequest(run=held(task), fail=fail))
    assert answer.status == FAILED
    beat = await worker.beat(held(child))
    assert list(beat.cancelled) == [child.run_id]
    await worker.complete(held(child))


async def test_a_cancelled_child_ends_its_parents_wait(place: Place) -> None:
    async def parent(run: Run) -> Any:
        try:
            await run.child("wait", place.request(workflow_type="nobody serves this"))
        except StepFailed as error:
            return error.failure.type

    async with place.worker(parent):
        run_id = await place.start()
        await place.becomes(run_id, SLEEPING)
        listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(parent_run_id=run_id))
        await place.cancel(listed.runs[0].run_id)
        assert await place.result(run_id) == "Cancelled"


async def test_a_parent_follows_a_child_that_continues_as_new(place: Place) -> None:
    async def parent(run: Run) -> Any:
        return await run.child("count", place.request(0, workflow_type="count"))

    async def count(run: Run) -> Any:
        if run.input < 3:
            await run.continue_as_new(run.input + 1)
        return run.input

    async with place.worker(parent, count=count):
        run_id = await place.start()
        assert await place.result(run_id) == 3
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(parent_run_id=run_id))
    assert len(listed.runs) == 4


async def test_a_parent_may_wait_for_a_run_that_somebody_else_started(place: Place) -> None:
    async def parent(run: Run) -> Any:
        return await run.child("join", place.request(1, workflow_type="double", external_id=place.type))

    async with place.worker(parent):
        other_id = await place.start(21, workflow_type="double", external_id=place.type)
        run_id = await place.start()
        await place.becomes(run_id, SLEEPING)
    async with place.worker(parent, double=_double):
        assert await place.result(other_id) == 42
        assert await place.result(run_id) == 42


async def test_a_child_can_end_after_retention_removed_its_parent(quiet: Place) -> None:
    room = Place(quiet.contract, quiet.queue)
    kept = ns.Retention(completed_ms=1)
    await room.contract.namespaces.CreateNamespace(ns.CreateNamespaceRequest(name=room.namespace, retention=kept))
    worker = await room.hand()
    task = await worker.take(await room.start())
    body = pb.StartChild(step_id="s", attempt_id=new_id(), child=room.request(run_id=new_id()), start_only=True)
    await room.contract.workers.StartChild(
        pb.StartChildRequest(namespace=room.namespace, run=held(task), start_child=body)
    )
    await worker.complete(held(task))

    async def removed() -> bool:
        request = wf.ListWorkflowsRequest(namespace=room.namespace, statuses=[COMPLETED])
        return not (await room.contract.workflows.ListWorkflows(request)).runs

    # Removal is never urgent: a minute with the settings a server has by itself.
    await eventually(removed, within=180)
    other = await room.hand()
    child = await other.take(body.child.run_id)
    assert await other.complete(held(child)) == COMPLETED
