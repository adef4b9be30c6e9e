"""Signals: kept until received, in order, whether or not anyone waits yet, and no wake-up lost."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import RUNNING, SLEEPING, ErrorDetail
from tests.conformance.contract import eventually, refused
from tests.conformance.execution import Run, decoded, encoded, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance

Outcome = pb.ReceiveSignalResponse


async def _receive(place: Place, task: pb.Delivery, step_id: str = "wait", **fields: Any) -> Outcome:
    given = {"attempt_id": new_id(), "name": "go", **fields}
    return await place.contract.workers.ReceiveSignal(pb.ReceiveSignalRequest(run=held(task), step_id=step_id, **given))


async def _suspend(place: Place, task: pb.Delivery, *step_ids: str) -> pb.SuspendResponse:
    body = pb.Suspend(step_ids=step_ids, operation_id=new_id())
    return await place.contract.workers.Suspend(pb.SuspendRequest(run=held(task), suspend=body))


async def _listen(run: Run) -> Any:
    return [await run.receive("go"), await run.receive("go")]


async def test_a_signal_sent_before_the_wait_is_kept_for_it(place: Place) -> None:
    run_id = await place.start()
    for value in (1, 2):
        await place.signal(run_id, "go", value)
    await place.signal(run_id, "other", 3)
    async with place.worker(_listen):
        assert await place.result(run_id) == [1, 2]


async def test_a_signal_wakes_the_run_that_waits_for_it(place: Place) -> None:
    async with place.worker(_listen):
        run_id = await place.start()
        run = await place.becomes(run_id, SLEEPING)
        assert not run.HasField("available_at"), "it waits for something other than time"
        answer = await place.signal(run_id, "go", "first")
        assert answer.run_id == run_id
        await place.signal(run_id, "go", "second")
        assert await place.result(run_id) == ["first", "second"]


async def test_a_signal_of_another_name_wakes_nobody(place: Place) -> None:
    async with place.worker(_listen):
        run_id = await place.start()
        await place.becomes(run_id, SLEEPING)
        await place.signal(run_id, "other")
        assert await place.status(run_id) == SLEEPING
    task = await (await place.hand()).poll(wait_ms=0)
    assert task is None


async def test_a_signal_that_comes_between_looking_and_suspending_is_not_slept_over(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    assert (await _receive(place, task)).outcome == Outcome.WAITING
    await place.signal(task.run_id, "go", 7)
    answer = await _suspend(place, task, "wait")
    assert answer.HasField("available_at_us"), "due at once"
    again = await worker.take(task.run_id)
    [fact] = again.facts
    assert decoded(fact.signal.payload) == 7
    received = await _receive(place, again)
    assert received.outcome == Outcome.RECEIVED
    assert decoded(received.signal.payload) == 7
    assert received.signal.signal_id == fact.signal.signal_id
    await worker.complete(held(again))


async def test_a_heartbeat_tells_of_a_signal_for_a_held_run(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    assert (await _receive(place, task)).outcome == Outcome.WAITING
    await place.signal(task.run_id, "go", 1)
    [wake] = (await worker.beat(held(task))).wakes
    assert wake.run == held(task)
    assert [fact.signal.name for fact in wake.facts] == ["go"]
    assert (await _receive(place, task)).outcome == Outcome.RECEIVED
    assert not (await worker.beat(held(task))).wakes
    await worker.complete(held(task))


async def test_a_wait_that_timed_out_stays_so_although_a_signal_comes_later(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    waiting = await _receive(place, task, timeout_ms=60)
    assert waiting.outcome == Outcome.WAITING
    await _suspend(place, task, "wait")
    again = await worker.take(task.run_id)
    assert again.now_us >= waiting.wake_at_us
    assert (await _receive(place, again, timeout_ms=3_600_000)).outcome == Outcome.TIMED_OUT
    await place.signal(task.run_id, "go", 1)
    assert (await _receive(place, again)).outcome == Outcome.TIMED_OUT
    later = await _receive(place, again, "wait#2")
    assert later.outcome == Outcome.RECEIVED, "the signal is there for the next wait"
    await worker.complete(held(again))


async def test_a_workflow_goes_on_with_nothing_when_no_signal_came(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        return await run.receive("go", timeout_ms=80)

    async with place.worker(workflow):
        assert await place.result(await place.start()) is None


async def test_a_signal_without_payload_is_received_without_one(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await place.contract.workflows.SignalWorkflow(wf.SignalWorkflowRequest(run_id=task.run_id, name="go"))
    received = await _receive(place, task)
    assert received.outcome == Outcome.RECEIVED
    assert not received.signal.HasField("payload")
    await worker.complete(held(task))


async def test_a_signal_finds_an_active_run_by_its_external_id(place: Place) -> None:
    run_id = await place.start(external_id=place.type)
    request = wf.SignalWorkflowRequest(external_id=place.type, name="go", payload=encoded(1))
    answer = await place.contract.workflows.SignalWorkflow(request)
    assert answer.run_id == run_id
    await place.cancel(run_id)


async def test_a_run_that_has_ended_receives_no_signals(place: Place) -> None:
    run_id = await place.start()
    await place.cancel(run_id)
    with refused(ErrorDetail.PRECONDITION_FAILED) as said:
        await place.signal(run_id, "go")
    assert said.subject == run_id


async def test_many_signals_are_received_once_each_and_in_order(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        return [await run.receive("go") for _ in range(12)]

    async with place.worker(workflow):
        run_id = await place.start()
        for number in range(12):
            await place.signal(run_id, "go", number)
        assert await place.result(run_id) == list(range(12))


async def test_a_parked_run_is_woken_by_no_signal_but_by_resume(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    await _receive(place, task)
    body = pb.Suspend(parked_json='{"why": "the code changed"}', parked_hash="a", operation_id=new_id())
    answer = await place.contract.workers.Suspend(pb.SuspendRequest(run=held(task), suspend=body))
    assert not answer.HasField("available_at_us")
    await place.signal(task.run_id, "go")
    run = await place.get(task.run_id)
    assert run.status == SLEEPING
    assert not run.HasField("available_at")
    assert "the code changed" in run.waiting_json
    resume = wf.ResumeWorkflowRequest(run_id=task.run_id)
    assert (await place.contract.workflows.ResumeWorkflow(resume)).status == SLEEPING
    assert (await place.contract.workflows.ResumeWorkflow(resume)).status == SLEEPING, "a repeat is harmless"
    again = await worker.take(task.run_id)
    assert (await place.contract.workflows.ResumeWorkflow(resume)).status == RUNNING
    await worker.complete(held(again))
    with refused(ErrorDetail.PRECONDITION_FAILED):
        await place.contract.workflows.ResumeWorkflow(wf.ResumeWorkflowRequest(run_id=task.run_id))


async def test_a_worker_with_other_code_releases_a_parked_run(place: Place) -> None:
    worker = await place.hand(types=[pb.ServedType(name=place.type, definition_hash="a")])
    task = await worker.take(await place.start())
    body = pb.Suspend(parked_json="{}", parked_hash="a", operation_id=new_id())
    await place.contract.workers.Suspend(pb.SuspendRequest(run=held(task), suspend=body))
    await place.hand(types=[pb.ServedType(name=place.type, definition_hash="a")])
    assert await worker.poll(wait_ms=0) is None, "the same code cannot help"
    other = await place.hand(types=[pb.ServedType(name=place.type, definition_hash="b")])
    again = await other.take(task.run_id)
    await other.complete(held(again))


async def test_signals_race_with_suspends_and_none_is_lost(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        return [await run.receive("go") for _ in range(5)]

    async with place.worker(workflow, slots=4):
        run_ids = [await place.start() for _ in range(4)]
        for number in range(5):
            for run_id in run_ids:
                await place.signal(run_id, "go", number)

        async def results() -> list[Any]:
            return [decoded((await place.get(run_id)).output) for run_id in run_ids]

        await eventually(results, lambda seen: seen == [list(range(5))] * 4)
