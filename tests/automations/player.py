"""A worker that speaks the stream and plays handlers: it looks, reserves, mutates and publishes as a test tells it,
with no code of the SDK in it. One task a run, so that what an automation must not do at once would show.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceStub
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure
from kagzi.protocol.v1.schedule_pb2 import ScheduleTiming
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from tests.automations.stage import data, new_id

OPTIONS = (("grpc.max_receive_message_length", -1),)


def polls(
    name: str = "poll", every_ms: int = 3_600_000, publishes: Sequence[str] = ("mail",), **given: Any
) -> pb.HandlerDefinition:
    timing = ScheduleTiming(every_ms=every_ms)
    return pb.HandlerDefinition(name=name, kind=pb.HANDLER_PRODUCER, timing=timing, publishes=publishes, **given)


def acts(
    name: str = "add", subscribes: Sequence[str] = ("mail",), publishes: Sequence[str] = ()
) -> pb.HandlerDefinition:
    return pb.HandlerDefinition(
        name=name, kind=pb.HANDLER_CONSUMER, subscribes=subscribes, publishes=publishes, mutates=True
    )


def defined(*handlers: pb.HandlerDefinition, name: str = "inbox", found: str = "1") -> pb.AutomationDefinition:
    return pb.AutomationDefinition(name=name, definition_hash=found, task_queue="default", handlers=handlers)


class Refused(Exception):
    """An operation was refused; `detail` says why."""

    def __init__(self, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.detail = detail


class Player:
    """One stream. `play` is what a delivered run does."""

    def __init__(self, channel: grpc.aio.Channel, definitions: Sequence[pb.AutomationDefinition], slots: int) -> None:
        self.automations = AutomationServiceStub(channel)
        self.definitions = definitions
        # What was played: automation and handler, in order; and how many runs of each automation at once at most.
        self.played: list[tuple[str, str]] = []
        self.triggers: list[int] = []
        self.deliveries: list[worker.Delivery] = []
        self.failures: list[str] = []
        self.most = 0
        self._at_once: Counter[str] = Counter()
        self._slots = slots
        self._call = WorkerServiceStub(channel).Connect()
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._number = 0
        self._reading: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        types = [
            worker.ServedType(name=f"{definition.name}.{handler.name}")
            for definition in self.definitions
            for handler in definition.handlers
        ]
        hello = worker.RegisterRequest(instance=new_id(), types=types, concurrency=self._slots)
        await self._send(hello=worker.Hello(worker=hello), credit=self._slots)
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        tasks = [*self._tasks, *([self._reading] if self._reading else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._call.cancel()

    async def until(self, condition: Any, within: float = 60.0) -> None:
        async with asyncio.timeout(within):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def _send(self, **fields: Any) -> None:
        async with self._writing:
            await self._call.write(worker.ConnectRequest(**fields))

    async def _read(self) -> None:
        with suppress(grpc.aio.AioRpcError):
            async for frame in self._call:
                for number in frame.accepted:
                    self._answers.pop(number).set_result(None)
                for answer in frame.answers:
                    self._answers.pop(answer.number).set_result(getattr(answer, answer.WhichOneof("answer") or ""))
                for delivery in frame.deliveries:
                    self.deliveries.append(delivery)
                    task = asyncio.create_task(self._play(delivery))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

    async def _play(self, delivery: worker.Delivery) -> None:
        held = worker.Held(run_id=delivery.run_id, claim_token=delivery.claim_token)
        await self._send(delivered=[held])
        automation = delivery.handler.automation
        self._at_once[automation] += 1
        self.most = max(self.most, self._at_once[automation])
        try:
            await self.play(Run(self, delivery))
        except Refused as refused:
            await self._fail(delivery, refused)
        self._at_once[automation] -= 1
        self.played.append((automation, delivery.handler.handler))
        self.triggers.append(delivery.handler.trigger)
        self._news.set()
        await self._send(credit=1)

    async def _fail(self, delivery: worker.Delivery, refused: Refused) -> None:
        self.failures.append(refused.detail.message)
        body = worker.Fail(failure=Failure(type="Refused", message=refused.detail.message), operation_id=new_id())
        with suppress(Refused):
            await self.ask(delivery, fail=body)

    async def play(self, run: Run) -> None:
        """What a run does. A producer publishes nothing and a consumer takes one event, unless a test says more."""
        if run.task.kind == pb.HANDLER_PRODUCER:
            await run.commit()
        else:
            await run.consume()

    async def ask(self, delivery: worker.Delivery, **body: Any) -> Any:
        self._number += 1
        number = self._number
        future = self._answers[number] = asyncio.get_running_loop().create_future()
        operation = worker.Operation(number=number, run_id=delivery.run_id, claim_token=delivery.claim_token, **body)
        await self._send(operations=[operation])
        answer = await future
        if isinstance(answer, ErrorDetail):
            raise Refused(answer)
        return answer


class Run:
    """A run that is being played."""

    def __init__(self, player: Player, delivery: worker.Delivery) -> None:
        self.player = player
        self.delivery = delivery
        self.task = delivery.handler
        self._steps = 0

    def step(self, name: str) -> pb.PhaseStep:
        self._steps += 1
        return pb.PhaseStep(
            step_id=name, attempt_id=new_id(), attempt_number=1, position=self._steps, completed_seq=self._steps
        )

    async def ask(self, **body: Any) -> Any:
        return await self.player.ask(self.delivery, **body)

    async def peek(self, topic: str, limit: int = 1) -> list[pb.HandlerEvent]:
        return list((await self.ask(peek_events=pb.PeekEvents(topic=topic, limit=limit))).events)

    async def prepare(self, topic: str = "", *ids: str, **given: Any) -> Any:
        reserve = [pb.EventSelection(topic=topic, event_ids=ids)] if ids else []
        work = pb.PreparedWork(reserve=reserve, **given)
        return await self.ask(commit_prepare=pb.CommitPrepare(step=self.step("prepare"), prepared=work))

    async def mutate(self) -> None:
        step = self.step("mutate")
        mutation_id = new_id()
        begin = pb.BeginMutation(
            step=step, mutation_id=mutation_id, tool="append_row", idempotency_key=f"{self.delivery.run_id}/mutate"
        )
        assert (await self.ask(begin_mutation=begin)).may_call
        applied = pb.FinishMutation.VERDICT_APPLIED
        await self.ask(finish_mutation=pb.FinishMutation(step=step, mutation_id=mutation_id, verdict=applied))

    async def commit(self, *events: pb.EventPublication, state: Any = None) -> Any:
        inputs = [pb.InputRegistration(key=one.input) for one in events if one.HasField("input")]
        step = self.step("produce" if self.task.kind == pb.HANDLER_PRODUCER else "next")
        body = pb.CommitHandler(step=step, inputs=inputs, publishes=events)
        if state is not None:
            body.state.CopyFrom(data(state))
        return await self.ask(commit_handler=body)

    async def consume(self, *, mutates: bool = True) -> None:
        """Takes the oldest event of a topic that has one, mutates, and passes it on to what the handler publishes."""
        [handler] = [
            one
            for definition in self.player.definitions
            if definition.name == self.task.automation
            for one in definition.handlers
            if one.name == self.task.handler
        ]
        for topic in handler.subscribes:
            found = await self.peek(topic)
            if not found:
                continue
            await self.prepare(topic, found[0].event_id)
            if mutates:
                await self.mutate()
            onward = [
                pb.EventPublication(topics=[onto], event_id=found[0].event_id, payload=found[0].payload)
                for onto in handler.publishes
            ]
            await self.commit(*onward)
            return
        await self.prepare()
        await self.commit()


@asynccontextmanager
async def playing(
    address: str,
    *definitions: pb.AutomationDefinition,
    slots: int = 10,
    deploys: bool = True,
    kind: type[Player] = Player,
) -> AsyncIterator[Player]:
    """A worker at a server, with its automations deployed."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        player = kind(channel, definitions, slots)
        await player.open()
        if deploys:
            for definition in definitions:
                request = pb.DeployAutomationRequest(definition=definition, deployment_id=new_id())
                await player.automations.DeployAutomation(request)
        try:
            yield player
        finally:
            await player.close()
