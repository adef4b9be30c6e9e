"""Law 9, no in-memory truth: what a server knows is in its rows. Another one on the same database, started after the
first was cut off without a word, goes on with everything: held runs, waits, timers, queues and repeats.
"""

from __future__ import annotations

import asyncio

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, SIGNAL, SLEEP
from kagzi.protocol.v1.workflow_pb2 import CancelWorkflowRequest, SignalWorkflowRequest
from tests.laws.operations import new_id
from tests.server.wire import Place, Worker, end, serving, step


async def _poll(place: Place, worker_id: str) -> pb.Delivery:
    """The next run for a worker that knows nothing but calls."""
    while True:
        answer = await place.workers.PollTask(pb.PollTaskRequest(worker_id=worker_id, wait_ms=5_000))
        if answer.HasField("task"):
            return answer.task


def _held(delivery: pb.Delivery) -> pb.Held:
    return pb.Held(run_id=delivery.run_id, claim_token=delivery.claim_token)


async def _register(place: Place) -> str:
    request = pb.RegisterRequest(instance=new_id(), types=[pb.ServedType(name="order")])
    worker_id: str = (await place.workers.Register(request)).worker_id
    return worker_id


async def test_another_server_goes_on_where_one_was_cut_off(database_url: str) -> None:
    async with serving(database_url) as first:
        worker_id = await _register(first)
        waiting = await first.start()
        held = _held(await _poll(first, worker_id))
        await first.workers.CompleteStep(pb.CompleteStepRequest(run=held, step=step(1)))
        asleep = await first.start()
        sleeper = _held(await _poll(first, worker_id))
        nap = pb.SleepRequest(run=sleeper, step_id="nap", attempt_id=new_id(), operation_id=new_id(), duration_ms=500)
        gave_back = await first.workers.Sleep(nap)
        left = await first.start()
        later = await first.start(delay_ms=700)
        # Not a goodbye: its connections are gone and it never gets to say anything.
        first.proxy._open = False
        first.proxy.break_connections()

        async with serving(database_url) as second:
            beat = await second.workers.Heartbeat(pb.HeartbeatRequest(worker_id=worker_id, held=[held]))
            assert list(beat.lost) == []
            assert await second.workers.Sleep(nap) == gave_back
            again = pb.CompleteStepRequest(run=held, step=step(2))
            await second.workers.CompleteStep(again)
            await second.workers.CompleteStep(again)
            ended = await second.workers.CompleteWorkflow(pb.CompleteWorkflowRequest(run=held, complete=end()))
            assert (held.run_id, ended.status) == (waiting, COMPLETED)
            taken = [await _poll(second, worker_id) for _ in range(3)]
            assert {delivery.run_id for delivery in taken} == {asleep, left, later}
            [woken] = [delivery for delivery in taken if delivery.run_id == asleep]
            assert [recorded.kind for recorded in woken.history] == [SLEEP]


async def test_a_stream_that_lost_its_server_goes_on_at_another(database_url: str) -> None:
    async with serving(database_url) as first, serving(database_url) as second:
        worker = Worker(first)
        await worker.hello(credit=2)
        runs = [await first.start() for _ in range(2)]
        held = await worker.take(2)
        await worker.send(operations=[worker.operation(run, step_completed=step(1)) for run in held])
        await worker.answered(2)
        waits = pb.StepStarted(
            step_id="r", attempt_id=new_id(), kind=SIGNAL, attempt_number=1, position=2, target="paid"
        )
        await worker.send(operations=[worker.operation(held[0], step_started=waits)])
        await worker.answered(3)
        await worker.close()

        again = Worker(second, worker.instance)
        await again.hello(held=held)
        sent = await second.workflows.SignalWorkflow(SignalWorkflowRequest(run_id=held[0].run_id, name="paid"))
        received = step(2, step_id="r", attempt_id=waits.attempt_id, kind=SIGNAL, signal_id=sent.signal_id)
        await again.send(
            operations=[
                again.operation(held[0], step_completed=received),
                again.operation(held[0], complete=end()),
                again.operation(held[1], complete=end()),
            ]
        )
        await again.answered(3)
        assert set(again.answers.values()) == {"OK"}
        assert [await second.status(run_id) for run_id in runs] == ["COMPLETED"] * 2
        await again.close()


async def test_what_one_server_acknowledged_another_knows_at_once(database_url: str) -> None:
    async with serving(database_url) as one, serving(database_url) as other:
        for number in range(10):
            here, there = (one, other) if number % 2 else (other, one)
            run_id = await here.start(external_id=f"order-{number}")
            assert await there.start(run_id=run_id) == run_id
            asked = await there.workflows.CancelWorkflow(CancelWorkflowRequest(run_id=run_id))
            assert asked.status == CANCELLED


async def test_two_servers_execute_nothing_twice(database_url: str) -> None:
    ticks = {"dispatcher_interval_secs": 0.05}
    async with serving(database_url, **ticks) as one, serving(database_url, **ticks) as other:
        workers = [Worker(place) for place in (one, other)]
        for worker in workers:
            await worker.hello(credit=200)
        runs = await asyncio.gather(*((one, other)[number % 2].start() for number in range(100)))
        async with asyncio.timeout(20):
            while sum(len(worker.deliveries) for worker in workers) < 100:  # noqa: ASYNC110 - it comes or the test fails
                await asyncio.sleep(0.02)
        for place in (one, other):
            await _ticks(place, 3)
        taken = [delivery.run_id for worker in workers for delivery in worker.deliveries]
        assert sorted(taken) == sorted(runs)
        for worker in workers:
            await worker.close()


async def _ticks(place: Place, count: int) -> None:
    """Waits until the server has looked so many times for what is due."""
    place.proxy.statements.clear()
    async with asyncio.timeout(60):
        while sum("suspects_due" in text for text in place.proxy.statements) < count:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def test_a_call_to_a_server_whose_database_is_away_waits_for_it(database_url: str) -> None:
    async with serving(database_url) as place:
        await place.start()
        async with place.proxy.away():
            starting = asyncio.create_task(place.start())
            registering = asyncio.create_task(_register(place))
            await place.proxy.refuses(3)
            assert not starting.done()
            assert not registering.done()
        assert await place.status(await starting) == "PENDING"
        assert await registering
