"""WatchWorkflows over the wire: who is told of which end, when and at what cost, by real servers on a database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, FAILED, ErrorDetail
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import calls
from kagzi.server.app import Server
from kagzi.store.notices import Kind
from tests.sdk.serving import completed, continued, echo, encoded, failed, new_id, serving, working

NEVER = 60.0


class Watching:
    """A client of one server: starts runs, and watches over one stream."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.call = stub.WatchWorkflows()
        self.frames = 0
        self.ended: dict[str, pb.WatchWorkflowsResponse.Ended] = {}
        self.unknown: list[str] = []

    async def start(self, workflow_type: str, value: Any = None) -> str:
        request = pb.StartWorkflowRequest(workflow_type=workflow_type, input=encoded(value))
        started: pb.StartWorkflowResponse = await self.stub.StartWorkflow(request)
        return started.run_id

    async def watch(self, *run_ids: str, namespace: str = "") -> None:
        await self.call.write(pb.WatchWorkflowsRequest(namespace=namespace, watch=run_ids))

    async def read(self, until: Callable[[], bool]) -> None:
        """Reads frames until the condition holds."""
        async with asyncio.timeout(60):
            while not until():
                frame = await self.call.read()
                assert frame is not grpc.aio.EOF
                self.frames += 1
                self.ended |= {ended.run_id: ended for ended in frame.ended}
                self.unknown += frame.unknown

    async def end_of(self, run_id: str) -> pb.WatchWorkflowsResponse.Ended:
        await self.read(lambda: run_id in self.ended)
        return self.ended[run_id]


@contextlib.asynccontextmanager
async def watching(server: Server) -> AsyncIterator[Watching]:
    async with calls.channel(server.address) as channel:
        client = Watching(WorkflowServiceStub(channel))
        yield client
        client.call.cancel()


def count_looks(server: Server) -> list[bool]:
    """What the server's watchers ask the database from now on: one entry a question."""
    looks: list[bool] = []
    look = server.watchers._look

    async def counted(namespace: str, run_ids: Any, *, live: bool) -> None:
        if run_ids:
            looks.append(live)
        await look(namespace, run_ids, live=live)

    server.watchers._look = counted  # type: ignore[method-assign]
    return looks


def count_tellings(server: Server) -> list[int]:
    """How many runs are told of together from now on, one entry a telling."""
    told: list[int] = []
    pass_on = server.watchers._pass_on

    def counted(namespace: str, ended: Any) -> None:
        if ended:
            told.append(len(ended))
        pass_on(namespace, ended)

    server.watchers._pass_on = counted  # type: ignore[method-assign]
    return told


async def test_a_run_that_has_ended_is_told_at_once(database_url: str) -> None:
    async with (
        serving(database_url, dispatcher_interval_secs=NEVER) as server,
        working(server.address, echo=echo),
        watching(server) as first,
        watching(server) as second,
    ):
        run_id = await first.start("echo", {"a": 1})
        await first.watch(run_id)
        await first.end_of(run_id)
        await second.watch(run_id)
        ended = await second.end_of(run_id)
    assert (ended.final_run_id, ended.status, ended.output.data) == (run_id, COMPLETED, b'{"a": 1}')


async def test_ends_of_this_server_are_told_without_asking_the_database(database_url: str) -> None:
    async with (
        serving(database_url, dispatcher_interval_secs=NEVER) as server,
        working(server.address, "good", "bad", "ugly") as hand,
        watching(server) as client,
    ):
        good, bad, ugly = [await client.start(name) for name in ("good", "bad", "ugly")]
        await client.watch(good, bad, ugly, missing := new_id())
        await client.read(lambda: missing in client.unknown)
        looks = count_looks(server)
        await hand.end(good, completed([1, 2]))
        await hand.end(bad, failed("no more"))
        await client.stub.TerminateWorkflow(pb.TerminateWorkflowRequest(run_id=ugly, reason="enough"))
        await client.read(lambda: {good, bad, ugly} <= client.ended.keys())
    assert client.ended[good].output.data == b"[1, 2]"
    assert (client.ended[bad].status, client.ended[bad].failure.message) == (FAILED, "no more")
    assert (client.ended[ugly].status, client.ended[ugly].failure.message) == (CANCELLED, "enough")
    assert looks == []


