"""Runs that a worker keeps in memory, seen from the wire: when the history is left out, when it comes along, and who is
offered a run first. What a server knows of residents is a hint in its memory and in the row; whether one may be used is
said by the claim.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import grpc
import pytest

from kagzi import Client, Handle
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.sdk import calls
from kagzi.server.app import Server
from kagzi.store import claims
from tests.survival.line import TYPE, Line, completed, held, result, suspend


async def suspended(line: Line, client: Client, *, kept: bool = True) -> tuple[Handle[object], pb.Held]:
    """A run with an input and a step on record, suspended by this worker."""
    number = len(line.deliveries) + 1
    handle = await client.start(TYPE, 7)
    await line.write(credit=1)
    return handle, await suspend(line, held(await line.delivery(number)), kept=kept)


async def test_a_kept_run_comes_back_without_its_history_and_with_the_facts_since(
    server: Server, client: Client
) -> None:
    async with Line(server.address, TYPE) as line:
        handle, run = await suspended(line, client)
        await handle.signal("go", "on")
        await line.write(credit=1)
        again = await line.delivery(2)
    assert (again.resident, again.last_token) == (True, run.claim_token)
    assert (list(again.history), again.HasField("input")) == ([], False)
    assert [fact.signal.name for fact in again.facts] == ["go"]
    assert again.claim_token != run.claim_token


async def test_a_run_that_is_not_kept_or_was_evicted_comes_back_with_its_history_and_the_facts_since(
    server: Server, client: Client
) -> None:
    async with Line(server.address, TYPE) as line:
        for evicted in (False, True):
            handle, run = await suspended(line, client, kept=evicted)
            count = len(line.deliveries)
            if evicted:
                await line.write(evicted=[run])
            await handle.signal("go", "on")
            await line.write(credit=1)
            again = await line.delivery(count + 1)
            assert (again.resident, again.last_token) == (False, run.claim_token)
            assert [step.step_id for step in again.history] == ["one", "go"]
            assert [fact.signal.name for fact in again.facts] == ["go"]
            assert again.input.data == b"7"
            await line.answer(await line.send(held(again), "complete", completed()))


async def test_an_eviction_of_an_earlier_suspension_says_nothing_of_a_later_one(server: Server, client: Client) -> None:
    async with Line(server.address, TYPE) as line:
        handle, _ = await suspended(line, client)
        await line.write(evicted=[pb.Held(run_id=handle.run_id, claim_token=str(uuid.uuid4()))])
        await handle.signal("go", "on")
        await line.write(credit=1)
        assert (await line.delivery(2)).resident


async def test_a_new_stream_says_which_runs_are_kept(server: Server, client: Client) -> None:
    async with Line(server.address, TYPE) as line:
        handle, run = await suspended(line, client)
        other, forgotten = await suspended(line, client)
    async with Line(server.address, TYPE, line.instance, residents=(run,)) as newer:
        await handle.signal("go", "on")
        await newer.write(credit=2)
        assert (await newer.delivery()).resident
        await other.signal("go", "on")
        again = await newer.delivery(2)
        assert (again.run_id, again.resident, again.last_token) == (other.run_id, False, forgotten.claim_token)
        assert len(again.history) == 2


async def test_what_a_hello_says_it_keeps_is_checked(server: Server) -> None:
    line = Line(server.address, TYPE, residents=(pb.Held(run_id="no", claim_token=str(uuid.uuid4())),))
    async with line.opened() as call:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.read()
    error = calls.error_from(refused.value)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "hello.residents.run_id")


@pytest.mark.parametrize("recorded", [True, False], ids=["and recorded a step", "and recorded nothing"])
async def test_a_run_that_somebody_held_since_without_giving_it_back_is_not_used(
    server: Server, client: Client, recorded: bool
) -> None:
    async with Line(server.address, TYPE) as line:
        handle, _ = await suspended(line, client)
        await handle.signal("go", "on")
        async with Line(server.address, TYPE) as other:
            await other.write(credit=1)
            taken = await other.delivery()
            assert len(taken.history) == 2
            if recorded:
                await other.answer(await other.send(held(taken), "step_completed", result("two", 3)))
        # It comes back by the end of that worker, and not by an operation of its own.
        async with Line(server.address, TYPE, other.instance):
            await line.write(credit=1)
            again = await line.delivery(2)
    assert (again.resident, again.last_token) == (False, "")
    assert [step.step_id for step in again.history] == ["one", "go", *(["two"] if recorded else [])]


async def test_a_run_is_offered_first_to_the_worker_that_keeps_it(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "OFFERED_FIRST", timedelta(hours=1))
    async with Line(server.address, TYPE) as line, Line(server.address, TYPE) as other:
        handle, _ = await suspended(line, client)
        await other.write(credit=5)
        await handle.signal("go", "on")
        # Whatever is not kept comes to the other one meanwhile.
        for number in range(1, 4):
            await client.start(TYPE)
            await other.delivery(number)
        await line.write(credit=1)
        assert (await line.delivery(2)).run_id == handle.run_id
        assert handle.run_id not in [delivery.run_id for delivery in other.deliveries]


@pytest.mark.parametrize("gone", [False, True], ids=["has no place for it", "is gone"])
async def test_a_run_goes_to_anybody_when_its_keeper(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    if gone:
        monkeypatch.setattr(claims, "OFFERED_FIRST", timedelta(hours=1))
    async with Line(server.address, TYPE) as line, Line(server.address, TYPE) as other:
        handle, _ = await suspended(line, client)
        if gone:
            async with grpc.aio.insecure_channel(server.address) as channel:
                goodbye = pb.DeregisterRequest(namespace="default", worker_id=line.frames[0].welcome.worker_id)
                await WorkerServiceStub(channel).Deregister(goodbye)
        await other.write(credit=1)
        await handle.signal("go", "on")
        delivery = await other.delivery()
    assert (delivery.run_id, delivery.resident, len(delivery.history)) == (handle.run_id, False, 2)


async def test_a_worker_of_unary_calls_always_gets_the_history(server: Server, client: Client) -> None:
    handle = await client.start(TYPE, 7)
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = WorkerServiceStub(channel)
        request = pb.RegisterRequest(instance=str(uuid.uuid4()), types=[pb.ServedType(name=TYPE)])
        worker = await stub.Register(request)
        poll = pb.PollTaskRequest(namespace="default", worker_id=worker.worker_id, wait_ms=5_000)
        first = (await stub.PollTask(poll)).task
        step = result("one", 1)
        await stub.CompleteStep(pb.CompleteStepRequest(namespace="default", run=held(first), step=step))
        received = pb.ReceiveSignalRequest(
            namespace="default", run=held(first), step_id="go", attempt_id=str(uuid.uuid4()), name="go"
        )
        await stub.ReceiveSignal(received)
        suspension = pb.Suspend(step_ids=["go"], operation_id=str(uuid.uuid4()), kept=True)
        await stub.Suspend(pb.SuspendRequest(namespace="default", run=held(first), suspend=suspension))
        await handle.signal("go", "on")
        again = (await stub.PollTask(poll)).task
    assert (again.resident, again.last_token) == (False, first.claim_token)
    assert [step.step_id for step in again.history] == ["one", "go"]


async def test_a_worker_hears_that_a_run_it_keeps_has_ended(server: Server, client: Client) -> None:
    async with Line(server.address, TYPE) as line:
        handle, run = await suspended(line, client)
        await handle.terminate("enough")
        await line.until(lambda: line.lost == [run])
