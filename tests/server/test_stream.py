"""The stream and the calls over the wire, with a real server on a database whose connections are counted: how many
commits, statements and frames things cost, and that what a frame holds keeps its order and its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from statistics import median
from typing import Any

import pytest
import pytest_asyncio

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import SIGNAL, Payload
from kagzi.protocol.v1.workflow_pb2 import (
    CancelWorkflowRequest,
    SignalWorkflowRequest,
    StartWorkflowRequest,
    StartWorkflowsRequest,
)
from kagzi.server.api import stream
from tests.laws.operations import new_id
from tests.server.wire import Place, Worker, end, serving, step


@pytest_asyncio.fixture
async def place(database_url: str) -> AsyncIterator[Place]:
    async with serving(database_url) as place:
        yield place


@pytest_asyncio.fixture
async def worker(place: Place) -> AsyncIterator[Worker]:
    worker = Worker(place)
    yield worker
    await worker.close()


async def _commits(place: Place, calls: Sequence[Awaitable[Any]]) -> int:
    """What calls cost that are all there before the first of them is answered, however slowly they arrive."""
    place.proxy.released.clear()
    # Whatever else is written meanwhile is held back with them.
    place.proxy.commits, place.proxy.answers_to_hold = 0, len(calls)
    answers = asyncio.gather(*calls)
    async with asyncio.timeout(60):
        while place.server.batcher.queued < len(calls):  # noqa: ASYNC110 - a queue that grows tells nobody
            await asyncio.sleep(0.002)
    place.proxy.answers_to_hold = 0
    place.proxy.released.set()
    await answers
    return place.proxy.commits


async def test_a_hundred_concurrent_unary_starts_cost_at_most_four_commits(place: Place) -> None:
    await place.start()
    assert await _commits(place, [place.start() for _ in range(100)]) <= 4


async def test_a_hundred_starts_of_one_call_cost_at_most_four_commits(place: Place) -> None:
    starts = [StartWorkflowRequest(workflow_type="order") for _ in range(100)]
    place.proxy.commits = 0
    answer = await place.workflows.StartWorkflows(StartWorkflowsRequest(starts=starts))
    assert len(answer.results) == 100
    assert place.proxy.commits <= 4


async def _held(place: Place, worker: Worker, count: int) -> list[pb.Held]:
    await worker.hello(credit=count)
    await asyncio.gather(*(place.start() for _ in range(count)))
    return await worker.take(count)


async def test_a_hundred_concurrent_unary_step_results_cost_at_most_four_commits(place: Place, worker: Worker) -> None:
    results = [pb.CompleteStepRequest(run=run, step=step(1)) for run in await _held(place, worker, 100)]
    assert await _commits(place, [place.workers.CompleteStep(result) for result in results]) <= 4


async def test_a_lone_unary_operation_costs_exactly_one_commit(place: Place, worker: Worker) -> None:
    [run] = await _held(place, worker, 1)
    for call in (
        lambda: place.start(task_queue="nobody"),
        lambda: place.workers.CompleteStep(pb.CompleteStepRequest(run=run, step=step(1))),
        lambda: place.workers.CompleteWorkflow(pb.CompleteWorkflowRequest(run=run, complete=end())),
    ):
        place.proxy.commits = 0
        await call()
        assert place.proxy.commits == 1


async def test_a_frame_of_a_hundred_results_costs_one_commit_and_one_frame_back(place: Place, worker: Worker) -> None:
    held = await _held(place, worker, 100)
    # A lane a run; in one lane all of them are one batch.
    before, place.proxy.commits = len(worker.frames), 0
    await worker.send(operations=[worker.operation(run, step_completed=step(1)) for run in held])
    await worker.answered(100)
    assert place.proxy.commits <= place.server.settings.batcher_lanes
    assert len(worker.frames) - before <= place.server.settings.batcher_lanes


async def test_a_step_costs_one_frame_each_way_and_one_commit(place: Place, worker: Worker) -> None:
    [run] = await _held(place, worker, 1)
    sent, received, place.proxy.commits = worker.sent, len(worker.frames), 0
    for position in range(1, 21):
        await worker.send(operations=[worker.operation(run, step_completed=step(position))])
        await worker.answered(position)
    assert worker.sent - sent == 20
    assert len(worker.frames) - received == 20
    assert place.proxy.commits == 20


async def test_a_run_that_is_handed_over_and_ends_in_one_frame_costs_two_commits(place: Place, worker: Worker) -> None:
    await worker.hello(credit=5)
    await place.start()
    await worker.take()
    counts = []
    for turn in (1, 2, 3):
        await place.idle()
        place.proxy.commits = 0
        run_id = await place.start()
        run = (await worker.take(turn + 1))[turn]
        await worker.send(
            operations=[
                *(worker.operation(run, step_completed=step(position)) for position in (1, 2, 3)),
                worker.operation(run, complete=end()),
            ]
        )
        await worker.answered(4 * turn)
        assert await place.status(run_id) == "COMPLETED"
        counts.append(place.proxy.commits)
    # Upkeep of the server may commit in between.
    assert median(counts) == 2, counts


async def test_an_idle_server_with_an_idle_worker_runs_few_statements(place: Place, worker: Worker) -> None:
    await worker.hello(credit=10)
    await asyncio.sleep(1.0)
    place.proxy.statements.clear()
    await asyncio.sleep(3.0)
    assert len(place.proxy.statements) / 3 < 5, place.proxy.statements


async def test_what_follows_an_operation_that_fails_its_checks_falls(place: Place, worker: Worker) -> None:
    """A result that is too large is refused before it reaches the batcher; the run must not end without it."""
    [run] = await _held(place, worker, 1)
    too_large = step(2, output=Payload(data=b"1" * (2 * 1024 * 1024 + 1)))
    await worker.send(operations=[worker.operation(run, step_completed=step(1))])
    await worker.send(operations=[worker.operation(run, step_completed=too_large)])
    await worker.send(operations=[worker.operation(run, step_completed=step(3)), worker.operation(run, complete=end())])
    await worker.answered(4)
    assert worker.answers == {1: "OK", 2: "LIMIT_EXCEEDED", 3: "PREDECESSOR_REFUSED", 4: "PREDECESSOR_REFUSED"}
    failed = (
        "select status = 'FAILED' and error ->> 'type' = 'LimitExceeded' from kagzi.workflow_runs where run_id = $1"
    )
    await place.until(failed, run.run_id)
    steps = await place.connection.fetch("select step_id from kagzi.step_runs")
    assert [step["step_id"] for step in steps] == ["s1"]


async def test_a_refused_operation_brings_down_its_own_run_alone(place: Place, worker: Worker) -> None:
    sick, sound = await _held(place, worker, 2)
    frame = [
        worker.operation(sick, step_completed=step(1, signal_id=new_id())),
        worker.operation(sound, step_completed=step(1)),
        worker.operation(sick, complete=end()),
        worker.operation(sound, complete=end()),
        worker.operation(pb.Held(run_id="nonsense", claim_token="x"), complete=end()),
        pb.Operation(number=99, run_id=sick.run_id, claim_token=sick.claim_token),
    ]
    await worker.send(operations=frame)
    await worker.answered(6)
    assert worker.answers == {
        1: "PRECONDITION_FAILED",
        2: "OK",
        3: "PREDECESSOR_REFUSED",
        4: "OK",
        5: "INVALID_ARGUMENT",
        99: "UNIMPLEMENTED",
    }


async def test_credit_is_what_a_worker_gets(place: Place, worker: Worker) -> None:
    for _ in range(5):
        await place.start()
    await worker.hello(credit=2)
    await worker.take(2)
    await asyncio.sleep(0.2)
    assert len(worker.deliveries) == 2
    await worker.send(credit=1)
    await worker.take(3)
    await asyncio.sleep(0.2)
    assert len(worker.deliveries) == 3


async def test_a_stream_that_comes_back_goes_on_and_gives_back_what_it_does_not_name(place: Place) -> None:
    first = Worker(place)
    held = await _held(place, first, 3)
    stranger = pb.Held(run_id=held[2].run_id, claim_token=new_id())
    second = Worker(place, first.instance)
    await second.hello(held=[held[0], stranger])
    welcome = next(frame for frame in second.frames if frame.HasField("welcome"))
    assert [(lost.run_id, lost.claim_token) for lost in welcome.lease_lost] == [(stranger.run_id, stranger.claim_token)]
    assert [await place.status(run.run_id) for run in held] == ["RUNNING", "PENDING", "PENDING"]
    crashes = await place.connection.fetch("select crashes from kagzi.workflow_runs")
    assert {row["crashes"] for row in crashes} == {0}
    await second.send(operations=[second.operation(held[0], complete=end())])
    await second.answered(1)
    assert await place.status(held[0].run_id) == "COMPLETED"
    async with asyncio.timeout(60):
        await first.over()
    for worker in (first, second):
        await worker.close()


async def test_what_was_not_acknowledged_goes_back_with_no_crash_when_the_stream_ends(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_DELIVERED_WITHIN", 0.2)
    worker = Worker(place)
    await worker.hello(credit=1)
    run_id = await place.start()
    await worker.until(lambda: len(worker.deliveries) == 1)
    await worker.close()
    await place.until("select status = 'PENDING' and crashes = 0 from kagzi.workflow_runs where run_id = $1", run_id)


async def test_what_was_acknowledged_stays_with_its_worker_when_the_stream_ends(place: Place) -> None:
    worker = Worker(place)
    [run] = await _held(place, worker, 1)
    await worker.close()
    await asyncio.sleep(0.2)
    assert await place.status(run.run_id) == "RUNNING"
    again = Worker(place, worker.instance)
    await again.hello(held=[run])
    await again.send(operations=[again.operation(run, complete=end())])
    await again.until(lambda: again.answers == {1: "OK"})
    await again.close()


async def test_a_held_run_hears_of_cancel_and_signal_over_its_stream(place: Place, worker: Worker) -> None:
    [run] = await _held(place, worker, 1)
    waits = pb.StepStarted(step_id="r", attempt_id=new_id(), kind=SIGNAL, attempt_number=1, position=1, target="paid")
    await worker.send(
        operations=[worker.operation(run, step_started=waits), worker.operation(run, wait=pb.Wait(step_ids=["r"]))]
    )
    await worker.answered(2)
    sent = await place.workflows.SignalWorkflow(SignalWorkflowRequest(run_id=run.run_id, name="paid"))
    await worker.until(lambda: any(frame.wakes for frame in worker.frames))
    [wake] = [wake for frame in worker.frames for wake in frame.wakes]
    assert wake.run == run
    assert wake.facts[0].signal.signal_id == sent.signal_id
    await place.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run.run_id, reason="no"))
    await worker.until(lambda: any(frame.cancels for frame in worker.frames))


@pytest.mark.parametrize("held", [True, False], ids=["held", "free"])
async def test_a_blocked_run_holds_up_neither_the_stream_nor_a_heartbeat(
    place: Place, worker: Worker, held: bool
) -> None:
    runs = await _held(place, worker, 3)
    registered = next(frame.welcome for frame in worker.frames if frame.HasField("welcome"))
    transaction = place.connection.transaction()
    await transaction.start()
    if held:
        await place.connection.execute("select from kagzi.workflow_runs where run_id = $1 for update", runs[0].run_id)
    await worker.send(operations=[worker.operation(run, step_completed=step(1)) for run in runs])
    await worker.until(lambda: {2, 3} <= worker.answers.keys())
    beat = await place.workers.Heartbeat(pb.HeartbeatRequest(worker_id=registered.worker_id, held=runs), timeout=60)
    assert list(beat.lost) == []
    assert (1 in worker.answers) == (not held)
    await transaction.rollback()
    await worker.until(lambda: worker.answers == {1: "OK", 2: "OK", 3: "OK"})
