"""A rig for workflows: a real server, a client, workers in this process and in processes of their own. A body tells the
test that it has begun, and waits to be let go, so that a test knows where a run is without waiting for time to pass.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import grpc

from kagzi import Client, Handle, Worker, Workflow
from kagzi.protocol.v1.workflow_pb2 import ResumeWorkflowRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk.codec import Codec
from kagzi.server.app import Server
from kagzi.server.settings import Settings
from tests.house.tree import ROOT

O = TypeVar("O")  # noqa: E741 - a workflow's output

# Patience with what must happen; a machine under load takes its time.
LONG = 60.0


class Rig:
    """One server on one database."""

    def __init__(self, url: str, server: Server, client: Client) -> None:
        self.url = url
        self.address = server.address
        self.client = client

    @contextlib.asynccontextmanager
    async def working(
        self,
        *workflows: Workflow[Any, Any],
        codecs: Sequence[Codec] = (),
        drain: float = 0,
        in_place: bool = True,
        **options: Any,
    ) -> AsyncIterator[Worker]:
        """A worker for these workflows; it gives back what it holds when it is left. Without `in_place` it gives a run
        back whenever that waits, however short.
        """
        worker = Worker(self.address, workflows=workflows, codecs=codecs, drain_timeout=drain, **options)
        async with worker:
            if not in_place:
                assert worker._shift is not None
                worker._shift.in_place_us = 0
            yield worker

    async def execute(self, workflow: Workflow[Any, O], input: Any = None, **options: Any) -> O:
        """Starts a run and waits for its result, but not for ever."""
        handle: Handle[O] = await self.client.start(workflow, input, **options)
        return await handle.result(timeout=LONG)

    async def fetch(self, query: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()

    async def until(self, query: str, *values: object) -> list[asyncpg.Record]:
        """The rows, once there are some."""
        connection = await asyncpg.connect(self.url)
        try:
            async with asyncio.timeout(LONG):
                while not (rows := await connection.fetch(query, *values)):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            return list(rows)
        finally:
            await connection.close()

    async def resume(self, handle: Handle[Any]) -> None:
        """Lets a parked run go on."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            await WorkflowServiceStub(channel).ResumeWorkflow(ResumeWorkflowRequest(run_id=handle.run_id))

    async def replay(self, handle: Handle[Any]) -> Any:
        """The output of a run that has ended, once its code has run again from its history, as if nobody had recorded
        the end.
        """
        await self.fetch(
            "update kagzi.workflow_runs set status = 'SLEEPING', available_at = 'infinity', finished_at = null, "
            "parked_hash = 'replay' where run_id = $1",
            handle.run_id,
        )
        await self.resume(handle)
        await self.until(
            "select 1 from kagzi.workflow_runs where run_id = $1 and finished_at is not null", handle.run_id
        )
        return (await handle.describe()).output

    async def sleeping(self, handle: Handle[Any]) -> Any:
        """What the run waits for, once it has been given back."""
        query = "select waiting::text from kagzi.workflow_runs where run_id = $1 and status = 'SLEEPING'"
        await self.until(query, handle.run_id)
        return (await handle.describe()).waiting

    async def records(self, handle: Handle[Any]) -> dict[str, str]:
        """The steps on record, in the order the code asked for them, with the status of their latest attempt."""
        return {step.step_id: str(step.status) for step in await handle.steps()}

    async def attempts(self, handle: Handle[Any], step_id: str) -> list[str]:
        """How every attempt of a step stands, those set aside too."""
        query = "select status from kagzi.step_runs where run_id = $1 and step_id = $2 order by attempt_number"
        return [row["status"] for row in await self.fetch(query, handle.run_id, step_id)]


@contextlib.asynccontextmanager
async def rigged(url: str, *, lease: float = 30.0, codecs: Sequence[Codec] = (), **settings: Any) -> AsyncIterator[Rig]:
    """A server and a client in this process."""
    server = Server(Settings(server_port=0, worker_visibility_timeout_secs=lease, **settings), url)
    await server.start()
    try:
        async with Client(server.address, codecs=codecs) as client:
            yield Rig(url, server, client)
    finally:
        await server.stop(0)


class Gate:
    """A place where bodies of this process wait until the test lets them go."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._open = asyncio.Event()

    async def arrival(self) -> Any:
        """Who came, once somebody has."""
        return await asyncio.wait_for(self._arrived.get(), LONG)

    def note(self, who: Any = None) -> None:
        """Somebody came, and does not wait."""
        self._arrived.put_nowait(who)

    async def wait(self, who: Any = None) -> Any:
        """Comes, and waits."""
        self._arrived.put_nowait(who)
        await self._open.wait()
        return who

    def open(self) -> None:
        self._open.set()


class Doomed:
    """A worker in a process of its own, to be killed. Its bodies speak by printing lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def says(self, beginning: str) -> str:
        """The next line with this beginning."""
        return await asyncio.wait_for(asyncio.to_thread(self._read, beginning), LONG)

    def _read(self, beginning: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(beginning):
                return line.strip()
        raise AssertionError(f"the worker ended without saying {beginning!r}")

    def kill(self) -> None:
        """SIGKILL; it is dead afterwards."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def doomed(rig: Rig, module: str, **environment: str) -> Iterator[Doomed]:
    """A worker for the workflows of a module, which ends with the block at the latest."""
    program = "from kagzi.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program, "worker", module, "--url", rig.address],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Doomed(process)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Marks:
    """A file that bodies of any process write to: what happened outside the engine."""

    VARIABLE = "KAGZI_TEST_MARKS"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.environment = {self.VARIABLE: str(path)}

    @classmethod
    def leave(cls, mark: str) -> None:
        """Called by a body."""
        with Path(os.environ[cls.VARIABLE]).open("a", encoding="utf-8") as file:
            file.write(f"{mark}\n")

    def read(self) -> list[str]:
        return self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
