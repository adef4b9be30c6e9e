"""A whole server for a test, its database behind a proxy that counts, and a worker that speaks the stream by frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import grpc
from asyncpg.connection import Connection

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, ErrorDetail, Payload
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.server.app import Server
from kagzi.server.places import Group
from kagzi.server.settings import Settings
from tests.laws.operations import new_id
from tests.laws.world import SETTINGS
from tests.proxy import Proxy


class Place:
    """A server, a channel to it, the proxy its database is behind, and a connection of the test's own."""

    def __init__(self, server: Server, channel: grpc.aio.Channel, proxy: Proxy, connection: Connection) -> None:
        self.server = server
        self.proxy = proxy
        self.connection = connection
        self.workflows = WorkflowServiceStub(channel)
        self.workers = WorkerServiceStub(channel)

    async def start(self, **fields: Any) -> str:
        run_id: str = (await self.workflows.StartWorkflow(StartWorkflowRequest(workflow_type="order", **fields))).run_id
        return run_id

    async def status(self, run_id: str) -> str:
        status: str = await self.connection.fetchval("select status from kagzi.workflow_runs where run_id = $1", run_id)
        return status

    async def until(self, condition: str, *values: Any) -> None:
        async with asyncio.timeout(60):
            while not await self.connection.fetchval(condition, *values):  # noqa: ASYNC110 - a database tells nobody
                await asyncio.sleep(0.005)

    async def idle(self) -> None:
        """Waits until every queue that somebody serves was looked into and holds nothing more that is due."""
        async with asyncio.timeout(60):
            while not all(group.drained for group in self._groups()):  # noqa: ASYNC110 - nobody tells of a look
                await asyncio.sleep(0.005)

    def _groups(self) -> list[Group]:
        queues = self.server.dispatcher._queues.values()
        return [group for queue in queues for group in queue._groups.values()]


@asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[Place]:
    async with Proxy(url) as proxy:
        server = Server(Settings(server_port=0, **settings), proxy.url)
        await server.start()
        connection = await asyncpg.connect(url, server_settings=SETTINGS)
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                yield Place(server, channel, proxy, connection)
        finally:
            await connection.close()
            await server.stop(1.0)


class Worker:
    """One stream, spoken frame by frame."""

    def __init__(self, place: Place, instance: str | None = None) -> None:
        self.place = place
        self.instance = instance or new_id()
        self.frames: list[pb.ConnectResponse] = []
        self.sent = 0
        self._number = 0
        self._call = place.workers.Connect()
        self._news = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def hello(self, credit: int = 0, held: Sequence[pb.Held] = ()) -> None:
        worker = pb.RegisterRequest(instance=self.instance, types=[pb.ServedType(name="order")])
        await self.send(hello=pb.Hello(worker=worker, held=held), credit=credit)
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: any(frame.HasField("welcome") for frame in self.frames))

    async def send(self, **fields: Any) -> None:
        self.sent += 1
        await self._call.write(pb.ConnectRequest(**fields))

    def operation(self, run: pb.Held, **body: Any) -> pb.Operation:
        self._number += 1
        return pb.Operation(number=self._number, run_id=run.run_id, claim_token=run.claim_token, **body)

    async def _read(self) -> None:
        async for frame in self._call:
            self.frames.append(frame)
            self._news.set()
        self._news.set()

    @property
    def ended(self) -> bool:
        return self._reading is not None and self._reading.done()

    async def over(self) -> None:
        """Waits for the end of the stream."""
        assert self._reading is not None
        await asyncio.wait({self._reading})

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._news.clear()
                if self.ended:
                    raise AssertionError("the stream has ended")
                await self._news.wait()

    @property
    def deliveries(self) -> list[pb.Delivery]:
        return [delivery for frame in self.frames for delivery in frame.deliveries]

    @property
    def answers(self) -> dict[int, str]:
        """What each operation was told: OK, or the code of its refusal."""
        told = {number: "OK" for frame in self.frames for number in frame.accepted}
        for frame in self.frames:
            for answer in frame.answers:
                refused = answer.WhichOneof("answer") == "refused"
                told[answer.number] = ErrorDetail.Code.Name(answer.refused.code) if refused else "OK"
        return told

    async def answered(self, count: int) -> None:
        """Waits until so many operations have their answers."""
        await self.until(lambda: len(self.answers) == count)

    async def take(self, count: int = 1) -> list[pb.Held]:
        """Waits for so many deliveries in all and acknowledges them."""
        await self.until(lambda: len(self.deliveries) >= count)
        held = [pb.Held(run_id=one.run_id, claim_token=one.claim_token) for one in self.deliveries]
        await self.send(delivered=held)
        return held

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)


def step(position: int, **fields: Any) -> pb.StepCompleted:
    given = {
        "output": Payload(data=b"1"),
        "step_id": f"s{position}",
        "attempt_id": new_id(),
        "kind": FUNCTION,
        **fields,
    }
    return pb.StepCompleted(attempt_number=1, position=position, completed_seq=position, **given)


def end() -> pb.Complete:
    return pb.Complete(output=Payload(data=b"1"), operation_id=new_id())
