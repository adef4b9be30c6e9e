"""Tells clients how the runs they watch ended. Ends that were committed here are told from memory; those of other
servers are asked for, once for all watched runs, on their notice and every second, whatever notices were lost. A run
that goes on as another is followed. It reads alone, and asks one question at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from itertools import islice

import structlog

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure, Payload
from kagzi.protocol.v1.workflow_pb2 import WatchWorkflowsRequest, WatchWorkflowsResponse
from kagzi.server.api import checks
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.watch import Watch
from kagzi.store import namespaces, rows, watches
from kagzi.store.database import Database
from kagzi.store.errors import Refused, Unreachable, invalid
from kagzi.store.notices import key_hash
from kagzi.store.operation import Ended, Kind, Operation
from kagzi.store.watches import Stand

log = structlog.get_logger(__name__)

# A lone question is asked at once; those of the same moment share a statement.
_GAP = 0.02
# Runs of one statement, and bytes of outputs that are read at a time.
_MOST_AT_ONCE = 5_000
_OUTPUT_BYTES = 4 << 20
# Runs that began in this server, and ends, that are remembered, and how large an end may be.
_BORN = 10_000
_RECENT = 1_024
_RECENT_BYTES = 8_192
# Runs that one stream may watch.
_MOST_WATCHED = 100_000

# Who watches a run, and by which id it was asked for.
_Entry = tuple[Watch, str]


class Watchers(Loop):
    """All watches of this server."""

    name = "watchers"

    def __init__(self, database: Database, *, interval: float = 1.0) -> None:
        super().__init__()
        self._database = database
        self._interval = interval
        # By namespace and the run whose end is awaited.
        self._runs: defaultdict[str, dict[str, list[_Entry]]] = defaultdict(dict)
        self._by_hash: dict[str, str] = {}
        # Runs to ask about because nobody did yet, and namespaces in which something ended elsewhere.
        self._unasked: defaultdict[str, set[str]] = defaultdict(set)
        self._noticed: set[str] = set()
        self._watches: set[Watch] = set()
        self._recent: OrderedDict[tuple[str, str], Ended] = OrderedDict()
        # Runs of this server that live as far as anybody has said: whoever watches one need not ask for it.
        self._born: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._wakeup = Wakeup()

    async def serve(self, requests: AsyncIterator[WatchWorkflowsRequest]) -> AsyncIterator[WatchWorkflowsResponse]:
        """Serves one stream until the client leaves, or has said all and heard all."""
        first = await _first(requests)
        if first is None:
            return
        namespace = checks.namespace(first.namespace)
        await self._database.read(lambda c: namespaces.get(c, namespace))
        watch = Watch(namespace)
        self._watches.add(watch)
        reading = asyncio.create_task(self._read(watch, first, requests), name="kagzi-watch-read")
        reading.add_done_callback(lambda _: watch.ready.set())
        try:
            while not self.stopping.is_set():
                frames = watch.take()
                for frame in frames:
                    yield frame
                self._offer_again(watch)
                # Only a look that found nothing to send may end or wait: more can come while frames are sent.
                if not frames and reading.done() and (reading.cancelled() or reading.exception() or not watch.asked):
                    reading.result()
                    return
                if not frames:
                    await watch.ready.wait()
            raise Refused(_stopping())
        finally:
            reading.cancel()
            self._watches.discard(watch)
            self._forget(watch, list(watch.asked))
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, watch: Watch, first: WatchWorkflowsRequest, requests: AsyncIterator[WatchWorkflowsRequest]
    ) -> None:
        self._hear(watch, first)
        async for request in requests:
            self._hear(watch, request)

    def _hear(self, watch: Watch, request: WatchWorkflowsRequest) -> None:
        if request.namespace not in ("", watch.namespace):
            message = f"this stream watches runs of namespace {watch.namespace!r}: open another for others"
            raise invalid("namespace", message, request.namespace)
        self._forget(watch, [checks.uuid(run_id, "unwatch") for run_id in request.unwatch])
        wanted = [checks.uuid(run_id, "watch") for run_id in request.watch]
        if len(watch.asked) + len(wanted) > _MOST_WATCHED:
            raise checks.exceeded("watch", f"one stream watches at most {_MOST_WATCHED} runs: open another")
        runs = self._runs[watch.namespace]
        self._by_hash[key_hash(watch.namespace)] = watch.namespace
        for run_id in wanted:
            if run_id not in watch.asked:
                watch.asked[run_id] = run_id
                runs.setdefault(run_id, []).append((watch, run_id))
        known = [one for run_id in wanted if (one := self._recent.get((watch.namespace, run_id))) is not None]
        self._pass_on(watch.namespace, known)
        born = self._born[watch.namespace]
        self._ask(watch.namespace, [run_id for run_id in wanted if run_id in runs and run_id not in born])

    def applied(self, namespace: str, operations: Sequence[Operation]) -> None:
        """Operations of this server, right after the commit."""
        born = self._born[namespace]
        if not born:
            self._by_hash[key_hash(namespace)] = namespace
        for operation in operations:
            if operation.kind is Kind.START and not operation.refused:
                born[operation.run_id] = None
        while len(born) > _BORN:
            born.popitem(last=False)

    def ended(self, namespace: str, ended: Sequence[Ended]) -> None:
        """Runs that ended in this server, right after the commit."""
        born = self._born[namespace]
        for one in ended:
            born.pop(one.run_id, None)
        if self._watches:
            self._pass_on(namespace, ended)
            self._remember(namespace, ended)

    def _pass_on(self, namespace: str, ended: Sequence[Ended]) -> None:
        """Tells of ends that are known here."""
        runs = self._runs[namespace]
        for one in ended:
            if one.run_id not in runs:
                continue
            if one.continued_as is not None:
                self._move(namespace, one.run_id, one.continued_as)
            elif one.status != "COMPLETED" and one.error is None:
                self._ask(namespace, [one.run_id])
            else:
                self._tell(namespace, one.run_id, one.status, one.output, rows.failure(one.error))

    def _remember(self, namespace: str, ended: Sequence[Ended]) -> None:
        """Whoever starts a short run asks for its end when that is over: what was just known is not asked for."""
        for one in ended:
            size = len(one.error or "") + (len(one.output.data) if one.output is not None else 0)
            if size <= _RECENT_BYTES:
                self._recent[namespace, one.run_id] = one
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    def heard(self, key: str | None) -> None:
        """A notice of another server: something ended in the namespace with this hash; None: anywhere."""
        if key is None:
            self._noticed.update(self._runs)
            self._born.clear()
        elif key in self._by_hash:
            self._noticed.add(self._by_hash[key])
            self._born.pop(self._by_hash[key], None)
        if self._noticed:
            self._wakeup.set()

    async def stop(self, grace: float = 0.0) -> None:
        """Ends every stream, so that clients go to another server."""
        self.stopping.set()
        for watch in self._watches:
            watch.ready.set()
        await super().stop(grace)

    async def run(self) -> None:
        tick = time.monotonic()
        while not self.stopping.is_set():
            await self._wakeup.wait(max(0.0, tick + self._interval - time.monotonic()))
            if time.monotonic() >= tick + self._interval:
                tick = time.monotonic()
                self._noticed.update(self._runs)
            began = time.monotonic()
            unasked, self._unasked = self._unasked, defaultdict(set)
            noticed, self._noticed = self._noticed, set()
            try:
                for namespace, run_ids in unasked.items():
                    await self._look(namespace, run_ids & self._runs[namespace].keys(), live=True)
                for namespace in noticed:
                    await self._look(namespace, self._runs[namespace].keys() - unasked[namespace], live=False)
            except Unreachable:
                log.warning("watchers_wait_for_database")
                for namespace, run_ids in unasked.items():
                    self._unasked[namespace] |= run_ids
            # However many are watched, asking takes a fifth of one connection's time at most.
            await asyncio.sleep(max(_GAP, 4 * (time.monotonic() - began)))

    async def _look(self, namespace: str, run_ids: Iterable[str], *, live: bool) -> None:
        """Asks how runs stand and tells of those that ended. With `live` all are answered that exist."""
        ids = iter(list(run_ids))
        while part := list(islice(ids, _MOST_AT_ONCE)):
            stands = await self._database.read(partial(watches.ends, namespace=namespace, run_ids=part, live=live))
            if live:
                for run_id in set(part) - {stand.asked_id for stand in stands}:
                    for watch, asked in tuple(self._runs[namespace].get(run_id, ())):
                        self._forget(watch, [asked])
                        watch.unknown(asked)
            for stand in stands:
                if stand.run_id != stand.asked_id:
                    self._move(namespace, stand.asked_id, stand.run_id, ask=False)
            await self._tell_ended(namespace, [stand for stand in stands if stand.ended])

    async def _tell_ended(self, namespace: str, stands: Sequence[Stand]) -> None:
        part: list[Stand] = []
        size = 0
        for stand in (*stands, None):
            if part and (stand is None or size + stand.output_bytes > _OUTPUT_BYTES):
                finals = [one.run_id for one in part if one.output_bytes]
                outputs: dict[str, Payload] = {}
                if finals:
                    outputs = await self._database.read(partial(watches.outputs, namespace=namespace, run_ids=finals))
                for one in part:
                    self._tell(namespace, one.run_id, one.status, outputs.get(one.run_id), one.failure)
                part, size = [], 0
            if stand is not None:
                part.append(stand)
                size += stand.output_bytes

    def _tell(self, namespace: str, run_id: str, status: str, output: Payload | None, failure: Failure | None) -> None:
        for watch, asked in tuple(self._runs[namespace].get(run_id, ())):
            if watch.offer(asked, run_id, status, output, failure):
                self._forget(watch, [asked])

    def _offer_again(self, watch: Watch) -> None:
        """The client has read: what found no room before is asked for again."""
        if watch.declined:
            self._ask(watch.namespace, [watch.asked[asked] for asked in watch.declined if asked in watch.asked])
            watch.declined.clear()

    def _move(self, namespace: str, run_id: str, to: str, *, ask: bool = True) -> None:
        """The run goes on as another; whoever watches it watches that from now on."""
        runs = self._runs[namespace]
        entries = runs.pop(run_id, [])
        for watch, asked in entries:
            watch.asked[asked] = to
        if entries:
            runs.setdefault(to, []).extend(entries)
            if ask:
                self._ask(namespace, [to])

    def _ask(self, namespace: str, run_ids: Sequence[str]) -> None:
        if run_ids:
            self._unasked[namespace].update(run_ids)
            self._wakeup.set()

    def _forget(self, watch: Watch, asked_ids: Iterable[str]) -> None:
        runs = self._runs[watch.namespace]
        for asked in asked_ids:
            run_id = watch.asked.pop(asked, None)
            watch.declined.discard(asked)
            entries = runs.get(run_id) if run_id is not None else None
            if entries is not None and run_id is not None:
                entries.remove((watch, asked))
                if not entries:
                    del runs[run_id]


async def _first(requests: AsyncIterator[WatchWorkflowsRequest]) -> WatchWorkflowsRequest | None:
    async for request in requests:
        return request
    return None


def _stopping() -> ErrorDetail:
    message = "this server is stopping: watch at another, or again in a moment"
    return ErrorDetail(code=ErrorDetail.UNAVAILABLE, message=message, retry_after_ms=500)
