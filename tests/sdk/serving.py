"""A real server in this process and a worker by hand: it speaks the stream as the SDK's worker does, but each run does
what the test says, in one frame. Runs of a type without a play are held until the test ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import uuid_utils
from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import FUNCTION, SIGNAL, Failure, Payload
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.server.app import Server
from kagzi.server.settings import Settings

# What a run does: bodies of operations by the name of their field, in order.
Play = Callable[[pb.Delivery], list[tuple[str, Message]]]


async def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    """Returns when the condition holds."""
    async with asyncio.timeout(within):
        while True:
            if condition():
                return
            await asyncio.sleep(0.002)


def new_id() -> str:
    return str(uuid_utils.uuid7())


def encoded(value: Any) -> Payload:
    return Payload(data=json.dumps(value).encode())


@contextlib.asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[Server]:
    """A server that stops when the test is over."""
    server = Server(Settings(**{"server_port": 0, "server_drain_timeout_secs": 1.0, **settings}), url)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def completed(value: Any = None) -> tuple[str, Message]:
    return "complete", pb.Complete(output=encoded(value), operation_id=new_id())


def failed(message: str = "out of stock", step: str = "") -> tuple[str, Message]:
    failure = Failure(type="ValueError", message=message, traceback="Traceback ...")
    return "fail", pb.Fail(failure=failure, failed_step_id=step, operation_id=new_id())


def continued(value: Any) -> tuple[str, Message]:
    return "continue_as_new", pb.ContinueAsNew(new_run_id=new_id(), input=encoded(value), operation_id=new_id())


def step(name: str, position: int, value: Any = None, *, seq: int = 0, **fields: Any) -> tuple[str, Message]:
    """A step with its result."""
    return "step_completed", pb.StepCompleted(
        step_id=name,
        attempt_id=new_id(),
        attempt_number=1,
        position=position,
        completed_seq=seq or position,
        output=encoded(value),
        **{"kind": FUNCTION, **fields},
    )


def step_failed(name: str, position: int, *, seq: int = 0, **fields: Any) -> tuple[str, Message]:
    """A step that failed for good."""
    failure = Failure(type="ValueError", message=f"{name} failed", non_retryable=True)
    return "step_failed", pb.StepFailed(
        step_id=name,
        attempt_id=new_id(),
        attempt_number=1,
        position=position,
        completed_seq=seq or position,
        failure=failure,
        **{"kind": FUNCTION, **fields},
    )


def waits_for(signal: str, position: int = 1) -> list[tuple[str, Message]]:
    """The run is suspended until the signal comes."""
    started = pb.StepStarted(
        step_id=signal, attempt_id=new_id(), attempt_number=1, kind=SIGNAL, position=position, target=signal
    )
    return [("step_started", started), ("suspend", pb.Suspend(step_ids=[signal], operation_id=new_id()))]


class Hand:
    """A worker of one stream."""

    def __init__(self, plays: dict[str, Play]) -> None:
        self.plays = plays
        # Runs that no play has given away, and everything that was delivered, in order.
        self.held: dict[str, pb.Delivery] = {}
        self.delivered: list[pb.Delivery] = []
        self.refused: list[pb.Answer] = []
        self._arrived = asyncio.Condition()
        self._numbers = itertools.count(1)
        self._call: Any = None
        self._writing = asyncio.Lock()

    async def run(self, address: str, types: list[str], welcomed: asyncio.Event) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            self._call = WorkerServiceStub(channel).Connect()
            served = [pb.ServedType(name=name) for name in types]
            worker = pb.RegisterRequest(instance=new_id(), types=served)
            await self._call.write(pb.ConnectRequest(hello=pb.Hello(worker=worker), credit=1_000))
            async for frame in self._call:
                if frame.HasField("welcome"):
                    welcomed.set()
                self.refused += [answer for answer in frame.answers if answer.HasField("refused")]
                await self._play(list(frame.deliveries))

    async def _play(self, deliveries: list[pb.Delivery]) -> None:
        for delivery in deliveries:
            self.delivered.append(delivery)
            play = self.plays.get(delivery.workflow_type)
            if play is None:
                self.held[delivery.run_id] = delivery
            # One frame a run: several large outputs in one would be larger than a message may be.
            operations = [] if play is None else self._operations(delivery, play(delivery))
            name = pb.Held(run_id=delivery.run_id, claim_token=delivery.claim_token)
            await self._write(pb.ConnectRequest(operations=operations, delivered=[name], credit=1))
        async with self._arrived:
            self._arrived.notify_all()

    async def _write(self, frame: pb.ConnectRequest) -> None:
        # A call takes one frame at a time.
        async with self._writing:
            await self._call.write(frame)

    def _operations(self, run: pb.Delivery, bodies: list[tuple[str, Message]]) -> list[pb.Operation]:
        operations = []
        for name, body in bodies:
            made = pb.Operation(number=next(self._numbers), run_id=run.run_id, claim_token=run.claim_token)
            getattr(made, name).CopyFrom(body)
            operations.append(made)
        return operations

    async def holds(self, run_id: str) -> pb.Delivery:
        """The held run, once it has arrived."""
        async with self._arrived:
            await asyncio.wait_for(self._arrived.wait_for(lambda: run_id in self.held), 10)
        return self.held[run_id]

    async def end(self, run_id: str, *bodies: tuple[str, Message]) -> None:
        """Does this for a held run, and lets go of it."""
        run = await self.holds(run_id)
        del self.held[run_id]
        await self._write(pb.ConnectRequest(operations=self._operations(run, list(bodies))))


@contextlib.asynccontextmanager
async def working(address: str, *held: str, **plays: Play) -> AsyncIterator[Hand]:
    """A worker for the types of `plays`, and for those of `held`, whose runs the test ends."""
    hand = Hand(plays)
    welcomed = asyncio.Event()
    task = asyncio.create_task(hand.run(address, [*plays, *held], welcomed))
    try:
        await asyncio.wait_for(welcomed.wait(), 10)
        yield hand
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def echo(delivery: pb.Delivery) -> list[tuple[str, Message]]:
    """Returns its input."""
    given = delivery.input if delivery.HasField("input") else None
    return [("complete", pb.Complete(output=given, operation_id=new_id()))]
