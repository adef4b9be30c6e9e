"""The stream: WorkerService.Connect. Frames of many operations in, frames of many answers and deliveries out.
Whatever is there when a frame can be written travels in it. Every end of a stream is a drop: its credits are void,
what it had not acknowledged is put back, and the worker goes on over another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import structlog

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.api import operations
from kagzi.server.api.deliveries import chunks
from kagzi.server.batcher import Batcher
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.enrolment import Enrolled, Enrolment, pairs
from kagzi.server.lifecycle import Wakeup
from kagzi.store import facts
from kagzi.store.database import Database
from kagzi.store.errors import Refused, Unreachable, invalid
from kagzi.store.operation import GIVING_AWAY, Operation

log = structlog.get_logger(__name__)

# A run whose delivery was not acknowledged by then is put back, and its stream closed.
_DELIVERED_WITHIN = 5.0
# A stream that says nothing for so long is closed.
_SILENCE = 15.0
# A frame is cut here; what is larger travels alone.
_FRAME_BYTES = 1 << 20


class Streams:
    """All streams of this server."""

    def __init__(self, database: Database, enrolment: Enrolment, batcher: Batcher, dispatcher: Dispatcher) -> None:
        self._database = database
        self._enrolment = enrolment
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._streams: dict[tuple[str, str], Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def serve(self, requests: AsyncIterator[pb.ConnectRequest]) -> AsyncIterator[pb.ConnectResponse]:
        """Serves one stream until it ends."""
        first = await _first(requests)
        hello = first.hello
        enrolled = await self._enrolment.register(hello.worker)
        namespace = enrolled.served.namespace
        held = pairs(hello.held, "hello.held")
        key = (namespace, enrolled.worker_id)
        self._close_older(key)
        lost = await self._enrolment.resume(namespace, enrolled.worker_id, held)
        # Another one may have come meanwhile.
        self._close_older(key)
        stream = Stream(enrolled, [pair for pair in held if pair not in lost], self._batcher, self._dispatcher)
        stream.welcome(enrolled.response, lost, drain=enrolled.should_drain or self._stopping)
        self._streams[key] = stream
        try:
            async for frame in stream.serve(first, requests):
                yield frame
        finally:
            if self._streams.get(key) is stream:
                del self._streams[key]
            stream.close("the stream ended")

    def _close_older(self, key: tuple[str, str]) -> None:
        older = self._streams.pop(key, None)
        if older is not None:
            older.close("a newer stream of the same worker took over")

    def drain(self, worker_id: str) -> None:
        """Asks the worker with this id to take no more runs."""
        for (_, known), stream in self._streams.items():
            if known == worker_id:
                stream.drain()

    def told(self, namespace: str, run_ids: Sequence[str]) -> None:
        """Something arrived for these runs; those that a worker here holds are told."""
        wanted = set(run_ids)
        for (stream_namespace, _), stream in list(self._streams.items()):
            if stream_namespace == namespace:
                here = [pair for pair in stream.held.items() if pair[0] in wanted]
                if here:
                    self._spawn(self._tell(namespace, stream, here))

    def heard(self, key: str | None) -> None:
        """A notice of another server: something arrived for a run. All held runs with waits are looked at."""
        for (namespace, _), stream in list(self._streams.items()):
            here = [pair for pair in stream.held.items() if pair[0] in stream.waiting]
            if here:
                self._spawn(self._tell(namespace, stream, here))

    async def _tell(self, namespace: str, stream: Stream, here: Sequence[tuple[str, str]]) -> None:
        with contextlib.suppress(Unreachable):
            run_ids = [pair[0] for pair in here]
            there = await self._database.read(lambda c: facts.of(c, namespace, run_ids))
            current = await self._database.read(lambda c: facts.held(c, namespace, run_ids))
            for run_id, token in here:
                if current.get(run_id) != token:
                    stream.lease_lost(run_id, token)
                elif run_id in there:
                    stream.wake(run_id, token, there[run_id])

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work, name="kagzi-tell")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Lets every worker go to another server: nothing new is handed out here."""
        self._stopping = True
        for stream in list(self._streams.values()):
            stream.close("the server is stopping")


async def _first(requests: AsyncIterator[pb.ConnectRequest]) -> pb.ConnectRequest:
    async for frame in requests:
        if not frame.HasField("hello"):
            break
        return frame
    raise invalid("hello", "the first frame of a stream says hello")


