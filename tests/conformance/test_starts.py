"""Starting runs: external ids and who has them, times, priorities, versions, and many starts in one call."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import CANCELLED, FOREVER, PENDING, REJECT, REPLACE, ErrorDetail
from tests.conformance.contract import refused
from tests.conformance.execution import decoded, encoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _by_external_id(place: Place, external_id: str) -> wf.WorkflowRun:
    request = wf.GetWorkflowByExternalIdRequest(external_id=external_id)
    return (await place.contract.workflows.GetWorkflowByExternalId(request)).run


async def test_an_external_id_names_one_active_run_over_all_types(place: Place) -> None:
    run_id = await place.start(external_id=place.type)
    request = place.request(external_id=place.type, workflow_type="other", task_queue="elsewhere")
    answer = await place.contract.workflows.StartWorkflow(request)
    assert (answer.run_id, answer.status, answer.already_exists) == (run_id, PENDING, True)
    await place.cancel(run_id)


async def test_a_start_may_refuse_to_join_another_run(place: Place) -> None:
    run_id = await place.start(external_id=place.type)
    with refused(ErrorDetail.CONFLICT, "external_id") as said:
        await place.start(external_id=place.type, on_conflict=REJECT)
    assert said.subject == place.type
    await place.cancel(run_id)


async def test_a_start_may_replace_the_run_that_has_its_external_id(place: Place) -> None:
    worker = await place.hand()
    old = await worker.take(await place.start(external_id=place.type))
    new_run_id = await place.start(external_id=place.type, on_conflict=REPLACE)
    assert new_run_id != old.run_id
    replaced = await place.get(old.run_id)
    assert (replaced.status, replaced.failure.type) == (CANCELLED, "Replaced")
    with refused(ErrorDetail.LEASE_LOST):
        await worker.complete(held(old))
    await worker.complete(held(await worker.take(new_run_id)))


async def test_a_finished_run_frees_its_external_id_unless_it_has_it_forever(place: Place) -> None:
    first = await place.start(external_id=place.type)
    await place.cancel(first)
    second = await place.start(external_id=place.type, dedupe=FOREVER)
    assert second != first
    await place.cancel(second)
    answer = await place.contract.workflows.StartWorkflow(place.request(external_id=place.type))
    assert (answer.run_id, answer.status, answer.already_exists) == (second, CANCELLED, True)
    with refused(ErrorDetail.CONFLICT, "external_id"):
        await place.start(external_id=place.type, on_conflict=REJECT)
    answer = await place.contract.workflows.StartWorkflow(place.request(external_id=place.type, on_conflict=REPLACE))
    assert answer.run_id == second, "what has ended is replaced by nobody"


async def test_an_external_id_leads_to_the_active_run_else_to_the_newest(place: Place) -> None:
    with refused(ErrorDetail.NOT_FOUND, "external_id"):
        await _by_external_id(place, place.type)
    first = await place.start("first", external_id=place.type)
    assert (await _by_external_id(place, place.type)).run_id == first
    await place.cancel(first)
    second = await place.start("second", external_id=place.type)
    found = await _by_external_id(place, place.type)
    assert (found.run_id, decoded(found.input)) == (second, "second")
    await place.cancel(second)
    assert (await _by_external_id(place, place.type)).run_id == second


async def test_of_many_racing_starts_with_one_external_id_one_wins(place: Place) -> None:
    requests = [place.request(external_id=place.type) for _ in range(20)]
    answers = await asyncio.gather(*(place.contract.workflows.StartWorkflow(request) for request in requests))
    assert len({answer.run_id for answer in answers}) == 1
    assert sum(not answer.already_exists for answer in answers) == 1
    await place.cancel(answers[0].run_id)


async def test_many_starts_travel_together_and_each_stands_alone(place: Place) -> None:
    before = await place.start(external_id=place.type)
    starts = [
        place.request(1),
        wf.StartWorkflowRequest(task_queue=place.queue),
        place.request(external_id=place.type),
        place.request(external_id=place.type, on_conflict=REJECT),
        place.request(namespace="another"),
    ]
    answer = await place.contract.workflows.StartWorkflows(wf.StartWorkflowsRequest(starts=starts))
    first, missing, third, conflict, elsewhere = answer.results
    assert first.started.run_id
    assert (missing.error.code, missing.error.field) == (ErrorDetail.INVALID_ARGUMENT, "workflow_type")
    assert third.started.run_id == before
    assert (conflict.error.code, conflict.error.field) == (ErrorDetail.CONFLICT, "external_id")
    assert (elsewhere.error.code, elsewhere.error.field) == (ErrorDetail.INVALID_ARGUMENT, "namespace")
    listed = await place.contract.workflows.ListWorkflows(wf.ListWorkflowsRequest(workflow_type=place.type))
    assert len(listed.runs) == 2


async def test_a_delayed_run_is_not_handed_out_early(place: Place) -> None:
    worker = await place.hand()
    run_id = await place.start(delay_ms=200)
    run = await place.get(run_id)
    assert run.status == PENDING
    assert run.available_at.ToMicroseconds() - run.created_at.ToMicroseconds() == 200_000
    task = await worker.take(run_id)
    assert task.now_us >= run.available_at.ToMicroseconds()
    await worker.complete(held(task))


async def test_a_run_may_name_the_time_it_starts_at(place: Place) -> None:
    worker = await place.hand()
    info = await place.contract.admin.GetServerInfo(ad.GetServerInfoRequest())
    start_at = Timestamp()
    start_at.FromMicroseconds(info.database_now.ToMicroseconds() + 200_000)
    task = await worker.take(await place.start(start_at=start_at))
    assert task.now_us >= start_at.ToMicroseconds()
    await worker.complete(held(task))
    past = Timestamp(seconds=1_000_000_000)
    await worker.complete(held(await worker.take(await place.start(start_at=past))))


async def test_runs_are_handed_out_by_priority_and_then_by_age(place: Place) -> None:
    order = [2, 0, 4, 4, 2, 1, 3]
    run_ids = [await place.start(priority=priority) for priority in order]
    expected = [run_ids[index] for index in sorted(range(len(order)), key=lambda index: (-order[index], index))]
    worker = await place.hand()
    seen = []
    for _ in order:
        task = await worker.take()
        seen.append(task.run_id)
        await worker.complete(held(task))
    assert seen == expected


async def test_a_start_without_a_priority_has_the_middle_one(place: Place) -> None:
    run_id = await place.start()
    assert (await place.get(run_id)).priority == 2
    await place.cancel(run_id)


async def test_a_run_with_a_version_goes_only_to_workers_that_have_it(place: Place) -> None:
    new = await place.start(version="2")
    unversioned = await place.start()
    old_worker = await place.hand(types=[pb.ServedType(name=place.type, version="1")])
    await old_worker.complete(held(await old_worker.take(unversioned)))
    assert await old_worker.poll(wait_ms=0) is None
    new_worker = await place.hand(types=[pb.ServedType(name=place.type, version="2")])
    task = await new_worker.take(new)
    assert task.version == "2"
    await new_worker.complete(held(task))


async def test_a_worker_gets_runs_of_its_queue_and_its_types_alone(place: Place) -> None:
    run_ids = [await place.start(workflow_type="another"), await place.start(task_queue=f"{place.queue}-2")]
    worker = await place.hand()
    assert await worker.poll(wait_ms=0) is None
    for run_id in run_ids:
        await place.cancel(run_id)


async def test_a_payload_and_its_encoding_come_back_as_they_were_given(place: Place) -> None:
    given = encoded(None)
    given.data, given.encoding = bytes(range(256)), "json+secret"
    request = place.request(run_id=new_id())
    request.input.CopyFrom(given)
    await place.contract.workflows.StartWorkflow(request)
    worker = await place.hand()
    task = await worker.take(request.run_id)
    assert task.input == given
    complete = pb.Complete(output=given, operation_id=new_id())
    await place.contract.workers.CompleteWorkflow(pb.CompleteWorkflowRequest(run=held(task), complete=complete))
    run = await place.get(request.run_id)
    assert (run.input, run.output) == (given, given)


async def test_a_run_without_input_and_output_has_none(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    assert not task.HasField("input")
    request = pb.CompleteWorkflowRequest(run=held(task), complete=pb.Complete(operation_id=new_id()))
    await place.contract.workers.CompleteWorkflow(request)
    run = await place.get(task.run_id)
    assert not run.HasField("input")
    assert not run.HasField("output")
