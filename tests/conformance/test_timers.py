"""Durable timers: fixed when first reached, never early, of any length."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import RUNNING, SLEEP, SLEEPING
from tests.conformance.execution import Run, new_id
from tests.conformance.place import Place, held

pytestmark = pytest.mark.conformance


def _sleep(task: pb.Delivery, **fields: Any) -> pb.SleepRequest:
    given = {"step_id": "nap", "attempt_id": new_id(), "operation_id": new_id(), **fields}
    return pb.SleepRequest(run=held(task), **given)


async def test_a_run_sleeps_without_a_worker_and_goes_on_where_it_was(place: Place) -> None:
    async def workflow(run: Run) -> Any:
        await run.sleep("a while", 120)
        return "awake"

    async with place.worker(workflow):
        run_id = await place.start()
        assert await place.result(run_id) == "awake"
        run = await place.get(run_id)
    assert run.finished_at.ToMicroseconds() - run.started_at.ToMicroseconds() >= 120_000


async def test_a_timer_is_never_early_and_is_fixed_when_first_reached(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    answer = await place.contract.workers.Sleep(_sleep(task, duration_ms=250))
    assert not answer.elapsed
    assert answer.status == SLEEPING
    run = await place.get(task.run_id)
    assert run.status == SLEEPING
    assert run.available_at.ToMicroseconds() == answer.wake_at_us
    assert "nap" in run.waiting_json
    again = await worker.take(task.run_id)
    assert again.now_us >= answer.wake_at_us
    assert again.last_token == task.claim_token
    elapsed = await place.contract.workers.Sleep(_sleep(again, duration_ms=3_600_000))
    assert elapsed.elapsed
    assert elapsed.status == RUNNING
    assert elapsed.wake_at_us == answer.wake_at_us
    await worker.complete(held(again))


async def test_a_timer_of_no_length_and_one_in_the_past_elapse_at_once(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    assert (await place.contract.workers.Sleep(_sleep(task, duration_ms=0))).elapsed
    past = _sleep(task, step_id="past", wake_at_us=task.now_us - 1_000_000)
    assert (await place.contract.workers.Sleep(past)).elapsed
    await worker.complete(held(task))


async def test_a_timer_may_name_the_time_it_ends_at(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    wake_at = task.now_us + 150_000
    answer = await place.contract.workers.Sleep(_sleep(task, wake_at_us=wake_at))
    assert answer.wake_at_us == wake_at
    again = await worker.take(task.run_id)
    assert again.now_us >= wake_at
    await worker.complete(held(again))


async def test_a_run_with_several_waits_wakes_at_the_earliest(place: Place) -> None:
    worker = await place.hand()
    task = await worker.take(await place.start())
    for step_id, duration_ms in (("long", 3_600_000), ("short", 50)):
        await worker.begin(held(task), step_id, kind=SLEEP, duration_ms=duration_ms)
    body = pb.Suspend(step_ids=["long", "short"], operation_id=new_id())
    answer = await place.contract.workers.Suspend(pb.SuspendRequest(run=held(task), suspend=body))
    assert answer.status == SLEEPING
    again = await worker.take(task.run_id)
    assert again.now_us >= answer.available_at_us
    assert {step.step_id for step in again.history} == {"long", "short"}
    await worker.complete(held(again))
