"""Continue-as-new: the run ends and another goes on with its name, and the document a run publishes on the way."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import COMPLETED, FOREVER, PENDING, ErrorDetail
from tests.conformance.contract import refused
from tests.conformance.execution import Run, decoded, encoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


async def _continue(place: Place, run: pb.Held, value: Any = None) -> str:
    body = pb.ContinueAsNew(new_run_id=new_id(), input=encoded(value), operation_id=new_id())
    request = pb.ContinueAsNewRequest(run=run, continue_as_new=body)
    answer = await place.contract.workers.ContinueAsNew(request)
    assert answer.status == COMPLETED
    return answer.new_run_id


async def _by_external_id(place: Place) -> str:
    request = wf.GetWorkflowByExternalIdRequest(external_id=place.type)
    return (await place.contract.workflows.GetWorkflowByExternalId(request)).run.run_id


async def test_everything_but_input_and_history_moves_on(place: Place) -> None:
    worker = await place.hand()
    run_id = await place.start(
        1, external_id=place.type, labels={"a": "b"}, priority=4, timeout_ms=600_000, version="7"
    )
    worker = await place.hand(types=[pb.ServedType(name=place.type, version="7")])
    run = held(await worker.take(run_id))
    await worker.complete_step(run, "done")
    new_run_id = await _continue(place, run, 2)
    old, new = await place.get(run_id), await place.get(new_run_id)
    assert (old.status, old.continued_as) == (COMPLETED, new_run_id)
    assert (new.external_id, new.priority, new.version, dict(new.labels)) == (place.type, 4, "7", {"a": "b"})
    assert new.deadline_at == old.deadline_at, "the remaining time"
    assert decoded(new.input) == 2
    assert await _by_external_id(place) == new_run_id
    again = await place.contract.workflows.StartWorkflow(place.request(external_id=place.type))
    assert (again.run_id, again.already_exists) == (new_run_id, True)
    task = await worker.take(new_run_id)
    assert not task.history
    await worker.complete(held(task))


async def test_an_external_id_taken_forever_moves_on_too(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start(external_id=place.type, dedupe=FOREVER)))
    new_run_id = await _continue(place, run)
    await worker.complete(held(await worker.take(new_run_id)))
    again = await place.contract.workflows.StartWorkflow(place.request(external_id=place.type))
    assert (again.run_id, again.already_exists) == (new_run_id, True)


async def test_signals_that_were_not_received_move_on_and_later_ones_follow(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    for number in (1, 2):
        await place.signal(run.run_id, "go", number)
    receive = pb.ReceiveSignalRequest(run=run, step_id="s", attempt_id=new_id(), name="go")
    await place.contract.workers.ReceiveSignal(receive)
    new_run_id = await _continue(place, run)
    answer = await place.signal(run.run_id, "go", 3)
    assert answer.run_id == new_run_id
    task = await worker.take(new_run_id)
    assert [decoded(fact.signal.payload) for fact in task.facts] == [2, 3]
    await worker.complete(held(task))
    with refused(ErrorDetail.PRECONDITION_FAILED):
        await place.signal(run.run_id, "go", 4)


async def test_no_signal_is_lost_to_a_run_that_continues_at_that_moment(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        seen = [*(run.input or []), await run.receive("go")]
        if len(seen) < 12:
            await run.continue_as_new(seen)
        return seen

    async with place.worker(workflow):
        run_id = await place.start()
        await asyncio.gather(*(place.signal(run_id, "go", number) for number in range(12)))
        request = wf.ListWorkflowsRequest(workflow_type=place.type, page_size=1)

        async def last() -> wf.WorkflowRun:
            return await place.ended((await place.contract.workflows.ListWorkflows(request)).runs[0].run_id)

        run = await last()
        while run.continued_as:
            run = await place.ended(run.continued_as)
    assert sorted(decoded(run.output)) == list(range(12))


async def test_a_cancel_that_was_asked_for_moves_on(place: Place) -> None:
    worker = await place.hand()
    run = held(await worker.take(await place.start()))
    await place.cancel(run.run_id, "enough")
    task = await worker.take(await _continue(place, run))
    [fact] = task.facts
    assert fact.cancel_requested.reason == "enough"
    await worker.complete(held(task))


async def test_a_successor_cannot_have_the_id_of_another_run(place: Place) -> None:
    worker = await place.hand()
    other = await place.start(delay_ms=3_600_000)
    run = held(await worker.take(await place.start()))
    body = pb.ContinueAsNew(new_run_id=other, operation_id=new_id())
    with refused(ErrorDetail.CONFLICT, "continue_as_new.new_run_id"):
        await place.contract.workers.ContinueAsNew(pb.ContinueAsNewRequest(run=run, continue_as_new=body))
    assert await place.status(other) == PENDING
    assert await worker.complete(run) == COMPLETED, "nothing was written"


async def _set_state(place: Place, run: pb.Held, document: Any, number: int) -> int:
    body = pb.SetState(state_json=json.dumps(document), number=number)
    answer = await place.contract.workers.SetState(pb.SetStateRequest(run=run, set_state=body))
    return answer.number


async def test_a_run_publishes_a_document_and_a_lower_number_changes_nothing(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    run = held(task)
    assert (await place.get(run.run_id)).state_json == ""
    assert await _set_state(place, run, {"phase": "packing"}, 2) == 2
    assert await _set_state(place, run, {"phase": "late"}, 1) == 2, "the number of what is stored"
    assert json.loads((await place.get(run.run_id)).state_json) == {"phase": "packing"}
    assert await _set_state(place, run, {"phase": "sent"}, 3) == 3
    release = pb.ReleaseRequest(run=run, release=pb.Release(operation_id=new_id()))
    await place.contract.workers.Release(release)
    again = await worker.take(run.run_id)
    assert again.state_number == 3
    await worker.complete(held(again))
    assert json.loads((await place.get(run.run_id)).state_json) == {"phase": "sent"}


async def test_a_workflow_publishes_where_it_is(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        await run.set_state({"phase": 1})
        await run.receive("go")
        await run.set_state({"phase": 2})

    async with place.worker(workflow):
        run_id = await place.start()
        await place.signal(run_id, "go")
        await place.result(run_id)
    assert json.loads((await place.get(run_id)).state_json) == {"phase": 2}
