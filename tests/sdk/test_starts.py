"""Starts of one moment share a call; what is refused is refused alone, what is not answered is sent again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import grpc
import pytest

from kagzi import sql
from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2_grpc
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.sdk.client import Client
from kagzi.sdk.errors import Conflict, InvalidArgument, Unavailable
from kagzi.server.api.errors import Errors
from kagzi.store.errors import Refused
from tests.sdk.serving import new_id, serving, until

Answer = Callable[[pb.StartWorkflowsRequest], pb.StartWorkflowsResponse]


class Desk(workflow_pb2_grpc.WorkflowServiceServicer):
    """A server that keeps every call and answers as the test says; otherwise every run is started."""

    def __init__(self) -> None:
        self.calls: list[pb.StartWorkflowsRequest] = []
        self.answers: list[Answer] = []
        self.open = asyncio.Event()
        self.open.set()
        self.address = ""
        self._server: Any = None

    async def StartWorkflows(self, request: pb.StartWorkflowsRequest, context: Any) -> pb.StartWorkflowsResponse:
        self.calls.append(request)
        await self.open.wait()
        return self.answers.pop(0)(request) if self.answers else started(request)

    async def start(self) -> None:
        self._server = grpc.aio.server(interceptors=[Errors()])
        workflow_pb2_grpc.add_WorkflowServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    @property
    def sizes(self) -> list[int]:
        return [len(call.starts) for call in self.calls]


def started(request: pb.StartWorkflowsRequest) -> pb.StartWorkflowsResponse:
    results = [
        pb.StartWorkflowsResponse.Result(started=pb.StartWorkflowResponse(run_id=start.run_id))
        for start in request.starts
    ]
    return pb.StartWorkflowsResponse(results=results)


def refusing(code: ErrorDetail.Code.ValueType, retry_after_ms: int = 0) -> Answer:
    """Refuses the whole call."""

    def answer(_: pb.StartWorkflowsRequest) -> pb.StartWorkflowsResponse:
        raise Refused(ErrorDetail(code=code, message="no", retry_after_ms=retry_after_ms))

    return answer


def refusing_first(code: ErrorDetail.Code.ValueType) -> Answer:
    """Refuses the first start of the call alone."""

    def answer(request: pb.StartWorkflowsRequest) -> pb.StartWorkflowsResponse:
        response = started(request)
        response.results[0].error.CopyFrom(ErrorDetail(code=code, message="not this one", subject="it"))
        return response

    return answer


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()  # type: ignore[abstract]  # what it lacks nobody asks for
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def client(desk: Desk) -> AsyncIterator[Client]:
    async with Client(desk.address, patience=5) as made:
        yield made


async def test_starts_of_one_moment_travel_together(desk: Desk, client: Client) -> None:
    handles = await asyncio.gather(*(client.start("order", i) for i in range(100)))
    assert desk.sizes == [100]
    assert len({handle.run_id for handle in handles}) == 100
    assert [start.input.data for start in desk.calls[0].starts] == [str(i).encode() for i in range(100)]


async def test_a_lone_start_goes_at_once(desk: Desk, client: Client) -> None:
    await client.start("order")
    began = time.perf_counter()
    for _ in range(10):
        await client.start("order")
    assert desk.sizes == [1] * 11
    assert time.perf_counter() - began < 30


async def test_while_one_call_is_under_way_the_next_one_gathers(desk: Desk, client: Client) -> None:
    desk.open.clear()
    first = asyncio.create_task(client.start("order"))
    await until(lambda: bool(desk.calls))
    later = [asyncio.create_task(client.start("order", i)) for i in range(50)]
    await asyncio.sleep(0)
    assert desk.sizes == [1]
    desk.open.set()
    await asyncio.gather(first, *later)
    assert desk.sizes == [1, 50]


async def test_a_call_holds_a_thousand_starts_and_a_megabyte(desk: Desk, client: Client) -> None:
    await asyncio.gather(*(client.start("order", i) for i in range(2_500)))
    assert desk.sizes == [1_000, 1_000, 500]
    desk.calls.clear()
    await asyncio.gather(*(client.start("order", "x" * 400_000) for _ in range(5)))
    assert desk.sizes == [2, 2, 1]
    desk.calls.clear()
    await asyncio.gather(*(client.start("order", "x" * 2_000_000) for _ in range(2)))
    assert desk.sizes == [1, 1]


async def test_one_refused_start_fails_alone(desk: Desk, client: Client) -> None:
    desk.answers.append(refusing_first(ErrorDetail.CONFLICT))
    results = await asyncio.gather(*(client.start("order", i) for i in range(3)), return_exceptions=True)
    assert isinstance(results[0], Conflict)
    assert results[0].subject == "it"
    assert not any(isinstance(result, BaseException) for result in results[1:])
    assert desk.sizes == [3]


async def test_a_refused_call_fails_all_of_it_each_with_an_error_of_its_own(desk: Desk, client: Client) -> None:
    desk.answers.append(refusing(ErrorDetail.INVALID_ARGUMENT))
    results = await asyncio.gather(*(client.start("order", i) for i in range(2)), return_exceptions=True)
    assert [type(result) for result in results] == [InvalidArgument, InvalidArgument]
    assert results[0] is not results[1]


@pytest.mark.parametrize("code", [ErrorDetail.UNAVAILABLE, ErrorDetail.RESOURCE_EXHAUSTED])
async def test_an_overloaded_or_stopping_server_is_asked_again_with_the_same_ids(
    desk: Desk, client: Client, code: ErrorDetail.Code.ValueType
) -> None:
    desk.answers += [refusing(code), refusing(code)]
    handle = await client.start("order")
    assert [[start.run_id for start in call.starts] for call in desk.calls] == [[handle.run_id]] * 3


async def test_only_the_starts_that_found_no_room_are_sent_again(desk: Desk, client: Client) -> None:
    desk.answers.append(refusing_first(ErrorDetail.RESOURCE_EXHAUSTED))
    handles = await asyncio.gather(client.start("order", 1), client.start("order", 2))
    assert desk.sizes == [2, 1]
    assert desk.calls[1].starts[0].run_id == handles[0].run_id


async def test_a_server_that_says_when_to_come_back_is_taken_at_its_word(desk: Desk, client: Client) -> None:
    desk.answers.append(refusing(ErrorDetail.RESOURCE_EXHAUSTED, retry_after_ms=400))
    began = time.monotonic()
    await client.start("order")
    assert time.monotonic() - began >= 0.4


async def test_the_next_server_of_the_list_is_asked(desk: Desk) -> None:
    async with Client(f"127.0.0.1:1,{desk.address}", patience=5) as client:
        handle = await client.start("order")
        await client.start("order")
    assert desk.calls[0].starts[0].run_id == handle.run_id
    assert desk.sizes == [1, 1]


async def test_a_server_that_comes_back_is_found_again(desk: Desk, client: Client) -> None:
    await client.start("order")
    await desk.stop()
    starting = asyncio.gather(*(client.start("order", i) for i in range(3)))
    await asyncio.sleep(0)
    await desk.start()
    assert len(await starting) == 3


async def test_patience_is_each_callers_own(desk: Desk) -> None:
    await desk.stop()
    async with Client(desk.address, patience=0.4) as client:
        began = time.monotonic()
        first = asyncio.create_task(client.start("order"))
        await asyncio.wait({first}, timeout=0.2)
        second = asyncio.create_task(client.start("order"))
        with pytest.raises(Unavailable, match=desk.address):
            await first
        with pytest.raises(Unavailable):
            await second
        assert 0.4 <= time.monotonic() - began < 30


async def test_a_start_whose_caller_has_gone_is_not_sent(desk: Desk, client: Client) -> None:
    gone = asyncio.create_task(client.start("order", "gone"))
    kept = asyncio.create_task(client.start("order", "kept"))
    await asyncio.sleep(0)
    gone.cancel()
    await kept
    sent = [start.input.data for call in desk.calls for start in call.starts]
    assert b'"kept"' in sent
    assert gone.cancelled() or b'"gone"' in sent


async def test_a_start_that_waits_for_somebodys_transaction_keeps_no_other(database_url: str) -> None:
    other = await asyncpg.connect(database_url)
    async with serving(database_url) as server, Client(server.address) as client:
        transaction = other.transaction()
        await transaction.start()
        first = await sql.start(other, "order", id="order-1")
        same = asyncio.create_task(client.start("order", id="order-1"))
        await asyncio.gather(client.start("order"), client.start("order", id="order-2"))
        await client.start("order")
        assert not same.done()
        await transaction.commit()
        assert ((await same).run_id, (await same).already_exists) == (first, True)
    await other.close()


async def test_a_start_that_is_put_off_is_refused_when_the_client_closes(desk: Desk) -> None:
    def later(request: pb.StartWorkflowsRequest) -> pb.StartWorkflowsResponse:
        detail = ErrorDetail(code=ErrorDetail.RESOURCE_EXHAUSTED, message="later", retry_after_ms=60_000)
        return pb.StartWorkflowsResponse(results=[pb.StartWorkflowsResponse.Result(error=detail)])

    desk.answers.append(later)
    async with Client(desk.address, patience="2m") as client:
        put_off = asyncio.create_task(client.start("order"))
        await until(lambda: not desk.answers and bool(client._reach.starts._resting))
    with pytest.raises(Unavailable, match="closed"):
        await put_off


async def test_starts_gathered_at_a_real_server_are_real_runs(database_url: str) -> None:
    async with serving(database_url) as server, Client(server.address) as client:
        taken = new_id()
        results = await asyncio.gather(
            *(client.start("order", i, id="same" if i < 2 else None) for i in range(20)),
            client.start("order", run_id=taken),
            client.start("order", run_id=taken),
            client.start("order", run_id="no UUID"),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, BaseException)]
        assert [type(error) for error in refused] == [InvalidArgument]
        assert len([run async for run in client.runs()]) == 20
