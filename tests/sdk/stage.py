"""A stage for workers: real servers in this process or in one of their own, and a recorder, which is a gRPC server that
keeps every frame it reads and answers only what a test tells it to.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Self

import asyncpg
import grpc
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as workflows_pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, Payload
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceServicer, add_WorkerServiceServicer_to_server
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk.definition import Workflow, workflow
from kagzi.sdk.outbox import Answered
from kagzi.sdk.post import Post
from kagzi.sdk.shift import Shift
from kagzi.server.app import Server
from kagzi.server.settings import Settings

MAIN = "from kagzi.cli import main; main()"


@contextlib.asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[Server]:
    """A server in this process."""
    server = Server(Settings(server_port=0, **settings), url)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


class ServerProcess:
    """A server in a process of its own, to be killed and started again on its port."""

    def __init__(self, url: str, lease: float = 1.5) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._environment = {
            **os.environ,
            "KAGZI_DB_URL": url,
            "KAGZI_SERVER_PORT": str(self.port),
            "KAGZI_HTTP_PORT": "0",
            "KAGZI_WORKER_VISIBILITY_TIMEOUT_SECS": str(lease),
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "server", "--log-level", "error"],
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert "listens" in self._process.stdout.readline()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Recorder(WorkerServiceServicer):
    """Takes streams and heartbeats of workers, keeps what they say, and says what it is told."""

    def __init__(self) -> None:
        self.hellos: list[pb.Hello] = []
        self.frames: list[pb.ConnectRequest] = []
        self.heartbeats: list[pb.HeartbeatRequest] = []
        self.goodbyes = 0
        self.answers = True
        self.lease_ms = 30_000
        self.refusal: grpc.StatusCode | None = None
        # How heartbeats are refused, and what they are told besides.
        self.silence: grpc.StatusCode | None = None
        self.news = pb.HeartbeatResponse()
        self.refused = 0
        self._news = asyncio.Condition()
        self._out: asyncio.Queue[pb.ConnectResponse | None] = asyncio.Queue()
        self.address = ""
        self.keys: set[str] = set()

    @property
    def operations(self) -> list[pb.Operation]:
        return [operation for frame in self.frames for operation in frame.operations]

    @property
    def credit(self) -> int:
        return sum(frame.credit for frame in self.frames)

    def say(self, frame: pb.ConnectResponse | None) -> None:
        """Sends a frame on the present stream; None ends it."""
        self._out.put_nowait(frame)

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(condition)

    def _note_key(self, context: Any) -> None:
        self.keys.add(dict(context.invocation_metadata() or ()).get("authorization", ""))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def Connect(self, request_iterator: Any, context: Any) -> AsyncIterator[pb.ConnectResponse]:
        self._note_key(context)
        if self.refusal is not None:
            self.refused += 1
            await self._tell()
            await context.abort(self.refusal, "told to refuse")
        self._out = asyncio.Queue()
        first = await anext(request_iterator)
        self.hellos.append(first.hello)
        reader = asyncio.create_task(self._read(request_iterator))
        yield pb.ConnectResponse(
            welcome=pb.RegisterResponse(
                worker_id=str(uuid.uuid4()), lease_ms=self.lease_ms, heartbeat_interval_ms=self.lease_ms // 3, now_us=1
            )
        )
        await self._tell()
        try:
            while (frame := await self._out.get()) is not None:
                yield frame
        finally:
            reader.cancel()

    async def _read(self, requests: Any) -> None:
        async for frame in requests:
            self.frames.append(frame)
            if self.answers and frame.operations:
                self.say(pb.ConnectResponse(accepted=[operation.number for operation in frame.operations]))
            await self._tell()

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        self._note_key(context)
        if self.silence is not None:
            self.refused += 1
            await self._tell()
            await context.abort(self.silence, "told to refuse")
        self.heartbeats.append(request)
        await self._tell()
        answer = pb.HeartbeatResponse(now_us=1, lease_until_us=1 + self.lease_ms * 1_000)
        answer.MergeFrom(self.news)
        return answer

    async def Deregister(self, request: pb.DeregisterRequest, context: Any) -> pb.DeregisterResponse:
        self.goodbyes += 1
        return pb.DeregisterResponse()


@contextlib.asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    server = grpc.aio.server()
    recorder = Recorder()  # type: ignore[abstract]  # what it does not have is answered UNIMPLEMENTED
    add_WorkerServiceServicer_to_server(recorder, server)
    recorder.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield recorder
    finally:
        await server.stop(0)


def delivery(**fields: Any) -> pb.Delivery:
    """A run as a server would hand it over."""
    given = {"run_id": str(uuid.uuid4()), "claim_token": str(uuid.uuid4()), "workflow_type": "idle"}
    return pb.Delivery(**{**given, "now_us": 1, "lease_until_us": 1 + 30_000_000, **fields})


@workflow
async def idle(ctx: Any) -> None:
    """A workflow whose execution a test stands in for."""


def post(address: str, *served: Workflow[Any, Any], **options: Any) -> Post:
    given = dict.fromkeys(("queue", "namespace", "api_key", "tls", "drain_timeout", "labels"))
    return Post.resolve(address, **{**given, "concurrency": 3, "codecs": (), "workflows": served or (idle,), **options})


class StandIn:
    """An execution that does nothing but what a test makes it do."""

    def __init__(self, delivered: pb.Delivery, definition: Workflow[Any, Any], host: Shift) -> None:
        self.run_id = delivered.run_id
        self.token = delivered.claim_token
        self.delivery = delivered
        self.host = host
        self.facts: list[pb.Fact] = []
        self.begun = self.cancelled = self.dropped = self.interrupted = False

    def begin(self) -> None:
        self.begun = True

    def wake(self, facts: Sequence[pb.Fact]) -> None:
        self.facts.extend(facts)

    def cancel(self, request: pb.CancelRequested) -> None:
        self.cancelled = True

    def drop(self) -> None:
        self.dropped = True
        self.host.done(self)

    def interrupt(self) -> None:
        self.interrupted = True
        self.finish("release", pb.Release(operation_id=str(uuid.uuid4())))

    def step(self, name: str, answered: Answered | None = None, data: bytes = b"1") -> None:
        """Sends the result of a step."""
        self.host.send(self, "step_completed", completed(name, data), answered)

    def finish(self, name: str = "complete", body: Message | None = None) -> None:
        """Gives the run away."""
        self.host.send(self, name, body or pb.Complete(operation_id=str(uuid.uuid4())))
        self.host.done(self)


def completed(name: str, data: bytes = b"1", position: int = 1) -> pb.StepCompleted:
    return pb.StepCompleted(
        step_id=name,
        attempt_id=str(uuid.uuid4()),
        kind=FUNCTION,
        attempt_number=1,
        position=position,
        completed_seq=position,
        output=Payload(data=data),
    )


class Crew:
    """A shift whose runs are stand-ins."""

    def __init__(self, post: Post) -> None:
        self.runs: list[StandIn] = []
        self._news = asyncio.Event()
        self.shift = Shift(post, self._execute)

    def _execute(self, delivered: pb.Delivery, definition: Any, host: Shift) -> StandIn:
        self.runs.append(StandIn(delivered, definition, host))
        self._news.set()
        return self.runs[-1]

    async def run(self, number: int = 0) -> StandIn:
        """The run that arrived as this one, once it has."""
        async with asyncio.timeout(60):
            while len(self.runs) <= number:
                self._news.clear()
                await self._news.wait()
        return self.runs[number]


@contextlib.asynccontextmanager
async def on_shift(post: Post) -> AsyncIterator[Crew]:
    """A worker without its executions, from its first hello to its goodbye."""
    crew = Crew(post)
    crew.shift.heartbeat.start()
    link = asyncio.create_task(crew.shift.link.run())
    try:
        yield crew
    finally:
        link.cancel()
        await asyncio.wait({link})
        await crew.shift.close()


class Caller:
    """Starts runs and looks at them, over the wire and in the database."""

    def __init__(self, address: str, url: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.max_reconnect_backoff_ms", 200),))
        self._url = url
        self._stub = WorkflowServiceStub(self._channel)

    async def start(self, kind: Workflow[Any, Any], data: bytes | None = None) -> str:
        request = workflows_pb.StartWorkflowRequest(workflow_type=kind.name)
        if data is not None:
            request.input.CopyFrom(Payload(data=data))
        return (await self._stub.StartWorkflow(request, wait_for_ready=True)).run_id

    async def signal(self, run_id: str, name: str) -> None:
        request = workflows_pb.SignalWorkflowRequest(run_id=run_id, name=name, signal_id=str(uuid.uuid4()))
        await self._stub.SignalWorkflow(request)

    async def fetch(self, query: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._url)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()

    async def until(self, query: str, *values: object, seconds: float = 60) -> list[asyncpg.Record]:
        """The rows, once there are some."""
        connection = await asyncpg.connect(self._url)
        try:
            async with asyncio.timeout(seconds):
                while not (rows := await connection.fetch(query, *values)):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            return list(rows)
        finally:
            await connection.close()

    async def ended(self, *run_ids: str, seconds: float = 60) -> list[str]:
        """How the runs ended, once all have."""
        await self.until(
            "select 1 from kagzi.workflow_runs where run_id = any ($1::uuid[]) and finished_at is not null "
            "having count(*) = $2",
            list(run_ids),
            len(run_ids),
            seconds=seconds,
        )
        rows = await self.fetch("select run_id::text, status from kagzi.workflow_runs")
        statuses = {row["run_id"]: row["status"] for row in rows}
        return [statuses[run_id] for run_id in run_ids]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()


async def until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits for what nobody tells of: effects of bodies, lines of logs, files of other processes."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def child(*command: str, env: dict[str, str] | None = None, cwd: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone afterwards; it prints to a pipe."""
    process = subprocess.Popen(
        command, env={**os.environ, **(env or {})}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()
