"""A stage for automations: the store's own functions to change one, a worker reduced to what it sends, and a look at
what is stored. Time moves by the database's clock alone; what only a test does is done over a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec
import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure, Payload
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.server.slots import next_slot
from kagzi.store import alarms, answers, batch, claims, controls, deployments
from kagzi.store.claims import Served
from kagzi.store.database import Database
from kagzi.store.deployments import Definition, Deployed, Handler
from kagzi.store.operation import BUSY, Kind, Operation, Outcome, Slot
from kagzi.store.queries import bound
from kagzi.store.rules import Rules

T = TypeVar("T")

NAMESPACE = "default"
QUEUE = "default"
LEASE = timedelta(seconds=30)
SETTINGS = {"search_path": "pg_catalog, pg_temp", "timezone": "UTC"}
TABLES = (
    "workflow_runs",
    "workflow_payloads",
    "step_runs",
    "automations",
    "handlers",
    "inputs",
    "events",
    "event_causes",
    "deliveries",
    "mutations",
)
RULES = Rules(next_slot=next_slot)
MAIL = pb.InputKey(source="gmail", type="email", id="m1")


def new_id() -> str:
    return str(uuid_utils.uuid7())


def data(value: Any) -> Payload:
    return Payload(data=msgspec.json.encode(value))


def producer(name: str = "poll", every: str = "300000", publishes: Sequence[str] = ("mail",), **given: Any) -> Handler:
    kind = given.pop("schedule_type", "interval")
    return Handler(name, "PRODUCER", publishes, (), False, kind, every, given.pop("timezone", "UTC"))


def consumer(name: str = "add", subscribes: Sequence[str] = ("mail",), publishes: Sequence[str] = ()) -> Handler:
    return Handler(name, "CONSUMER", publishes, subscribes, True)


def event(event_id: str, topic: str = "mail", value: Any = None, **given: Any) -> pb.EventPublication:
    return pb.EventPublication(topics=[topic], event_id=event_id, payload=data(value), **given)


@dataclass(slots=True)
class Held:
    """A handler run that a worker holds."""

    delivery: worker.Delivery
    steps: int = 0

    @property
    def run_id(self) -> str:
        return self.delivery.run_id

    @property
    def task(self) -> pb.HandlerTask:
        return self.delivery.handler

    @property
    def trigger(self) -> str:
        return pb.HandlerTrigger.Name(self.task.trigger).removeprefix("TRIGGER_").lower()

    def step(self, name: str) -> pb.PhaseStep:
        self.steps += 1
        return pb.PhaseStep(step_id=name, attempt_id=new_id(), attempt_number=1, position=self.steps)

    def operation(self, kind: Kind, body: Any, operation_id: str | None = None) -> Operation:
        token = self.delivery.claim_token
        return Operation(kind, NAMESPACE, self.run_id, body, token=token, operation_id=operation_id)


class Stage:
    """The store on a database of the test's own."""

    def __init__(self, database: Database, connection: Connection, url: str) -> None:
        self.database = database
        self.connection = connection
        self.url = url

    async def transact(self, work: Callable[[Connection, Outcome], Awaitable[T]]) -> T:
        async def transaction(connection: Connection) -> T:
            return await work(connection, Outcome())

        return await self.database.transact(transaction)

    async def deploy(
        self, *handlers: Handler, name: str = "inbox", found: str | None = None, deployment: str | None = None
    ) -> Deployed:
        """Puts a definition in force; its hash is new unless one is given."""
        definition = Definition(name, found or new_id(), QUEUE, handlers)
        return await self.transact(
            lambda c, outcome: deployments.deploy(c, NAMESPACE, definition, deployment or new_id(), outcome)
        )

    async def publish(self, *events: pb.EventPublication, name: str = "inbox") -> controls.Published:
        """Publishes from outside."""
        inputs = [pb.InputRegistration(key=one.input) for one in events if one.HasField("input")]
        request = pb.PublishRequest(name=name, events=events, inputs=inputs)
        return await self.transact(lambda c, outcome: controls.publish(c, NAMESPACE, request, outcome))

    async def flush(self, *given: Operation) -> list[Outcome]:
        return await batch.flush(self.database, NAMESPACE, given, LEASE, 5.0, RULES)

    async def ask(self, operation: Operation) -> Any:
        """Applies one operation and gives its answer; a refusal is a failure of the test."""
        await self.flush(operation)
        while operation.answer is BUSY:
            # As the batcher would.
            await asyncio.sleep(0.002)
            await self.flush(operation)
        assert not operation.refused, operation.answer
        return operation.answer

    async def refused(self, operation: Operation) -> ErrorDetail:
        await self.flush(operation)
        assert isinstance(operation.answer, ErrorDetail), operation.answer
        return operation.answer

    async def claim(self, *, expect: str | None = None) -> Held:
        """Claims the one handler run that is due."""
        held = await self.claim_all()
        assert len(held) == 1, [one.task for one in held]
        assert expect is None or held[0].task.handler == expect, held[0].task
        return held[0]

    async def claim_all(self, *, expired_too: bool = True) -> list[Held]:
        types = [
            row["workflow_type"]
            for row in await self.connection.fetch(
                "select distinct workflow_type from kagzi.workflow_runs where automation is not null"
            )
        ]
        served = Served(NAMESPACE, QUEUE, tuple(types), ("",) * len(types))
        found: list[Held] = []
        for suspects in (False, True):
            slots = [Slot(new_id(), new_id()) for _ in range(500)]

            async def claim(
                connection: Connection, slots: Sequence[Slot] = slots, suspects: bool = suspects
            ) -> list[Held]:
                outcome = Outcome()
                given = await claims.claim(
                    connection, served, slots, LEASE, outcome, expired_too=expired_too, suspects=suspects
                )
                return [Held(one.delivery) for one in given]

            found += await self.database.transact(claim)
        return found

    async def idle(self) -> None:
        """Nothing is there to claim."""
        assert await self.claim_all() == []

    def peeking(self, held: Held, topic: str = "mail", **given: Any) -> Operation:
        return held.operation(Kind.PEEK_EVENTS, pb.PeekEvents(topic=topic, **given))

    async def peek(self, held: Held, topic: str = "mail", **given: Any) -> pb.PeekedEvents:
        answer = await self.ask(self.peeking(held, topic, **given))
        assert isinstance(answer, pb.PeekedEvents)
        return answer

    def preparing(
        self,
        held: Held,
        reserve: Mapping[str, Sequence[str]] | None = None,
        wake_at: datetime | None = None,
        **given: Any,
    ) -> Operation:
        work = pb.PreparedWork(
            reserve=[pb.EventSelection(topic=topic, event_ids=ids) for topic, ids in (reserve or {}).items()], **given
        )
        if wake_at is not None:
            work.wake_at.FromDatetime(wake_at)
        return held.operation(Kind.COMMIT_PREPARE, pb.CommitPrepare(step=held.step("prepare"), prepared=work))

    async def prepare(self, held: Held, *ids: str, topic: str = "mail", **given: Any) -> pb.PrepareCommitted:
        answer = await self.ask(self.preparing(held, {topic: ids} if ids else None, **given))
        assert isinstance(answer, pb.PrepareCommitted)
        return answer

    def beginning(self, held: Held, *, reconciler: bool = True) -> Operation:
        body = pb.BeginMutation(
            step=held.step("mutate"),
            mutation_id=new_id(),
            tool="append_row",
            parameters=data(["reports"]),
            idempotency_key=f"{held.run_id}/mutate",
            has_reconciler=reconciler,
        )
        return held.operation(Kind.BEGIN_MUTATION, body)

    async def begin(self, held: Held, *, reconciler: bool = True) -> pb.MutationBegun:
        answer = await self.ask(self.beginning(held, reconciler=reconciler))
        assert isinstance(answer, pb.MutationBegun)
        return answer

    def finishing(
        self,
        held: Held,
        mutation_id: str,
        verdict: str,
        *,
        asked: bool = False,
        step: pb.PhaseStep | None = None,
        **given: Any,
    ) -> Operation:
        step = step or held.step("reconcile" if asked else "mutate")
        body = pb.FinishMutation(
            step=step,
            mutation_id=mutation_id,
            verdict=pb.FinishMutation.Verdict.Value(f"VERDICT_{verdict}"),
            from_reconciler=asked,
            **given,
        )
        return held.operation(Kind.FINISH_MUTATION, body)

    async def finish(self, held: Held, mutation_id: str, verdict: str, **given: Any) -> str:
        """Says what became of a mutation; gives what the ledger says then."""
        answer = await self.ask(self.finishing(held, mutation_id, verdict, **given))
        assert isinstance(answer, pb.MutationFinished)
        return pb.MutationStatus.Name(answer.status).removeprefix("MUTATION_")

    async def mutate(self, held: Held, verdict: str = "APPLIED", *, reconciler: bool = True, **given: Any) -> str:
        """Begins and finishes a mutation in one attempt; gives its id."""
        begin = self.beginning(held, reconciler=reconciler)
        await self.ask(begin)
        mutation_id: str = begin.body.mutation_id
        await self.ask(self.finishing(held, mutation_id, verdict, step=begin.body.step, **given))
        return mutation_id

    def committing(self, held: Held, *events: pb.EventPublication, state: Any = None) -> Operation:
        inputs = [pb.InputRegistration(key=one.input, title="mail") for one in events if one.HasField("input")]
        step = held.step("produce" if held.task.kind == pb.HANDLER_PRODUCER else "next")
        body = pb.CommitHandler(step=step, inputs=inputs, publishes=events)
        if state is not None:
            body.state.CopyFrom(data(state))
        return held.operation(Kind.COMMIT_HANDLER, body, step.attempt_id)

    async def commit(self, held: Held, *events: pb.EventPublication, state: Any = None) -> pb.HandlerCommitted:
        answer = await self.ask(self.committing(held, *events, state=state))
        assert isinstance(answer, pb.HandlerCommitted)
        return answer

    async def consume(self, held: Held, *ids: str, topic: str = "mail") -> None:
        """A whole consumer run that mutates nothing."""
        await self.prepare(held, *ids, topic=topic)
        await self.commit(held)

    def failing(self, held: Held, fault: str = "TRANSIENT", message: str = "no network") -> Operation:
        body = worker.Fail(
            failure=Failure(type="Error", message=message), fault=pb.HandlerFault.Value(f"FAULT_{fault}")
        )
        return held.operation(Kind.FAIL, body, new_id())

    async def fail(self, held: Held, fault: str = "TRANSIENT", message: str = "no network") -> None:
        await self.ask(self.failing(held, fault, message))

    async def resolve(self, mutation_id: str, answer: str, *, result: Any = None, name: str = "inbox") -> None:
        request = pb.ResolveMutationRequest(
            name=name,
            mutation_id=mutation_id,
            resolution=pb.ResolveMutationRequest.Resolution.Value(f"RESOLUTION_{answer}"),
        )
        if result is not None:
            request.result.CopyFrom(data(result))
        await self.transact(lambda c, outcome: answers.resolve(c, NAMESPACE, request, outcome))

    async def run_now(self, request_id: str | None = None, name: str = "inbox") -> list[str]:
        return await self.transact(
            lambda c, outcome: controls.run_now(c, NAMESPACE, name, request_id or new_id(), outcome)
        )

    @asynccontextmanager
    async def paused(self, name: str = "inbox") -> AsyncIterator[None]:
        """The automation is paused meanwhile."""
        await self.transact(lambda c, _: controls.pause(c, NAMESPACE, name))
        yield
        await self.transact(lambda c, outcome: controls.resume(c, NAMESPACE, name, outcome))

    @asynccontextmanager
    async def many(self, count: int = 4) -> AsyncIterator[list[Stage]]:
        """The same stage for several who act at once, each over connections of its own."""
        opened = [await Database(self.url, size=2).open() for _ in range(count)]
        yield [Stage(database, self.connection, self.url) for database in opened]
        for database in opened:
            await database.close()

    @contextmanager
    def counted(self) -> Iterator[list[str]]:
        """The statements that run over the stage's own connection meanwhile."""
        texts: list[str] = []

        ours = {query.text for query in bound}

        def note(query: Any) -> None:
            # What the driver asks to learn a type is asked once a connection.
            if query.query in ours:
                texts.append(query.query)

        with self.connection.query_logger(note):
            yield texts

    async def statements(self, *operations: Operation) -> int:
        """Applies operations in one transaction; gives how many statements that took, without begin and commit."""
        async with self.connection.transaction():
            with self.counted() as texts:
                await batch.apply(self.connection, NAMESPACE, operations, LEASE, RULES)
        return len(texts)

    async def contents(self) -> dict[str, list[str]]:
        """Everything that is stored, to compare."""
        return {
            table: [row[0] for row in await self.connection.fetch(f"select t::text from kagzi.{table} t order by 1")]  # noqa: S608
            for table in TABLES
        }

    async def ordinary(self) -> Held:
        """A run that is no handler's, held by a worker."""
        request = StartWorkflowRequest(run_id=new_id(), workflow_type="order", task_queue=QUEUE)
        start = Operation(Kind.START, NAMESPACE, request.run_id, request, slot=Slot(new_id(), new_id()))
        await self.flush(start)
        assert start.slot is not None
        return Held(worker.Delivery(run_id=start.run_id, claim_token=start.slot.token))

    async def live(self) -> int:
        count: int = await self.connection.fetchval(
            "select count(*) from kagzi.workflow_runs where status in ('PENDING', 'RUNNING', 'SLEEPING')"
        )
        return count

    async def ring(self, *, stranded: bool = False) -> int:
        """What the timer does: starts what is due by time alone; gives how many runs."""
        found = await self.database.read(lambda c: alarms.due(c, 100, stranded=stranded))
        started = 0
        for namespace, names in found.items():
            count, _ = await self.database.transact(partial(alarms.start, namespace=namespace, names=names))
            started += count
        return started

    async def move(self, **by: float) -> None:
        """The database's clock is so far ahead of the world from now on."""
        seconds = timedelta(**by).total_seconds()
        await self.connection.execute(
            "create or replace function kagzi.now() returns timestamptz language sql stable parallel safe"
            f" as $$ select statement_timestamp() + interval '{seconds} s' $$"
        )

    async def now(self) -> datetime:
        now: datetime = await self.connection.fetchval("select kagzi.now()")
        return now

    async def handler(self, name: str, automation: str = "inbox") -> Record:
        row = await self.connection.fetchrow(
            "select *, extract(epoch from wake_at - kagzi.now())::float8 as wakes_in,"
            " extract(epoch from next_run_at - kagzi.now())::float8 as runs_in,"
            " extract(epoch from not_before - kagzi.now())::float8 as waits_for"
            " from kagzi.handlers where automation = $1 and name = $2",
            automation,
            name,
        )
        assert row is not None
        return row

    async def automation(self, name: str = "inbox") -> Record:
        row = await self.connection.fetchrow("select * from kagzi.automations where name = $1", name)
        assert row is not None
        return row

    async def delivery(self, event_id: str, consumer: str = "add", topic: str = "mail") -> Record:
        row = await self.connection.fetchrow(
            "select * from kagzi.deliveries where event_id = $1 and consumer = $2 and topic = $3",
            event_id,
            consumer,
            topic,
        )
        assert row is not None
        return row

    async def status(self, run_id: str) -> str:
        status: str = await self.connection.fetchval("select status from kagzi.workflow_runs where run_id = $1", run_id)
        return status

    async def mutation(self, mutation_id: str) -> Record:
        row = await self.connection.fetchrow("select * from kagzi.mutations where mutation_id = $1", mutation_id)
        assert row is not None
        return row

    async def expire(self, run_id: str) -> None:
        """The lease ran out a second ago."""
        await self.connection.execute(
            "update kagzi.workflow_runs set available_at = kagzi.now() - interval '1 s' where run_id = $1", run_id
        )
