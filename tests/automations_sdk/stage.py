"""A stage for handler runs: it plays the worker and the server to one run at a time, answers what the test says and
keeps what the run sent.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from google.protobuf.message import Message

from kagzi import Automation
from kagzi.automations.handlers import Handler
from kagzi.automations.run import HandlerRun
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload, Step
from kagzi.sdk.codec import Chain
from kagzi.sdk.residents import Residents

NOW_US = 1_900_000_000_000_000
# What the server says to an operation: the answer, or why it refuses.
Answer = Message | ErrorDetail | None

_FIELDS = {
    pb.PeekedEvents: "peeked_events",
    pb.GotEvents: "got_events",
    pb.PrepareCommitted: "prepare_committed",
    pb.MutationBegun: "mutation_begun",
    pb.MutationFinished: "mutation_finished",
    pb.HandlerCommitted: "handler_committed",
    ErrorDetail: "refused",
}


class Stage:
    """One run's worker and server."""

    def __init__(self, **answers: Callable[[Any], Answer] | Answer) -> None:
        self.namespace = "default"
        self.codecs = Chain()
        self.executor: Executor = ThreadPoolExecutor(2)
        self.in_place_us = 0
        self.residents = Residents(0)
        self.most_steps = 20_000
        self.sent: list[tuple[str, Any]] = []
        self.over = asyncio.Event()
        self.leased = True
        self.answers: dict[str, Callable[[Any], Answer] | Answer] = {
            "peek_events": pb.PeekedEvents(),
            "commit_prepare": pb.PrepareCommitted(),
            "begin_mutation": lambda begin: pb.MutationBegun(may_call=True, mutation=row(begin)),
            "finish_mutation": _finished,
            "commit_handler": pb.HandlerCommitted(),
            **answers,
        }

    def send(self, run: Any, name: str, body: Any, answered: Callable[[Any], None] | None = None) -> None:
        self.sent.append((name, body))
        given = self.answers.get(name)
        answer = given(body) if callable(given) else given
        if answered is None:
            return
        message = None if answer is None else worker.Answer(number=1, **{_FIELDS[type(answer)]: answer})  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(answered, message)

    def send_soon(self, run: Any, name: str, make: Callable[[], Message]) -> Callable[[], bool]:
        return lambda: True

    def may_begin(self, run: Any) -> bool:
        return self.leased

    def done(self, run: Any) -> None:
        self.over.set()

    def workflow(self, name: str) -> None: ...

    async def play(
        self, automation: Automation, handler: str, *history: Step, facts: tuple[worker.Fact, ...] = (), **task: Any
    ) -> HandlerRun:
        """Runs a handler to its end."""
        run = self.enter(automation, handler, *history, facts=facts, **task)
        run.begin()
        await asyncio.wait_for(self.over.wait(), 10)
        return run

    def enter(
        self, automation: Automation, handler: str, *history: Step, facts: tuple[worker.Fact, ...] = (), **task: Any
    ) -> HandlerRun:
        """A delivered run that has not begun."""
        delivery = worker.Delivery(
            run_id=str(uuid.uuid4()),
            claim_token=str(uuid.uuid4()),
            now_us=NOW_US,
            history=history,
            facts=facts,
            handler=pb.HandlerTask(automation=automation.name, handler=handler, **task),
        )
        return HandlerRun(delivery, found(automation, handler), self)

    @property
    def names(self) -> list[str]:
        """What the run sent, in order."""
        return [name for name, _ in self.sent]

    def body(self, name: str) -> Any:
        """The last operation of that name."""
        return next(body for sent, body in reversed(self.sent) if sent == name)


def found(automation: Automation, name: str) -> Handler:
    return next(handler for handler in automation.handlers if handler.name == name)


def row(begin: pb.BeginMutation, **changes: Any) -> pb.Mutation:
    """What the ledger holds after an intent was stored."""
    made = pb.Mutation(
        mutation_id=begin.mutation_id,
        tool=begin.tool,
        idempotency_key=begin.idempotency_key,
        parameters=begin.parameters,
        has_reconciler=begin.has_reconciler,
        status=pb.MUTATION_IN_FLIGHT,
    )
    made.MergeFrom(pb.Mutation(**changes))
    return made


def plain(value: Any) -> Payload:
    return Payload(data=json.dumps(value).encode())


def event(topic: str, event_id: str, value: Any = None) -> pb.HandlerEvent:
    return pb.HandlerEvent(topic=topic, event_id=event_id, payload=plain(value), status=pb.DELIVERY_PENDING)


def _finished(finish: pb.FinishMutation) -> pb.MutationFinished:
    match finish.verdict:
        case pb.FinishMutation.VERDICT_APPLIED:
            return pb.MutationFinished(status=pb.MUTATION_APPLIED)
        case pb.FinishMutation.VERDICT_NOT_APPLIED:
            return pb.MutationFinished(status=pb.MUTATION_FAILED)
    answer = pb.MutationFinished(status=pb.MUTATION_IN_FLIGHT)
    answer.check_at.FromMicroseconds(NOW_US + (10_000_000 if finish.from_reconciler else 0))
    return answer
