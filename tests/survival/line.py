"""A worker's stream by hand: every frame is written by the test, and everything that came back is kept."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

import grpc
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, SIGNAL, Payload
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub

# What these workers serve.
TYPE = "by-hand"


class Line:
    """One stream of the worker `instance`, which serves one type."""

    def __init__(
        self,
        address: str,
        workflow_type: str,
        instance: str = "",
        held: tuple[pb.Held, ...] = (),
        residents: tuple[pb.Held, ...] = (),
    ) -> None:
        self.instance = instance or str(uuid.uuid4())
        self._address = address
        self._type = workflow_type
        self._held = held
        self._residents = residents
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._numbers = itertools.count(1)
        self.frames: list[pb.ConnectResponse] = []
        self.ended = False

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        """The bare call, after its hello."""
        async with grpc.aio.insecure_channel(self._address) as channel:
            call: Any = WorkerServiceStub(channel).Connect()
            await call.write(self._hello())
            yield call

    def _hello(self) -> pb.ConnectRequest:
        worker = pb.RegisterRequest(instance=self.instance, types=[pb.ServedType(name=self._type)])
        return pb.ConnectRequest(hello=pb.Hello(worker=worker, held=self._held, residents=self._residents))

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._address)
        self._call = WorkerServiceStub(self._channel).Connect()
        await self._call.write(self._hello())
        self._reading = asyncio.create_task(self._read())
        await self.until(lambda: bool(self.frames))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._channel is not None
        assert self._reading is not None
        self._call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                self.frames.append(frame)
                await self._tell()
        except grpc.aio.AioRpcError:
            pass
        finally:
            self.ended = True
            await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(condition)

    async def write(self, **fields: Any) -> None:
        await self._call.write(pb.ConnectRequest(**fields))

    async def send(self, run: pb.Held, name: str, body: Message) -> int:
        """Sends one operation and answers its number."""
        number = next(self._numbers)
        field: dict[str, Any] = {name: body}
        operation = pb.Operation(number=number, run_id=run.run_id, claim_token=run.claim_token, **field)
        await self.write(operations=[operation])
        return number

    async def answer(self, number: int) -> pb.Answer | None:
        """The answer to an operation; None when it was plainly accepted."""
        await self.until(lambda: number in self.accepted or number in self.answers)
        return self.answers.get(number)

    async def delivery(self, count: int = 1, *, acknowledge: bool = True) -> pb.Delivery:
        """The delivery with this count, once it is there."""
        await self.until(lambda: len(self.deliveries) >= count)
        found = self.deliveries[count - 1]
        if acknowledge:
            await self.write(delivered=[held(found)])
        return found

    @property
    def deliveries(self) -> list[pb.Delivery]:
        return [delivery for frame in self.frames for delivery in frame.deliveries]

    @property
    def accepted(self) -> list[int]:
        return [number for frame in self.frames for number in frame.accepted]

    @property
    def answers(self) -> dict[int, pb.Answer]:
        return {answer.number: answer for frame in self.frames for answer in frame.answers}

    @property
    def lost(self) -> list[pb.Held]:
        return [run for frame in self.frames for run in frame.lease_lost]

    @property
    def facts(self) -> list[pb.Fact]:
        return [fact for frame in self.frames for wake in frame.wakes for fact in wake.facts]


def held(delivery: pb.Delivery) -> pb.Held:
    """The run and its token."""
    return pb.Held(run_id=delivery.run_id, claim_token=delivery.claim_token)


def result(name: str, position: int) -> pb.StepCompleted:
    """The result of a step, which is 1."""
    return pb.StepCompleted(
        step_id=name,
        attempt_id=str(uuid.uuid4()),
        kind=FUNCTION,
        attempt_number=1,
        position=position,
        completed_seq=position,
        output=Payload(data=b"1"),
    )


def awaiting(name: str, position: int) -> pb.StepStarted:
    """The wait for a signal."""
    return pb.StepStarted(
        step_id=name, attempt_id=str(uuid.uuid4()), attempt_number=1, kind=SIGNAL, position=position, target=name
    )


def completed() -> pb.Complete:
    """The end of a run."""
    return pb.Complete(output=Payload(data=b"1"), operation_id=str(uuid.uuid4()))


async def suspend(line: Line, run: pb.Held, *, kept: bool = True) -> pb.Held:
    """Records a step and suspends the run until the signal "go"."""
    await line.send(run, "step_completed", result("one", 1))
    await line.send(run, "step_started", awaiting("go", 2))
    suspension = pb.Suspend(step_ids=["go"], operation_id=str(uuid.uuid4()), kept=kept)
    answer = await line.answer(await line.send(run, "suspend", suspension))
    assert answer is not None
    assert not answer.HasField("refused")
    return run