async def test_a_run_that_was_started_here_is_watched_without_asking_the_database(database_url: str) -> None:
    async with (
        serving(database_url, dispatcher_interval_secs=NEVER) as server,
        working(server.address, "held") as hand,
        watching(server) as client,
    ):
        await asyncio.wait_for(server.notifier.connected.wait(), 10)
        looks = count_looks(server)
        run_id = await client.start("held")
        await client.watch(run_id)
        await hand.end(run_id, completed(1))
        await client.end_of(run_id)
    assert looks == []


async def test_a_run_that_ended_elsewhere_before_anybody_watched_is_told_at_once(database_url: str) -> None:
    async with (
        serving(database_url, dispatcher_interval_secs=NEVER) as here,
        serving(database_url) as there,
        working(there.address, "held") as hand,
        watching(here) as client,
    ):
        await asyncio.wait_for(here.notifier.connected.wait(), 10)
        await asyncio.wait_for(there.notifier.connected.wait(), 10)
        heard = asyncio.Event()
        here.notifier.subscribe(Kind.ENDED, lambda _: heard.set())
        run_id = await client.start("held")
        await hand.end(run_id, completed("there"))
        await asyncio.wait_for(heard.wait(), 10)
        await client.watch(run_id)
        ended = await client.end_of(run_id)
    assert ended.output.data == b'"there"'


async def test_a_run_that_never_started_is_told_when_it_is_cancelled(database_url: str) -> None:
    async with serving(database_url, dispatcher_interval_secs=NEVER) as server, watching(server) as client:
        run_id = await client.start("nobody serves this")
        await client.watch(run_id)
        await client.stub.CancelWorkflow(pb.CancelWorkflowRequest(run_id=run_id, reason="not wanted"))
        ended = await client.end_of(run_id)
    assert (ended.status, ended.failure.message) == (CANCELLED, "not wanted")


async def test_a_run_that_continues_as_new_is_followed_to_its_last(database_url: str) -> None:
    async with (
        serving(database_url, dispatcher_interval_secs=NEVER) as server,
        working(
            server.address, count=lambda run: [completed("end") if run.input.data == b"0" else continued(0)]
        ) as hand,
        watching(server) as client,
    ):
        first = await client.start("count", 1)
        await client.watch(first)
        live = await client.end_of(first)
        await client.watch(first)
        client.ended.clear()
        late = await client.end_of(first)
    assert [run.input.data for run in hand.delivered] == [b"1", b"0"]
    last = hand.delivered[-1].run_id
    assert (live.final_run_id, live.output.data) == (last, b'"end"')
    assert (late.final_run_id, late.output.data) == (last, b'"end"')


async def test_ids_that_name_no_run_are_reported_and_the_others_go_on(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, "held") as hand,
        watching(server) as client,
    ):
        run_id = await client.start("held")
        missing = new_id()
        await client.watch(run_id, missing)
        await client.read(lambda: bool(client.unknown))
        await hand.end(run_id, completed())
        await client.end_of(run_id)
    assert client.unknown == [missing]


@pytest.mark.parametrize("hears", [True, False], ids=["by its notice", "by looking every second"])
async def test_the_end_in_another_server_is_heard(database_url: str, hears: bool) -> None:
    interval = NEVER if hears else 0.2
    async with (
        serving(database_url, dispatcher_interval_secs=interval) as here,
        serving(database_url) as there,
        working(there.address, "held") as hand,
        watching(here) as client,
    ):
        run_id = await client.start("held")
        await client.watch(run_id, missing := new_id())
        await client.read(lambda: missing in client.unknown)
        if hears:
            await asyncio.wait_for(here.notifier.connected.wait(), 10)
            await asyncio.wait_for(there.notifier.connected.wait(), 10)
        else:
            await there.notifier.stop()
        await hand.end(run_id, completed("there"))
        ended = await client.end_of(run_id)
    assert ended.output.data == b'"there"'


async def test_a_thousand_ends_share_a_few_frames(database_url: str) -> None:
    async with serving(database_url) as server, working(server.address, echo=echo), watching(server) as client:
        starts = [pb.StartWorkflowRequest(workflow_type="echo", run_id=new_id()) for _ in range(1_000)]
        looks = count_looks(server)
        told = count_tellings(server)
        await client.stub.StartWorkflows(pb.StartWorkflowsRequest(starts=starts))
        await client.watch(*(start.run_id for start in starts))
        await client.read(lambda: len(client.ended) == 1_000)
    # How many runs end together is the machine's affair: the ends of one commit or one look never need two frames.
    assert client.frames <= len(told) + len(looks) + 1
    assert len(told) < 1_000
    assert len(looks) < 50


