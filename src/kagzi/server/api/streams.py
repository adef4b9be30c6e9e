"""All streams of a server: who is connected, and who is told what arrived for the runs its worker holds. One loop looks
for all runs at once, however many signals came.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.server.api.missed import Missed
from kagzi.server.api.stream import Stream
from kagzi.server.batcher import Batcher
from kagzi.server.dispatcher import Dispatcher
from kagzi.server.enrolment import Enrolment, pairs
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.store import facts
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable, invalid
from kagzi.store.notices import key_hash
from kagzi.store.operation import Ended
from kagzi.store.workers import Pair


class Streams(Loop):
    """All streams of this server, and the loop that tells their workers of what arrives for the runs they hold."""

    name = "streams"

    def __init__(self, database: Database, enrolment: Enrolment, batcher: Batcher, dispatcher: Dispatcher) -> None:
        super().__init__()
        self._database = database
        self._enrolment = enrolment
        self._batcher = batcher
        self._dispatcher = dispatcher
        self._streams: dict[tuple[str, str], Stream] = {}
        # Runs that something arrived for, by namespace.
        self._wanted: defaultdict[str, set[str]] = defaultdict(set)
        self._missed = Missed()
        self._teller = Wakeup()
        self._stopping = False

    @property
    def connected(self) -> int:
        """How many workers have a stream."""
        return len(self._streams)

    async def serve(self, requests: AsyncIterator[pb.ConnectRequest]) -> AsyncIterator[pb.ConnectResponse]:
        """Serves one stream until it ends."""
        first = await _first(requests)
        hello = first.hello
        enrolled = await self._enrolment.register(hello.worker)
        namespace = enrolled.served.namespace
        held = pairs(hello.held, "hello.held")
        residents = pairs(hello.residents, "hello.residents")
        key = (namespace, enrolled.worker_id)
        self._close_older(key)
        renewal = await self._enrolment.resume(namespace, enrolled.worker_id, held)
        # Another one may have come meanwhile.
        self._close_older(key)
        # What the worker itself gave away is not lost to it: it only has not heard the answer.
        over = {*renewal.lost, *renewal.ended}
        kept = [pair for pair in held if pair not in over]
        concurrency = hello.worker.concurrency
        stream = Stream(enrolled, kept, residents, concurrency, self._batcher, self._dispatcher, self._arrived)
        stream.welcome(enrolled.response, renewal.lost, drain=enrolled.should_drain or self._stopping)
        self._streams[key] = stream
        await self._catch_up(namespace, stream, kept)
        try:
            async for frame in stream.serve(first, requests):
                yield frame
        finally:
            if self._streams.get(key) is stream:
                del self._streams[key]
            stream.close("the stream ended")

    async def _catch_up(self, namespace: str, stream: Stream, kept: Sequence[Pair]) -> None:
        """Tells a worker that came back what arrived while it was away, and was told to nobody."""
        if kept:
            with contextlib.suppress(Unreachable):
                there = await self._database.read(lambda c: facts.of(c, namespace, [run_id for run_id, _ in kept]))
                for run_id, token in kept:
                    stream.wake(run_id, token, there.get(run_id, ()))

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
        held = [stream.held for (of, _), stream in self._streams.items() if of == namespace]
        here = {run_id for run_id in run_ids if any(run_id in runs for runs in held)}
        self._want(namespace, here)
        for run_id in run_ids:
            if run_id not in here:
                self._missed.note(key_hash(namespace, run_id))

    def ended(self, namespace: str, ended: Sequence[Ended]) -> None:
        """These runs are over: who keeps one in memory can let it go."""
        for (of, _), stream in self._streams.items():
            if of == namespace and stream.residents:
                for one in ended:
                    stream.outlived(one.run_id)

    def _arrived(self, namespace: str, run_id: str) -> None:
        """A worker here holds the run from now on."""
        if self._missed and self._missed.takes(key_hash(namespace, run_id)):
            self._want(namespace, {run_id})

    def _want(self, namespace: str, run_ids: set[str]) -> None:
        if run_ids:
            self._wanted[namespace] |= run_ids
            self._teller.set()

    def heard(self, key: str | None) -> None:
        """A notice of another server: something arrived for a run; None: for any that waits."""
        held = False
        for (namespace, _), stream in self._streams.items():
            here = (
                stream.waiting
                if key is None
                else {run_id for run_id in stream.held if key_hash(namespace, run_id) == key}
            )
            held = held or bool(here)
            self._want(namespace, here)
        if key is not None and not held:
            self._missed.note(key)

    async def run(self) -> None:
        while True:
            await self._teller.wait()
            wanted, self._wanted = self._wanted, defaultdict(set)
            for namespace, run_ids in wanted.items():
                with contextlib.suppress(Unreachable):
                    await self._tell(namespace, run_ids)

    async def _tell(self, namespace: str, run_ids: set[str]) -> None:
        """Looks once for all runs that something arrived for. What is missed here comes with a heartbeat."""
        asked = list(run_ids)
        there = await self._database.read(lambda c: facts.of(c, namespace, asked))
        tokens = await self._database.read(lambda c: facts.tokens(c, namespace, asked))
        for (of, _), stream in list(self._streams.items()):
            for run_id in run_ids & stream.held.keys() if of == namespace else ():
                token = stream.held[run_id]
                current, last = tokens.get(run_id, ("", ""))
                if token not in (current, last):
                    stream.lease_lost(run_id, token)
                # Given away by its worker itself: the answer to that is on its way.
                elif token == current and run_id in there:
                    stream.wake(run_id, token, there[run_id])

    def close(self) -> None:
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
