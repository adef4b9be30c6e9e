"""Group commit. Operations of all callers gather in lanes by namespace and run, and share transactions. An operation
that was taken is applied and answered, whatever becomes of its caller. What waits is bounded, so that overload is
slow and never memory. A run that somebody else has locked waits apart, and nobody waits with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Protocol

import structlog
from google.protobuf.message import Message

from kagzi import faults
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.announcer import Announcer
from kagzi.server.fallen import Fallen
from kagzi.server.lane import Entry
from kagzi.server.lanes import Lanes
from kagzi.store import batch, histories
from kagzi.store.database import Database
from kagzi.store.errors import Refused, Unreachable
from kagzi.store.operation import Busy, Claimed, Kind, Operation, Outcome, Slot
from kagzi.store.rules import Rules

log = structlog.get_logger(__name__)

# A run that somebody else has locked is tried again after this, then less and less often.
_SIDE_PAUSE = 0.004
_SIDE_PAUSE_MAX = 0.2
# Kinds after which a run begins that can be handed over at once.
_STARTING = frozenset({Kind.START, Kind.COMMIT_HANDLER})
_RULES = Rules()


class HandOver(Protocol):
    """Free places at connected workers, for runs that can begin as they are stored."""

    def reserve(self, operation: Operation) -> Slot | None: ...

    def hand_over(self, start: Operation, slot: Slot) -> None: ...

    def deliver(self, claimed: Claimed) -> None: ...

    def restore(self, slot: Slot) -> None: ...


class Batcher:
    """Takes operations and answers them once they are durable."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        hand_over: HandOver,
        *,
        lease: timedelta,
        lanes: int = 1,
        handler_lanes: int = 2,
        batch_operations: int = 1_000,
        queue_operations: int = 20_000,
        queue_bytes: int = 64 * 1024 * 1024,
        patience: float = 5.0,
        rules: Rules = _RULES,
    ) -> None:
        self.announcer = announcer
        self._database = database
        self._hand_over = hand_over
        self._lease = lease
        self._patience = patience
        self._rules = rules
        self._capacity = queue_operations
        self._capacity_bytes = queue_bytes
        self._queued = 0
        self._queued_bytes = 0
        # What calls bring that wait for room.
        self._callers_bytes = 0
        self._changed = asyncio.Condition()
        # How many wait for room, or for the end.
        self._waiting = 0
        self._closing = False
        self._fallen = Fallen()
        self._side: dict[tuple[str, str], deque[Entry]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lanes = Lanes(lanes, handler_lanes, batch_operations, self._flush_lane)

    @property
    def queued(self) -> int:
        """How many operations wait or are under way."""
        return self._queued

    @property
    def alive(self) -> bool:
        """Whether every lane flushes what comes."""
        return all(lane.alive for lane in self._lanes)

    def start(self) -> None:
        """Begins to flush."""
        for lane in self._lanes:
            lane.start()

    async def stop(self, grace: float) -> None:
        """Takes no more, applies what was taken within `grace` seconds, and refuses the rest."""
        self._closing = True
        await self._until(lambda: self._queued == 0, grace)
        for lane in self._lanes:
            await lane.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._refuse([entry for lane in self._lanes for entry in lane.take()])
        self._refuse([entry for side in self._side.values() for entry in side])
        self._side.clear()

    async def ask(self, operation: Operation) -> Message:
        """Applies one operation for a caller that waits, and answers it; raises Refused."""
        await self._room_for(operation)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(operation, lambda _: None if future.done() else future.set_result(None), alone=True)
        # The operation goes on when its caller goes away: whether it took effect must not depend on patience.
        await future
        answer = operation.answer
        if isinstance(answer, ErrorDetail):
            raise Refused(answer)
        assert isinstance(answer, Message)
        return answer

    async def ask_all(self, operations: Sequence[Operation], together: float) -> None:
        """Applies operations that came in one call. Each has its answer afterwards, a refusal among them, but for those
        that wait for a transaction which somebody else has open: they are looked for every `together` seconds.
        """
        left: set[Operation] = set()
        all_answered = asyncio.Event()

        def answered(operation: Operation) -> None:
            left.discard(operation)
            if not left:
                all_answered.set()

        crowded: Refused | None = None
        for operation in operations:
            try:
                if crowded is not None and not self.has_room():
                    raise crowded
                await self._room_for(operation)
            except Refused as refused:
                crowded = refused
                operation.answer = refused.detail
                continue
            left.add(operation)
            all_answered.clear()
            self.submit(operation, answered)
        while left and not all(self._waits_apart(operation) for operation in left):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(together):
                    await all_answered.wait()

    def _waits_apart(self, operation: Operation) -> bool:
        """Whether the operation, which has no answer yet, waits for a transaction that somebody else has open."""
        return (operation.namespace, operation.run_id) in self._side

    async def room(self, patience: float | None = None) -> None:
        """Waits until there is room for more. A stream waits as long as it takes and stops reading meanwhile; a call
        is told to come back later when its patience is over.
        """
        if not self.has_room() and not await self._until(self.has_room, patience):
            raise Refused(_crowded(patience or 1.0))

    async def _room_for(self, operation: Operation) -> None:
        """A call waits a while for room, but only as many as fit into memory once more: the others are told at once."""
        if self.has_room():
            return
        size = operation.body.ByteSize()
        if self._callers_bytes + size > self._capacity_bytes:
            raise Refused(_crowded(self._patience))
        self._callers_bytes += size
        try:
            await self.room(self._patience)
        finally:
            self._callers_bytes -= size

    def has_room(self) -> bool:
        """Whether more can be taken."""
        return self._queued < self._capacity and self._queued_bytes < self._capacity_bytes

    async def _until(self, condition: Callable[[], bool], seconds: float | None) -> bool:
        self._waiting += 1
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
        return True

    def submit(self, operation: Operation, done: Callable[[Operation], None], *, alone: bool = False) -> None:
        """Takes an operation; `done` is called with it once it has its answer. One that was refused already takes its
        place too, so that what follows it falls. `alone` says that it came in a call of its own.
        """
        if self._closing:
            operation.answer = _stopping()
            done(operation)
            return
        entry = Entry(operation, done, operation.body.ByteSize(), alone)
        self._queued += 1
        self._queued_bytes += entry.size
        lane = self._lanes.enter(operation)
        side = self._side.get((operation.namespace, operation.run_id))
        if side is not None:
            side.append(entry)
        else:
            lane.put(entry)

    async def _flush_lane(self, namespace: str, entries: Sequence[Entry]) -> None:
        """Applies a batch of a lane. What somebody else has locked waits apart, with all that follows in its run."""
        left = []
        for entry in entries:
            side = self._side.get((namespace, entry.operation.run_id))
            if side is None:
                left.append(entry)
            else:
                side.append(entry)
        for entry in await self._flush(namespace, left):
            self._aside(entry)

    async def _flush(self, namespace: str, entries: Sequence[Entry]) -> list[Entry]:
        """Applies a batch until the database has taken it, then tells everybody; answers what has to wait on."""
        standing = [entry.operation for entry in entries if not self._fallen.takes(entry.operation)]
        if standing:
            began = time.monotonic()
            try:
                outcomes = await self._commit(namespace, standing)
            except asyncio.CancelledError:
                self._refuse(entries)
                raise
            self.announcer.flushed(len(standing), time.monotonic() - began)
            for operation in standing:
                self._fallen.note(operation)
            self._announce(namespace, standing, outcomes)
        if faults.ON:
            faults.reach("batcher.answer")
        return self._answer(entries)

    async def _commit(self, namespace: str, operations: Sequence[Operation]) -> list[Outcome]:
        slots = self._reserve(operations)
        handed: set[int] = set()
        claimed: dict[str, Claimed] = {}
        try:
            outcomes = await self._apply(namespace, operations)
            handed = {id(operation) for outcome in outcomes for operation in outcome.handed}
            claimed = {one.slot.token: one for outcome in outcomes for one in outcome.claimed}
        except Exception:
            log.exception("flush_failed", namespace=namespace, operations=len(operations))
            for operation in operations:
                operation.answer = _stopping()
            outcomes = []
        finally:
            for operation, slot in slots:
                if id(operation) in handed:
                    self._hand_over.hand_over(operation, slot)
                elif slot.token in claimed:
                    self._hand_over.deliver(claimed[slot.token])
                else:
                    self._hand_over.restore(slot)
        return outcomes

    def _announce(self, namespace: str, operations: Sequence[Operation], outcomes: Sequence[Outcome]) -> None:
        try:
            for outcome in outcomes:
                self.announcer.announce(namespace, outcome)
            answered = [operation for operation in operations if not isinstance(operation.answer, Busy)]
            self.announcer.applied(namespace, answered)
        except Exception:
            # Whoever listens must not cost the callers their answers.
            log.exception("announcement_failed", namespace=namespace)

    async def _apply(self, namespace: str, operations: Sequence[Operation]) -> list[Outcome]:
        while True:
            try:
                return await batch.flush(self._database, namespace, operations, self._lease, 30.0, self._rules)
            except Unreachable:
                log.warning("flush_waits_for_database", namespace=namespace, operations=len(operations))

    def _reserve(self, operations: Sequence[Operation]) -> list[tuple[Operation, Slot]]:
        slots = []
        for operation in operations:
            if operation.kind in _STARTING:
                operation.slot = self._hand_over.reserve(operation)
                if operation.slot is not None:
                    slots.append((operation, operation.slot))
        return slots

    def _answer(self, entries: Sequence[Entry]) -> list[Entry]:
        """Tells the callers; answers those whose run somebody else has locked."""
        busy = []
        for entry in entries:
            if isinstance(entry.operation.answer, Busy):
                busy.append(entry)
                continue
            self._queued -= 1
            self._queued_bytes -= entry.size
            self._lanes.leave(entry.operation)
            failing = histories.failing(entry.operation) if entry.operation.refused else None
            if failing is not None:
                self.submit(failing, _forget)
            try:
                entry.done(entry.operation)
            except Exception:
                log.exception("answer_lost", run=entry.operation.run_id, kind=entry.operation.kind.name)
        if self._waiting:
            self._spawn(self._tell())
        return busy

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _aside(self, entry: Entry) -> None:
        key = (entry.operation.namespace, entry.operation.run_id)
        side = self._side.get(key)
        if side is None:
            side = self._side[key] = deque()
            self._spawn(self._side_lane(key, side))
        side.append(entry)

    async def _side_lane(self, key: tuple[str, str], side: deque[Entry]) -> None:
        """Tries the operations of one locked run again, in order, until somebody let go of it."""
        pause = _SIDE_PAUSE
        while side:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _SIDE_PAUSE_MAX)
            entries = list(side)
            side.clear()
            # What came meanwhile stands behind what still waits.
            side.extendleft(reversed(await self._flush(key[0], entries)))
        del self._side[key]

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work, name="kagzi-batcher")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            entry.operation.answer = _stopping()
        self._answer(entries)


def _forget(_: Operation) -> None:
    """Nobody waits for the answer."""


def _crowded(patience: float) -> ErrorDetail:
    return ErrorDetail(
        code=ErrorDetail.RESOURCE_EXHAUSTED,
        message="more is waiting to be written than the database takes: try again",
        retry_after_ms=int(1_000 * patience),
    )


def _stopping() -> ErrorDetail:
    message = "this server could not write it, or is stopping: try again, or at another"
    return ErrorDetail(code=ErrorDetail.UNAVAILABLE, message=message, retry_after_ms=500)
