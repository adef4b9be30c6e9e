"""Namespaces keep work apart, and a disabled one starts and claims nothing while what is held may finish."""

from __future__ import annotations

import pytest

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import COMPLETED, PENDING, ErrorDetail
from tests.conformance import specimens
from tests.conformance.contract import refused
from tests.conformance.execution import new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


@pytest.fixture
async def room(place: Place) -> Place:
    """A place in a namespace of its own; the fixture `place` is in the default one."""
    name = f"{place.queue}-room"
    await place.contract.namespaces.CreateNamespace(ns.CreateNamespaceRequest(name=name))
    return Place(place.contract, name)


async def test_runs_of_one_namespace_do_not_exist_in_another(place: Place, room: Place) -> None:
    run_id = await room.start(external_id=room.type)
    same = await place.start(external_id=room.type, workflow_type=room.type, task_queue=room.queue)
    assert same != run_id, "an external id is taken within its namespace"
    with refused(ErrorDetail.NOT_FOUND, "run_id"):
        await place.get(run_id)
    with refused(ErrorDetail.NOT_FOUND, "run_id"):
        await place.cancel(run_id)
    with refused(ErrorDetail.NOT_FOUND, "run_id"):
        await place.signal(run_id, "go")
    listed = await room.contract.workflows.ListWorkflows(
        wf.ListWorkflowsRequest(namespace=room.namespace, workflow_type=room.type)
    )
    assert [run.run_id for run in listed.runs] == [run_id]
    assert await room.cancel(run_id)
    await place.cancel(same)


async def test_a_worker_takes_and_writes_runs_of_its_namespace_alone(place: Place, room: Place) -> None:
    run_id = await room.start()
    place.queue, place.type = room.queue, room.type
    stranger = await place.hand()
    assert await stranger.poll(wait_ms=0) is None
    worker = await room.hand()
    run = held(await worker.take(run_id))
    for name, request in specimens.of_run(place, run).items():
        with refused(ErrorDetail.NOT_FOUND, "run.run_id"):
            await getattr(place.contract.workers, name)(request)
    assert [lost.run_id for lost in (await stranger.beat(run)).lost] == [run_id]
    assert await worker.complete(run) == COMPLETED


async def test_a_disabled_namespace_starts_and_claims_nothing_and_lets_the_rest_finish(room: Place) -> None:
    worker = await room.hand()
    run = held(await worker.take(await room.start()))
    waiting = await room.start()
    names = room.contract.namespaces
    disabled = await names.DisableNamespace(ns.DisableNamespaceRequest(name=room.namespace))
    assert not disabled.namespace.enabled
    assert disabled.running == 1
    with refused(ErrorDetail.PRECONDITION_FAILED, "namespace") as said:
        await room.start()
    assert said.subject == room.namespace
    starts = wf.StartWorkflowsRequest(namespace=room.namespace, starts=[room.request()])
    [result] = (await room.contract.workflows.StartWorkflows(starts)).results
    assert result.error.code == ErrorDetail.PRECONDITION_FAILED
    assert await worker.poll(wait_ms=0) is None
    assert not (await worker.beat(run)).lost
    await worker.complete_step(run, "goes on")
    assert await worker.complete(run) == COMPLETED
    assert await room.status(waiting) == PENDING
    assert (await names.DisableNamespace(ns.DisableNamespaceRequest(name=room.namespace))).running == 0
    enabled = await names.EnableNamespace(ns.EnableNamespaceRequest(name=room.namespace))
    assert enabled.namespace.enabled
    await worker.complete(held(await worker.take(waiting)))


async def test_a_child_cannot_start_in_a_disabled_namespace_and_leaves_no_step(room: Place) -> None:
    worker = await room.hand()
    run = held(await worker.take(await room.start()))
    await room.contract.namespaces.DisableNamespace(ns.DisableNamespaceRequest(name=room.namespace))
    body = pb.StartChild(step_id="child", attempt_id=new_id(), child=room.request(run_id=new_id()))
    with refused(ErrorDetail.PRECONDITION_FAILED):
        await room.contract.workers.StartChild(
            pb.StartChildRequest(namespace=room.namespace, run=run, start_child=body)
        )
    listed = await room.contract.admin.ListSteps(ad.ListStepsRequest(namespace=room.namespace, run_id=run.run_id))
    assert not listed.steps
    assert await worker.complete(run) == COMPLETED


async def test_namespaces_are_listed_by_name_and_changed_field_by_field(quiet: Place) -> None:
    names = [f"{quiet.queue}-{letter}" for letter in "abc"]
    for name in names:
        await quiet.contract.namespaces.CreateNamespace(ns.CreateNamespaceRequest(name=name, description="d"))
    seen: list[str] = []
    request = ns.ListNamespacesRequest(page_size=2)
    while True:
        page = await quiet.contract.namespaces.ListNamespaces(request)
        seen += [namespace.name for namespace in page.namespaces]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert seen == sorted(seen)
    assert set(names) <= set(seen)
    kept = ns.Retention(completed_ms=1_000)
    update = ns.UpdateNamespaceRequest(name=names[0], retention=kept)
    changed = (await quiet.contract.namespaces.UpdateNamespace(update)).namespace
    assert (changed.description, changed.retention) == ("d", kept)
    got = await quiet.contract.namespaces.GetNamespace(ns.GetNamespaceRequest(name=names[0]))
    assert got.namespace == changed