class Stream:
    """One worker's stream: a place with as much room as the worker gave credit for."""

    def __init__(
        self, enrolled: Enrolled, held: Iterable[tuple[str, str]], batcher: Batcher, dispatcher: Dispatcher
    ) -> None:
        self.worker_id = enrolled.worker_id
        self.served = enrolled.served
        self.free = 0
        # Runs the worker holds, by id, with their tokens.
        self.held: dict[str, str] = dict(held)
        # Runs that want to be told of facts while they go on.
        self.waiting: set[str] = set()
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._frame = pb.ConnectResponse()
        self._frame_size = 0
        self._full: list[pb.ConnectResponse] = []
        self._ready = Wakeup()
        self._undelivered: dict[str, tuple[str, float]] = {}
        self._closed = asyncio.Event()
        self._heard_at = time.monotonic()

    async def serve(
        self, first: pb.ConnectRequest, requests: AsyncIterator[pb.ConnectRequest]
    ) -> AsyncIterator[pb.ConnectResponse]:
        """Reads, watches, and gives out frames until one of them ends."""
        self._dispatcher.join(self)
        tasks = [
            asyncio.create_task(self._read(first, requests), name="kagzi-stream-read"),
            asyncio.create_task(self._watch(), name="kagzi-stream-watch"),
        ]
        for task in tasks:
            task.add_done_callback(lambda _: self._end())
        try:
            while not self._closed.is_set() and not any(task.done() for task in tasks):
                await self._ready.wait()
                for frame in self._take():
                    yield frame
            for task in tasks:
                error = task.exception() if task.done() and not task.cancelled() else None
                if isinstance(error, Refused):
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._ready.set()

    async def _read(self, first: pb.ConnectRequest, requests: AsyncIterator[pb.ConnectRequest]) -> None:
        await self._hear(first)
        async for frame in requests:
            await self._hear(frame)

    async def _hear(self, frame: pb.ConnectRequest) -> None:
        self._heard_at = time.monotonic()
        for run in frame.delivered:
            self._undelivered.pop(run.claim_token, None)
        if frame.credit:
            self.free += frame.credit
            self._dispatcher.freed(self)
        if frame.operations:
            # A full queue stops the reading of this stream, never the stream.
            await self._batcher.room()
            for message in frame.operations:
                self._submit(message)

    def _submit(self, message: pb.Operation) -> None:
        number = message.number
        try:
            operation = operations.of_frame(self.served.namespace, message)
        except Refused as refused:
            operation = operations.refused_in_frame(self.served.namespace, message, refused.detail)
        if message.WhichOneof("body") == "wait":
            self.waiting.add(message.run_id)
        self._batcher.submit(operation, lambda done: self._done(number, done))

    def _done(self, number: int, operation: Operation) -> None:
        if operation.kind in GIVING_AWAY and not operation.refused:
            self.held.pop(operation.run_id, None)
            self.waiting.discard(operation.run_id)
        self._answer(number, operation.answer)

    def _answer(self, number: int, answer: Any) -> None:
        match answer:
            case ErrorDetail():
                self._frame.answers.add(number=number, refused=answer)
            case pb.StepFailedAnswer():
                self._frame.answers.add(number=number, step_failed=answer)
            case pb.WaitAnswer():
                self._frame.answers.add(number=number, wait=answer)
            case pb.StartChildAnswer():
                self._frame.answers.add(number=number, start_child=answer)
            case pb.StepStartedAnswer() if answer.HasField("wake_at_us"):
                self._frame.answers.add(number=number, step_started=answer)
            case pb.EndAnswer() if answer.status:
                self._frame.answers.add(number=number, end=answer)
            case _:
                self._frame.accepted.append(number)
        self._ready.set()

    def deliver(self, delivery: pb.Delivery) -> None:
        """A claimed run for this worker."""
        if self._closed.is_set():
            self._dispatcher.abandon(self.served.namespace, [(delivery.run_id, delivery.claim_token)])
            return
        self.held[delivery.run_id] = delivery.claim_token
        self._undelivered[delivery.claim_token] = (delivery.run_id, time.monotonic() + _DELIVERED_WITHIN)
        for chunk in chunks(delivery, _FRAME_BYTES):
            size = chunk.ByteSize()
            if self._frame_size + size > _FRAME_BYTES:
                self._cut()
            self._frame.deliveries.append(chunk)
            self._frame_size += size
        self._ready.set()

    def _cut(self) -> None:
        self._full.append(self._frame)
        self._frame = pb.ConnectResponse()
        self._frame_size = 0

    def _take(self) -> list[pb.ConnectResponse]:
        self._cut()
        frames, self._full = self._full, []
        return frames

    async def _watch(self) -> None:
        """Ends a stream that is silent or does not acknowledge what it was sent."""
        while True:
            now = time.monotonic()
            late = [run_id for run_id, until in self._undelivered.values() if until < now]
            if late:
                log.warning("delivery_not_acknowledged", worker=self.worker_id, run=late[0], runs=len(late))
                return
            if now - self._heard_at > _SILENCE:
                log.warning("stream_silent", worker=self.worker_id)
                return
            await asyncio.sleep(1.0)

    def welcome(self, response: pb.RegisterResponse, lost: Iterable[tuple[str, str]], *, drain: bool) -> None:
        """The first frame."""
        self._frame.welcome.CopyFrom(response)
        for run_id, token in lost:
            self._frame.lease_lost.add(run_id=run_id, claim_token=token)
        self._frame.drain = drain
        self._ready.set()

    def wake(self, run_id: str, token: str, there: Sequence[pb.Fact]) -> None:
        """Facts for a run the worker holds; a cancel request travels as what it is."""
        run = pb.Held(run_id=run_id, claim_token=token)
        facts_left = [fact for fact in there if not fact.HasField("cancel_requested")]
        for fact in there:
            if fact.HasField("cancel_requested"):
                self._frame.cancels.add(run=run, request=fact.cancel_requested)
        if facts_left:
            self._frame.wakes.add(run=run, facts=facts_left)
        self._ready.set()

    def lease_lost(self, run_id: str, token: str) -> None:
        """The run is no longer this worker's."""
        if self.held.get(run_id) == token:
            del self.held[run_id]
        self._frame.lease_lost.add(run_id=run_id, claim_token=token)
        self._ready.set()

    def end(self) -> None:
        self.close("the server is stopping")

    def drain(self) -> None:
        """Asks the worker to take no more runs."""
        self.free = 0
        self._frame.drain = True
        self._ready.set()

    def close(self, why: str) -> None:
        """Ends the stream: no more runs come here, and what did not arrive is put back."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._ready.set()
        self._dispatcher.leave(self)
        late = [(run_id, token) for token, (run_id, _) in self._undelivered.items()]
        if late:
            self._dispatcher.abandon(self.served.namespace, late)
        log.info("stream_closed", worker=self.worker_id, why=why)
