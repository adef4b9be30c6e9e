"""Lists of runs: filters, order, and pages that neither repeat nor leave out."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, PENDING, ErrorDetail
from tests.conformance.contract import refused
from tests.conformance.execution import new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _list(place: Place, **filters: Any) -> list[str]:
    request = wf.ListWorkflowsRequest(**{"task_queue": place.queue, **filters})
    return [run.run_id for run in (await place.contract.workflows.ListWorkflows(request)).runs]


async def test_runs_are_listed_newest_first_without_payloads(place: Place) -> None:
    run_ids = [await place.start(number) for number in range(3)]
    request = wf.ListWorkflowsRequest(workflow_type=place.type)
    listed = await place.contract.workflows.ListWorkflows(request)
    assert [run.run_id for run in listed.runs] == run_ids[::-1]
    assert not any(run.HasField("input") for run in listed.runs)
    assert not listed.next_page_token


async def test_pages_neither_repeat_nor_leave_out_and_stay_stable_while_runs_are_added(place: Place) -> None:
    run_ids = [await place.start() for _ in range(7)]
    request = wf.ListWorkflowsRequest(workflow_type=place.type, page_size=3)
    seen: list[str] = []
    while True:
        page = await place.contract.workflows.ListWorkflows(request)
        assert len(page.runs) <= 3
        seen += [run.run_id for run in page.runs]
        if not page.next_page_token:
            break
        await place.start()
        request.page_token = page.next_page_token
    assert seen == run_ids[::-1]


async def test_a_page_token_belongs_to_its_call_and_filters(place: Place) -> None:
    for _ in range(3):
        await place.start()
    request = wf.ListWorkflowsRequest(workflow_type=place.type, page_size=1)
    token = (await place.contract.workflows.ListWorkflows(request)).next_page_token
    request = wf.ListWorkflowsRequest(workflow_type="another", page_size=1, page_token=token)
    with refused(ErrorDetail.INVALID_ARGUMENT, "page_token"):
        await place.contract.workflows.ListWorkflows(request)
    workers = ad.ListWorkersRequest(page_size=1, page_token=token)
    with refused(ErrorDetail.INVALID_ARGUMENT, "page_token"):
        await place.contract.admin.ListWorkers(workers)


async def test_runs_are_found_by_status_type_queue_labels_and_time(place: Place) -> None:
    plain = await place.start()
    red = await place.start(labels={"colour": "red", "size": "1"})
    blue = await place.start(labels={"colour": "blue", "size": "1"}, workflow_type="other")
    await place.cancel(plain)
    assert await _list(place, statuses=[CANCELLED]) == [plain]
    assert await _list(place, statuses=[PENDING, CANCELLED]) == [blue, red, plain]
    assert await _list(place, statuses=[COMPLETED]) == []
    assert await _list(place, workflow_type="other") == [blue]
    assert await _list(place, labels={"size": "1"}) == [blue, red]
    assert await _list(place, labels={"size": "1", "colour": "red"}) == [red]
    assert await _list(place, labels={"colour": "green"}) == []
    created = (await place.get(red)).created_at
    assert await _list(place, since=created) == [blue, red]
    assert await _list(place, until=created) == [plain]
    assert await _list(place, since=Timestamp(seconds=4_000_000_000)) == []
    assert dict((await place.get(red)).labels) == {"colour": "red", "size": "1"}


async def test_children_are_found_by_their_parent(place: Place) -> None:
    parent = await place.start()
    child = await place.start(parent_run_id=parent)
    assert await _list(place, parent_run_id=parent) == [child]
    assert await _list(place, parent_run_id=new_id()) == []


async def test_steps_are_listed_by_position_with_the_attempts_before_on_request(place: Place) -> None:
    worker, other = await place.hand(), await place.hand()
    task = await worker.take(await place.start())
    for number in range(3):
        await worker.complete_step(held(task), f"step-{number}", number)
    await worker.begin(held(task), "interrupted")
    await worker.deregister()
    again = await other.take(task.run_id)
    await other.begin(held(again), "interrupted")
    request = ad.ListStepsRequest(run_id=task.run_id, page_size=2)
    seen: list[tuple[str, int]] = []
    while True:
        page = await place.contract.admin.ListSteps(request)
        seen += [(step.step_id, step.attempt_number) for step in page.steps]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == [("step-0", 1), ("step-1", 1), ("step-2", 1), ("interrupted", 2)]
    request = ad.ListStepsRequest(run_id=task.run_id, include_superseded=True, step_id="interrupted")
    attempts = (await place.contract.admin.ListSteps(request)).steps
    assert [(step.attempt_number, step.is_latest) for step in attempts] == [(1, False), (2, True)]
    got = await place.contract.admin.GetStep(ad.GetStepRequest(run_id=task.run_id, step_id="step-1"))
    assert got.step.output.data == b"1"
    await other.complete(held(again))


async def test_runs_of_a_busy_server_show_who_holds_them(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await place.start()
    got = await place.contract.admin.GetWorker(ad.GetWorkerRequest(worker_id=worker.worker_id))
    assert (got.worker.status, got.worker.running) == (ad.WORKER_ONLINE, 1)
    assert [run.run_id for run in got.runs] == [task.run_id]
    request = ad.GetQueueDepthRequest(task_queue=place.queue)
    [depth] = (await place.contract.admin.GetQueueDepth(request)).depths
    assert (depth.workflow_type, depth.pending_due, depth.running, depth.workers) == (place.type, 1, 1, 1)
    types = await place.contract.admin.ListWorkflowTypes(ad.ListWorkflowTypesRequest(task_queue=place.queue))
    assert [served.workflow_type for served in types.types] == [place.type]
    await place.contract.workers.Release(pb.ReleaseRequest(run=held(task), release=pb.Release(operation_id=new_id())))
    [depth] = (await place.contract.admin.GetQueueDepth(request)).depths
    assert (depth.pending_due, depth.running) == (2, 0)