async def test_what_waits_for_a_client_that_does_not_read_is_bounded_and_comes_later(database_url: str) -> None:
    size = 1_500_000
    async with (
        serving(database_url) as server,
        working(server.address, big=lambda _: [completed("x" * size)]),
        watching(server) as client,
        watching(server) as quick,
    ):
        run_ids = [await client.start("big") for _ in range(20)]
        await client.watch(*run_ids)
        for run_id in run_ids:
            await quick.watch(run_id)
            await quick.end_of(run_id)
        waiting = max(watch._bytes for watch in server.watchers._watches)
        await client.read(lambda: len(client.ended) == len(run_ids))
    assert waiting <= 8 << 20
    assert {len(ended.output.data) for ended in client.ended.values()} == {size + 2}


async def test_a_client_that_has_said_all_is_served_to_the_last_end(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, "held") as hand,
        watching(server) as client,
    ):
        run_id = await client.start("held")
        await client.watch(run_id)
        await client.call.done_writing()
        await hand.end(run_id, completed())
        await client.end_of(run_id)
        assert await asyncio.wait_for(client.call.read(), 10) is grpc.aio.EOF


async def test_what_is_no_longer_watched_is_not_told(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, "held") as hand,
        watching(server) as client,
    ):
        dropped, kept = await client.start("held"), await client.start("held")
        await client.watch(dropped, kept)
        await client.call.write(pb.WatchWorkflowsRequest(unwatch=[dropped]))
        await hand.end(dropped, completed())
        await hand.end(kept, completed())
        await client.end_of(kept)
    assert list(client.ended) == [kept]


async def test_a_client_that_leaves_leaves_nothing_behind(database_url: str) -> None:
    async with serving(database_url) as server, watching(server) as other:
        async with watching(server) as client:
            run_id = await client.start("nobody serves this")
            await client.watch(run_id, missing := new_id())
            await client.read(lambda: missing in client.unknown)
            assert server.watchers._runs["default"].keys() == {run_id}
        # The end of a stream is noticed after a moment; a question to the server takes at least as long.
        async with asyncio.timeout(60):
            while server.watchers._watches:
                await other.stub.GetWorkflow(pb.GetWorkflowRequest(run_id=run_id))
        assert server.watchers._runs["default"] == {}


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        (pb.WatchWorkflowsRequest(watch=["no uuid"]), ErrorDetail.INVALID_ARGUMENT, "watch"),
        (pb.WatchWorkflowsRequest(unwatch=["no uuid"]), ErrorDetail.INVALID_ARGUMENT, "unwatch"),
        (pb.WatchWorkflowsRequest(namespace="nowhere"), ErrorDetail.NOT_FOUND, "namespace"),
        (pb.WatchWorkflowsRequest(namespace="a\0b"), ErrorDetail.INVALID_ARGUMENT, "namespace"),
    ],
)
async def test_what_cannot_be_watched_is_refused(
    database_url: str, request_: pb.WatchWorkflowsRequest, code: ErrorDetail.Code.ValueType, field: str
) -> None:
    async with serving(database_url) as server, watching(server) as client:
        await client.call.write(request_)
        error = await _broken(client)
    assert (error.code, error.field) == (ErrorDetail.Code.Name(code), field)


async def test_a_stream_watches_one_namespace(database_url: str) -> None:
    async with serving(database_url) as server, watching(server) as client:
        await client.watch(new_id(), namespace="default")
        await client.read(lambda: bool(client.unknown))
        await client.watch(new_id(), namespace="other")
        error = await _broken(client)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", "namespace")


async def test_a_server_that_stops_sends_its_watchers_to_another(database_url: str) -> None:
    async with serving(database_url) as server, watching(server) as client:
        await client.watch(missing := new_id())
        await client.read(lambda: missing in client.unknown)
        stopping = asyncio.create_task(server.stop())
        error = await _broken(client)
        await stopping
    assert error.code == "UNAVAILABLE"


async def _broken(client: Watching) -> Any:
    """The error with which the stream ends."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await client.read(lambda: False)
    return calls.error_from(raised.value)
