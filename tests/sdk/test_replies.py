"""The reply to an operation is lost: the operation is sent again, to the same server or to another, and takes effect
once. A proxy between worker and server waits for the server's answer, which means that the operation is durable, and
ends the stream instead of passing it on.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, SIGNAL, SLEEP, Failure
from kagzi.protocol.v1.worker_pb2_grpc import (
    WorkerServiceServicer,
    WorkerServiceStub,
    add_WorkerServiceServicer_to_server,
)
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from tests.sdk.stage import Caller, StandIn, completed, idle, on_shift, post, serving, until


class Proxy(WorkerServiceServicer):
    """Passes everything on, but not the first reply to an operation of the kind `drops`."""

    def __init__(self, upstream: str) -> None:
        self._channel = grpc.aio.insecure_channel(upstream)
        self._stub = WorkerServiceStub(self._channel)
        self.drops = ""
        self.dropped = 0
        self.address = ""

    async def Connect(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ConnectResponse]:
        call = self._stub.Connect()
        waited_for: set[int] = set()
        forward = asyncio.create_task(self._forward(request_iterator, call, waited_for))
        try:
            while isinstance(frame := await call.read(), pb.ConnectResponse):
                if not waited_for.isdisjoint([*frame.accepted, *(answer.number for answer in frame.answers)]):
                    self.drops = ""
                    self.dropped += 1
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply is lost")
                yield frame
        finally:
            forward.cancel()
            call.cancel()

    async def _forward(self, requests: Any, call: Any, waited_for: set[int]) -> None:
        async for frame in requests:
            for operation in frame.operations:
                if operation.WhichOneof("body") == self.drops:
                    waited_for.add(operation.number)
            await call.write(frame)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        return await self._stub.Heartbeat(request)

    async def Deregister(self, request: pb.DeregisterRequest, context: Any) -> pb.DeregisterResponse:
        return await self._stub.Deregister(request)

    async def close(self) -> None:
        await self._channel.close()


@contextlib.asynccontextmanager
async def before(upstream: str) -> AsyncIterator[Proxy]:
    server = grpc.aio.server()
    proxy = Proxy(upstream)  # type: ignore[abstract]  # what it does not have is answered UNIMPLEMENTED
    add_WorkerServiceServicer_to_server(proxy, server)
    proxy.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield proxy
    finally:
        await server.stop(0)
        await proxy.close()


def identified(message: Any, **fields: Any) -> Any:
    return message(operation_id=str(uuid.uuid4()), **fields)


def started(**fields: Any) -> pb.StepStarted:
    given = {"step_id": "s", "attempt_id": str(uuid.uuid4()), "attempt_number": 1, "position": 1}
    return pb.StepStarted(**{**given, **fields})


def failed() -> pb.StepFailed:
    return pb.StepFailed(
        step_id="s",
        attempt_id=str(uuid.uuid4()),
        kind=FUNCTION,
        attempt_number=1,
        position=1,
        completed_seq=1,
        failure=Failure(type="ValueError", message="no"),
    )


def child() -> pb.StartChild:
    started_run = StartWorkflowRequest(workflow_type="child", run_id=str(uuid.uuid4()))
    return pb.StartChild(step_id="s", attempt_id=str(uuid.uuid4()), position=1, child=started_run)


@dataclass(frozen=True)
class Kind:
    """An operation, what must be sent before it, and what the database holds when it took effect once."""

    name: str
    body: Callable[[], Any]
    proof: str
    expected: tuple[Any, ...]
    first: tuple[str, Callable[[], Any]] | None = None
    gives_away: bool = False


STEPS = "select step_id, attempt_number, status from kagzi.step_runs"
RUN = "select status from kagzi.workflow_runs order by created_at limit 1"
SLEEPER = ("step_started", lambda: started(kind=SLEEP, duration_ms=60_000))
KINDS = [
    Kind("step_started", lambda: started(kind=SLEEP, duration_ms=60_000), STEPS, ("s", 1, "RUNNING")),
    Kind("step_completed", lambda: completed("s"), STEPS, ("s", 1, "COMPLETED")),
    Kind("step_failed", failed, STEPS, ("s", 1, "FAILED")),
    Kind(
        "wait",
        lambda: pb.Wait(step_ids=["s"]),
        STEPS,
        ("s", 1, "RUNNING"),
        ("step_started", lambda: started(kind=SIGNAL, target="go")),
    ),
    Kind(
        "set_state",
        lambda: pb.SetState(state_json="{}", number=1),
        "select state_number from kagzi.workflow_runs",
        (1,),
    ),
    Kind("start_child", child, "select count(*) from kagzi.workflow_runs where workflow_type = 'child'", (1,)),
    Kind("suspend", lambda: identified(pb.Suspend, step_ids=["s"]), RUN, ("SLEEPING",), SLEEPER, gives_away=True),
    Kind("complete", lambda: identified(pb.Complete), RUN, ("COMPLETED",), gives_away=True),
    Kind("fail", lambda: identified(pb.Fail, failure=Failure(type="E")), RUN, ("FAILED",), gives_away=True),
    Kind(
        "continue_as_new",
        lambda: identified(pb.ContinueAsNew, new_run_id=str(uuid.uuid4())),
        "select count(*), count(continued_as) from kagzi.workflow_runs",
        (2, 1),
        gives_away=True,
    ),
    Kind(
        "release",
        lambda: identified(pb.Release),
        "select count(*), max(crashes) from kagzi.workflow_runs",
        (1, 0),
        gives_away=True,
    ),
]


async def lose_reply(run: StandIn, kind: Kind) -> pb.Answer | None:
    """Sends the operation and gives back what its sender heard in the end."""
    heard: asyncio.Queue[pb.Answer | None] = asyncio.Queue()
    if kind.first is not None:
        run.host.send(run, kind.first[0], kind.first[1]())
    run.host.send(run, kind.name, kind.body(), heard.put_nowait)
    if kind.gives_away:
        run.host.done(run)
    answer = await asyncio.wait_for(heard.get(), 10)
    assert heard.empty()
    return answer


@pytest.mark.parametrize("where", ["the same server", "another server"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_an_operation_whose_reply_was_lost_takes_effect_once(database_url: str, kind: Kind, where: str) -> None:
    async with (
        serving(database_url) as first,
        serving(database_url) as second,
        before(first.address) as proxy,
        before(second.address) as other,
        Caller(first.address, database_url) as caller,
    ):
        targets = proxy.address if where == "the same server" else f"{proxy.address},{other.address}"
        async with on_shift(post(targets)) as crew:
            proxy.drops = kind.name
            await caller.start(idle)
            run = await crew.run()
            answer = await lose_reply(run, kind)
            assert proxy.dropped == 1
            assert answer is None or not answer.HasField("refused")
            assert [tuple(row) for row in await caller.fetch(kind.proof)] == [kind.expected]
            if kind.gives_away:
                await until(lambda: run.token not in crew.shift.leases.by_token)
            else:
                assert crew.shift.may_begin(run)
            assert not run.dropped
