"""The stream: WorkerService.Connect. Frames of many operations in, frames of many answers and deliveries out.
Whatever is there when a frame can be written travels in it. Every end of a stream is a drop: its credits are void,
what it had not acknowledged is put back, and the worker goes on over another.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from kagzi import faults
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.automation_pb2 import (
    GotEvents,
    HandlerCommitted,
    MutationBegun,
    MutationFinished,
    PeekedEvents,
    PrepareCommitted,
)
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.api import operations
from kagzi.server.api.deliveries import chunks
from kagzi.server.api.outlet import FRAME_BYTES, Outlet
from kagzi.server.batcher import Batcher
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.enrolment import Enrolled
from kagzi.store import rows
from kagzi.store.errors import Refused
from kagzi.store.operation import GIVING_AWAY, Kind, Operation

log = structlog.get_logger(__name__)

# A run whose delivery was not acknowledged by then is put back, and its stream closed.
_DELIVERED_WITHIN = 5.0
# A worker that does not say for so long that it has what it was sent gets nothing more until it does.
_TRUSTED = 0.5
# A long history takes its time over a slow network: bytes a second, for all that is on its way.
_SLOWEST = 128 * 1024
# A stream that says nothing for so long is closed.
_SILENCE = 15.0
# A blocked write is given this long to end once its stream is closed.
_LAST_WRITE = 1.0
# Places of a worker that does not say how many it has.
_PLACES = 1_000
# As many runs of a worker are remembered to be in its memory; of others it is told the history.
_MOST_RESIDENTS = 20_000


class Stream:
    """One worker's stream: a place with as much room as the worker gave credit for."""

    def __init__(
        self,
        enrolled: Enrolled,
        held: Iterable[tuple[str, str]],
        residents: Iterable[tuple[str, str]],
        concurrency: int,
        batcher: Batcher,
        dispatcher: Dispatcher,
        arrived: Callable[[str, str], None],
    ) -> None:
        self.worker_id = enrolled.worker_id
        self.served = enrolled.served
        self.free = 0
        self.lends = True
        # Runs the worker holds, by id, with their tokens.
        self.held: dict[str, str] = dict(held)
        # Suspended runs it says it keeps in memory, with the tokens they were suspended with.
        self.residents: dict[str, str] = dict(residents)
        # Runs that want to be told of facts while they go on.
        self.waiting: set[str] = set()
        self._batcher = batcher
        self._dispatcher = dispatcher
        # Called with namespace and run when the worker gets hold of one.
        self._arrived = arrived
        self._most = concurrency or _PLACES
        self._out = Outlet()
        # Facts that this stream was told of already, by run.
        self._told: defaultdict[str, set[str]] = defaultdict(set)
        self._writer: asyncio.Task[Any] | None = None
        self._undelivered: dict[str, _Undelivered] = {}
        # Their size in all.
        self._under_way = 0
        # Free places that are not given out while something sent stays unacknowledged.
        self._withheld = 0
        self._closed = asyncio.Event()
        self._heard_at = time.monotonic()

    async def serve(
        self, first: pb.ConnectRequest, requests: AsyncIterator[pb.ConnectRequest]
    ) -> AsyncIterator[pb.ConnectResponse]:
        """Reads, watches, and gives out frames until one of them ends."""
        self._writer = asyncio.current_task()
        self._dispatcher.join(self)
        tasks = [
            asyncio.create_task(self._read(first, requests), name="kagzi-stream-read"),
            asyncio.create_task(self._watch(), name="kagzi-stream-watch"),
        ]
        for task in tasks:
            task.add_done_callback(lambda _: self.close("the stream ended"))
        try:
            while not self._closed.is_set():
                await self._out.ready()
                while (frame := self._out.take()) is not None and not self._closed.is_set():
                    yield frame
            for task in tasks:
                error = task.exception() if task.done() and not task.cancelled() else None
                if isinstance(error, Refused):
                    raise error
        finally:
            self._writer = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, first: pb.ConnectRequest, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        await self._hear(first)
        async for frame in requests:
            await self._hear(frame)

    async def _hear(self, frame: pb.ConnectRequest) -> None:
        self._heard_at = time.monotonic()
        if faults.ON:
            faults.reach("stream.frame")
        for run in frame.delivered:
            if (arrived := self._undelivered.pop(run.claim_token, None)) is not None:
                self._under_way -= arrived.size
                self._trust()
        for run in frame.evicted:
            self._evicted(run.run_id, run.claim_token)
        if frame.credit:
            self.free = min(self.free + frame.credit, self._most)
            self._dispatcher.freed(self)
        if frame.operations:
            # A full queue, or a worker that does not read, stops the reading of this stream, never the stream.
            await self._batcher.room()
            await self._out.room()
            for message in frame.operations:
                self._submit(message)

    def _submit(self, message: pb.Operation) -> None:
        number = message.number
        try:
            operation = operations.of_frame(self.served.namespace, message)
        except Refused as refused:
            operation = operations.refused_in_frame(self.served.namespace, message, refused.detail)
        if operation.kind is Kind.COMMIT_HANDLER:
            operation.sender = (self.served.task_queue, self.worker_id)
        elif message.WhichOneof("body") == "wait":
            self.waiting.add(message.run_id)
        self._batcher.submit(operation, lambda done: self._done(number, done))

    def _done(self, number: int, operation: Operation) -> None:
        if operation.kind in GIVING_AWAY and not operation.refused:
            self._given_away(operation)
        answer = operation.answer
        if isinstance(answer, pb.WaitAnswer):
            answer = pb.WaitAnswer(facts=self._news(operation.run_id, answer.facts))
        self._answer(number, answer)

    def _given_away(self, operation: Operation) -> None:
        run_id, token = operation.run_id, operation.token
        # The repeat of a suspension may be answered when the run is here again, under another token.
        if self.held.get(run_id) == token:
            self._forget(run_id)
        if operation.kind is Kind.SUSPEND and operation.body.kept and token is not None:
            self.residents.pop(run_id, None)
            self.residents[run_id] = token
            if len(self.residents) > _MOST_RESIDENTS:
                del self.residents[next(iter(self.residents))]

    def _evicted(self, run_id: str, token: str | None) -> None:
        if self.residents.get(run_id) == token:
            self.residents.pop(run_id, None)

    def _forget(self, run_id: str) -> None:
        self.held.pop(run_id, None)
        self.waiting.discard(run_id)
        self._told.pop(run_id, None)

    def _answer(self, number: int, answer: Any) -> None:
        field = _ANSWERS.get(type(answer))
        if field is None or _says_no_more(answer):
            self._out.frame(_NUMBER_BYTES).accepted.append(number)
            return
        message = pb.Answer(number=number, **{field: answer})
        self._out.frame(message.ByteSize()).answers.append(message)

    def deliver(self, delivery: pb.Delivery) -> None:
        """A claimed run for this worker."""
        if self._closed.is_set():
            self._dispatcher.abandon(self.served.namespace, [(delivery.run_id, delivery.claim_token)])
            return
        self.held[delivery.run_id] = delivery.claim_token
        self.residents.pop(delivery.run_id, None)
        size = delivery.ByteSize()
        self._under_way += size
        until = time.monotonic() + _DELIVERED_WITHIN + self._under_way / _SLOWEST
        run = _Undelivered(delivery.run_id, time.monotonic(), until, size, delivery.now_us, delivery.lease_until_us)
        self._undelivered[delivery.claim_token] = run
        self._told[delivery.run_id] = {_identity(fact) for fact in delivery.facts}
        for chunk in chunks(delivery, FRAME_BYTES):
            self._out.frame(chunk.ByteSize()).deliveries.append(chunk)
        self._arrived(self.served.namespace, delivery.run_id)

    async def _watch(self) -> None:
        """Ends a stream that is silent or does not acknowledge what it was sent."""
        while True:
            now = time.monotonic()
            late = [one.run_id for one in self._undelivered.values() if one.until < now]
            if late:
                self._undelivered = {token: replace(one, until=now) for token, one in self._undelivered.items()}
                log.warning("delivery_not_acknowledged", worker=self.worker_id, run=late[0], runs=len(late))
                return
            if now - self._heard_at > _SILENCE:
                log.warning("stream_silent", worker=self.worker_id)
                return
            self._doubt(now)
            await asyncio.sleep(1.0)

    def _doubt(self, now: float) -> None:
        """Withholds the free places of a worker that may stand still: runs that go there would only lose their leases,
        again and again where those are short.
        """
        if self.free > 0 and any(one.since + _TRUSTED < now for one in self._undelivered.values()):
            self._withheld += self.free
            self.free = 0

    def _trust(self) -> None:
        if self._withheld:
            self.free = min(self.free + self._withheld, self._most)
            self._withheld = 0
            self._dispatcher.freed(self)

    def welcome(self, response: pb.RegisterResponse, lost: Iterable[tuple[str, str]], *, drain: bool) -> None:
        """The first frame."""
        frame = self._out.frame(response.ByteSize())
        frame.welcome.CopyFrom(response)
        frame.drain = drain
        for run_id, token in lost:
            self._out.frame(_HELD_BYTES).lease_lost.add(run_id=run_id, claim_token=token)

    def wake(self, run_id: str, token: str, there: Sequence[pb.Fact]) -> None:
        """Facts for a run the worker holds, each once; a cancel request travels as what it is."""
        run = pb.Held(run_id=run_id, claim_token=token)
        for fact in self._news(run_id, there):
            if fact.HasField("cancel_requested"):
                self._out.frame(_HELD_BYTES).cancels.add(run=run, request=fact.cancel_requested)
            else:
                self._out.frame(_HELD_BYTES + fact.ByteSize()).wakes.add(run=run, facts=[fact])

    def _news(self, run_id: str, there: Sequence[pb.Fact]) -> list[pb.Fact]:
        """Those of the facts that this stream was not told of."""
        told = self._told[run_id]
        news = [fact for fact in there if _identity(fact) not in told]
        told.update(_identity(fact) for fact in news)
        return news

    def lease_lost(self, run_id: str, token: str) -> None:
        """The run is no longer this worker's."""
        if self.held.get(run_id) == token:
            self._forget(run_id)
        self._out.frame(_HELD_BYTES).lease_lost.add(run_id=run_id, claim_token=token)

    def outlived(self, run_id: str) -> None:
        """The run is over: if the worker keeps it in memory, that is of no more use."""
        token = self.residents.pop(run_id, None)
        if token is not None:
            self._out.frame(_HELD_BYTES).lease_lost.add(run_id=run_id, claim_token=token)

    def end(self) -> None:
        self.close("the server is stopping")

    def drain(self) -> None:
        """Asks the worker to take no more runs."""
        self.free = self._withheld = 0
        self.lends = False
        self._out.frame(1).drain = True

    def close(self, why: str) -> None:
        """Ends the stream: no more runs come here, and what did not arrive in time is put back."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._withheld = 0
        self.lends = False
        self._out.wake()
        self._dispatcher.leave(self)
        if self._writer is not None:
            # A write to a worker that does not read would keep the stream, and what it holds, for ever.
            asyncio.get_running_loop().call_later(_LAST_WRITE, self._cut_off)
        for token, one in self._undelivered.items():
            # It may have arrived, and only the word of it was lost: the worker says so in its next hello.
            self._dispatcher.abandon_later(
                self.served.namespace, (one.run_id, token), rows.moment(one.lease_until_us), one.patience
            )
        log.info("stream_closed", worker=self.worker_id, why=why)

    def _cut_off(self) -> None:
        if self._writer is not None:
            self._writer.cancel()


@dataclass(frozen=True, slots=True)
class _Undelivered:
    """A run that the worker has not said to have."""

    run_id: str
    since: float
    # When it is late.
    until: float
    size: int
    now_us: int
    lease_until_us: int

    @property
    def patience(self) -> float:
        """How long its worker, whose stream has ended, has left to say that it has it. Well within the lease: one that
        ran out would count as a crash.
        """
        lease = (self.lease_until_us - self.now_us) / 1_000_000
        return min(max(0.0, self.until - time.monotonic()), _DELIVERED_WITHIN, lease / 4)


_ANSWERS = {
    ErrorDetail: "refused",
    pb.StepFailedAnswer: "step_failed",
    pb.WaitAnswer: "wait",
    pb.StartChildAnswer: "start_child",
    pb.StepStartedAnswer: "step_started",
    pb.EndAnswer: "end",
    PeekedEvents: "peeked_events",
    GotEvents: "got_events",
    PrepareCommitted: "prepare_committed",
    MutationBegun: "mutation_begun",
    MutationFinished: "mutation_finished",
    HandlerCommitted: "handler_committed",
}
# What a number, or a run and its token, take in a frame.
_NUMBER_BYTES = 5
_HELD_BYTES = 80


def _says_no_more(answer: Any) -> bool:
    """Whether the answer says only that the operation took effect."""
    match answer:
        case pb.StepStartedAnswer():
            return not answer.HasField("wake_at_us")
        case pb.EndAnswer():
            return not answer.status
    return False


def _identity(fact: pb.Fact) -> str:
    """What makes a fact the same one."""
    match fact.WhichOneof("fact"):
        case "signal":
            return fact.signal.signal_id
        case "child_ended":
            return fact.child_ended.child_run_id
        case "step_resolved":
            return f"{fact.step_resolved.step_id}/{fact.step_resolved.step.attempt_id}"
        case kind:
            return str(kind)
