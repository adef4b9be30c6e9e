"""Brings runs to free places. One loop for each queue that somebody serves claims in batches for all free places at
once; it is woken by a start, a notice, a timer set to the earliest due time, or a tick. A run that is started while a
place is free and nothing older waits is handed over as it is stored, without a claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
import uuid_utils
from asyncpg.connection import Connection

from kagzi import faults
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.server.announcer import Announcer
from kagzi.server.clock import DatabaseClock
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.places import Group, Place
from kagzi.store import claims, leases, rows
from kagzi.store.claims import NextDue, Served
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.notices import key_hash
from kagzi.store.operation import Claimed, Kind, Operation, Outcome, Slot

log = structlog.get_logger(__name__)

# A queue that nobody serves is forgotten after this.
_FORGOTTEN_AFTER = 60.0
# Past a due time by this much before looking, so that a timer that fires early does not look twice.
_PAST = 0.001
# How long a claim is tried; nobody waits for one of suspects.
_PATIENCE = 10.0
_SUSPECT_PATIENCE = 0.1
# Runs of one claim: more make its transaction long, fewer cost more transactions.
_MOST = 500


class Dispatcher:
    """All queues that this server's workers serve."""

    def __init__(
        self,
        database: Database,
        announcer: Announcer,
        *,
        lease: timedelta,
        heartbeat: timedelta,
        interval: float = 1.0,
    ) -> None:
        self.database = database
        self.announcer = announcer
        self.lease = lease
        self.interval = interval
        self.clock = DatabaseClock()
        # After starting, or after losing the database, workers get the time to renew their leases.
        self._grace = (heartbeat + lease / 6).total_seconds()
        self._began = time.monotonic()
        self._queues: dict[tuple[str, str], Queue] = {}
        self._by_hash: dict[str, Queue] = {}
        self._reserved: dict[str, Place] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        announcer.add_queues(self)

    @property
    def expired_too(self) -> bool:
        """Whether leases that ran out may be claimed."""
        return time.monotonic() > max(self._began, self.database.lost_at) + self._grace

    @property
    def alive(self) -> bool:
        """Whether every queue is looked after."""
        return all(queue.alive for queue in self._queues.values())

    def join(self, place: Place) -> None:
        """A worker can take runs from now on."""
        key = (place.served.namespace, place.served.task_queue)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._by_hash[key_hash(*key)] = Queue(self, *key)
            queue.start()
        queue.join(place)

    def forget(self, queue: Queue) -> None:
        """Nobody has served the queue for a while; whoever comes next makes it anew."""
        key = (queue.namespace, queue.task_queue)
        del self._queues[key]
        if self._by_hash.get(key_hash(*key)) is queue:
            del self._by_hash[key_hash(*key)]

    def leave(self, place: Place) -> None:
        """A worker takes no more runs. A claim under way may still deliver to the place, which then puts it back."""
        place.free = 0
        queue = self._queues.get((place.served.namespace, place.served.task_queue))
        if queue is not None:
            queue.leave(place)

    async def stop(self) -> None:
        """Ends all claims; those under way are delivered or put back. Whoever waits is told that nothing comes."""
        for queue in self._queues.values():
            for place in queue.places():
                place.end()
        await asyncio.gather(*(queue.stop(grace=2.0) for queue in self._queues.values()))
        for timer in self._timers:
            # The hello at another server, or the end of the lease, says what becomes of them.
            timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    def look(self, namespace: str, task_queue: str) -> None:
        """Something in the queue may be due now."""
        queue = self._queues.get((namespace, task_queue))
        if queue is not None:
            queue.look()

    def look_at(self, namespace: str, task_queue: str, moment: datetime) -> None:
        """Something in the queue becomes due at `moment`."""
        queue = self._queues.get((namespace, task_queue))
        if queue is not None:
            queue.look_at(moment)

    def heard(self, key: str | None) -> None:
        """A notice from another server; None: any may have been missed."""
        if key is None:
            for queue in self._queues.values():
                queue.look()
        elif key in self._by_hash:
            self._by_hash[key].look()

    def freed(self, place: Place) -> None:
        """A place has become free."""
        queue = self._queues.get((place.served.namespace, place.served.task_queue))
        if queue is not None:
            queue.freed()

    def reserve(self, operation: Operation) -> Slot | None:
        """A free place for a run that is about to be stored, if nothing older waits for it."""
        if operation.kind is Kind.COMMIT_HANDLER:
            return self._reserve_next(operation)
        body: StartWorkflowRequest = operation.body
        queue = self._queues.get((operation.namespace, body.task_queue))
        # A child's delivery names the first run of its lineage, which only the database knows.
        if queue is None or body.delay_ms or body.HasField("start_at") or body.parent_run_id:
            return None
        place = queue.place_for(body.workflow_type, body.version)
        return None if place is None else self.slot(place)

    def _reserve_next(self, commit: Operation) -> Slot | None:
        """The place of the handler run that is about to end, for what its automation runs next. The worker gives the
        credit for it when it hears of the end; until then the place counts as one less than none.
        """
        task_queue, worker_id = commit.sender or ("", "")
        queue = self._queues.get((commit.namespace, task_queue))
        found = queue.place_of(worker_id) if queue is not None else None
        if found is None:
            return None
        place, types = found
        place.free -= 1
        slot = Slot(worker_id, str(uuid_utils.uuid4()), types)
        self._reserved[slot.token] = place
        return slot

    def slot(self, place: Place) -> Slot:
        """A slot at a place that was taken; it is handed over or restored."""
        slot = Slot(place.worker_id, str(uuid_utils.uuid4()), residents=place.residents)
        self._reserved[slot.token] = place
        return slot

    def restore(self, slot: Slot) -> None:
        """No run took the slot."""
        place = self._reserved.pop(slot.token)
        place.free += 1
        self.freed(place)

    def hand_over(self, start: Operation, slot: Slot) -> None:
        """The run was stored as claimed with this slot."""
        body: StartWorkflowRequest = start.body
        now = start.now
        assert now is not None, "only what was stored is handed over"
        deadline = now + timedelta(milliseconds=body.timeout_ms) if body.HasField("timeout_ms") else None
        delivery = Delivery(
            run_id=start.run_id,
            claim_token=slot.token,
            workflow_type=body.workflow_type,
            version=body.version,
            task_queue=body.task_queue,
            input=body.input if body.HasField("input") else None,
            now_us=rows.microseconds(now),
            lease_until_us=rows.microseconds(now + self.lease),
            seed=start.seed,
            labels=body.labels,
            external_id=body.external_id,
            created_at=rows.timestamp(now),
            parent_run_id=body.parent_run_id,
            root_run_id=start.run_id,
            deadline_at=rows.timestamp(deadline),
        )
        self._reserved.pop(slot.token).deliver(delivery)

    def deliver(self, claimed: Claimed) -> None:
        """The run was claimed with its slot."""
        self._reserved.pop(claimed.slot.token).deliver(claimed.delivery)

    def abandon(self, namespace: str, held: list[tuple[str, str]], untils: Sequence[datetime] | None = None) -> None:
        """Gives runs back that never reached their worker, in the background."""
        task = asyncio.create_task(self.put_back(namespace, held, untils), name="kagzi-put-back")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def abandon_later(self, namespace: str, run: tuple[str, str], lease_until: datetime, seconds: float) -> None:
        """Gives a run back whose worker lost its stream before it said that it has it, unless by then the worker has
        named it in a hello or a heartbeat: its lease lasts longer then.
        """

        def late() -> None:
            self._timers.discard(timer)
            self.abandon(namespace, [run], [lease_until])

        timer = asyncio.get_running_loop().call_later(seconds, late)
        self._timers.add(timer)

    async def put_back(
        self, namespace: str, held: list[tuple[str, str]], untils: Sequence[datetime] | None = None
    ) -> None:
        """Gives runs back that never reached their worker."""
        try:
            queues = await self.database.transact(lambda c: leases.put_back(c, namespace, held, untils))
        except Unreachable:
            # Their leases run out and bring them back.
            return
        for task_queue in queues:
            self.announcer.due(namespace, task_queue)


class Queue(Loop):
    """The runs of one queue and the places that serve it."""

    def __init__(self, dispatcher: Dispatcher, namespace: str, task_queue: str) -> None:
        super().__init__()
        self.name = f"queue {namespace}/{task_queue}"
        self.namespace = namespace
        self.task_queue = task_queue
        self._dispatcher = dispatcher
        self._groups: dict[Served, Group] = {}
        self._wakeup = Wakeup()
        self._due_at: datetime | None = None

    def join(self, place: Place) -> None:
        group = self._groups.setdefault(place.served, Group(place.served))
        group.places.append(place)
        self.look()

    def leave(self, place: Place) -> None:
        group = self._groups.get(place.served)
        if group is not None and place in group.places:
            group.places.remove(place)
            if not group.places:
                del self._groups[place.served]

    def places(self) -> list[Place]:
        return [place for group in self._groups.values() for place in group.places]

    def look(self) -> None:
        for group in self._groups.values():
            group.look()
        self._wakeup.set()

    def look_at(self, moment: datetime) -> None:
        if self._due_at is None or moment < self._due_at:
            self._due_at = moment
            self._wakeup.set()

    def freed(self) -> None:
        if any(not group.drained for group in self._groups.values()):
            self._wakeup.set()

    def place_for(self, workflow_type: str, version: str) -> Place | None:
        for group in self._groups.values():
            if group.drained and group.serves(workflow_type, version):
                place = group.take()
                if place is not None:
                    return place
        return None

    def place_of(self, worker_id: str) -> tuple[Place, frozenset[str]] | None:
        """The place of a worker that takes what follows its own run, and what it serves, unless something older may
        wait for that place.
        """
        for group in self._groups.values():
            for place in group.places:
                if place.worker_id == worker_id and place.lends:
                    return (place, group.unversioned) if group.drained or group.free > 1 else None
        return None

    async def run(self) -> None:
        tick = time.monotonic()
        while True:
            # Who joins an empty queue has woken it, and is looked after at once.
            woken = await self._wakeup.wait(self._nap(tick) if self._groups else _FORGOTTEN_AFTER)
            if self.stopping.is_set():
                return
            if not woken and not self._groups:
                self._dispatcher.forget(self)
                return
            ticked = time.monotonic() >= tick + self._dispatcher.interval
            if ticked:
                tick = time.monotonic()
            try:
                await self._look(ticked)
            except Unreachable:
                log.warning("queue_waits_for_database", queue=self.name)

    async def stop(self, grace: float = 0.0) -> None:
        """Ends; a claim under way is delivered first."""
        self.stopping.set()
        self._wakeup.set()
        await super().stop(grace)

    def _nap(self, tick: float) -> float:
        """How long to wait when nobody wakes the loop: until the next tick, or until something is due."""
        pause = max(0.0, tick + self._dispatcher.interval - time.monotonic())
        if self._due_at is not None:
            pause = min(pause, max(0.0, self._dispatcher.clock.until(self._due_at) + _PAST))
        return pause

    async def _look(self, ticked: bool) -> None:
        due = self._due_at is not None and self._dispatcher.clock.until(self._due_at) <= 0
        if due:
            self._due_at = None
            self.look()
        for group in list(self._groups.values()):
            if ticked and group.drained and group.free:
                await self._check(group)
            if group.free and not group.drained:
                await self._claim_all(group)

    async def _check(self, group: Group) -> None:
        """The tick: what every notice and timer may have missed, for one plain statement."""
        next_due = await self._next_due(group)
        if next_due.due or next_due.suspects_due:
            group.look()

    async def _claim_all(self, group: Group) -> None:
        """Claims until nothing is due or no place is free."""
        while group.free:
            news = group.news
            places = self._take(group)
            claimed = await self._claim(group, places, suspects=False)
            if claimed < len(places):
                next_due = await self._next_due(group)
                if next_due.suspects_due:
                    await self._claim_suspects(group)
                if next_due.due and claimed:
                    # Others had some of it locked; there is more behind.
                    continue
                group.drained = group.news == news
                # Somebody has it locked and may not tell when they are done.
                pause = group.pause(missed=next_due.due)
                if pause:
                    self.look_at(next_due.now + timedelta(seconds=pause))
                return

    def _take(self, group: Group) -> list[Place]:
        """Free places for one claim: some at each worker that keeps runs in memory, for these go there, then wherever
        most is free.
        """
        places: list[Place] = []
        keeping = [place for place in group.places if place.residents] if len(group.places) > 1 else []
        for keeper in keeping:
            taken = max(0, min(keeper.free, _MOST // (len(keeping) + 1)))
            keeper.free -= taken
            places += [keeper] * taken
        while len(places) < _MOST and (place := group.take()) is not None:
            places.append(place)
        return places

    async def _claim_suspects(self, group: Group) -> None:
        """Runs that may take their worker down: one at most for each worker, so that its neighbours do not suffer."""
        free = {place.worker_id: place for place in group.places if place.free > 0}
        holding = await self._dispatcher.database.read(
            lambda c: claims.suspicious(c, group.served.namespace, list(free))
        )
        places = [place for worker_id, place in free.items() if worker_id not in holding and place.free > 0]
        for place in places:
            place.free -= 1
        if not places:
            return
        try:
            await self._claim(group, places, suspects=True)
        except Unreachable:
            # The end of a poisoned run concerns its parent, which somebody may have locked: the next tick tries again.
            log.warning("suspects_wait", queue=self.name)

    async def _claim(self, group: Group, places: list[Place], *, suspects: bool) -> int:
        dispatcher = self._dispatcher
        slots = [dispatcher.slot(place) for place in places]
        tries = 0

        async def claim(connection: Connection) -> tuple[list[Claimed], Outcome]:
            nonlocal tries
            tries += 1
            outcome = Outcome()
            # The answer to an earlier COMMIT may have been lost: what has our tokens is ours.
            ours = await claims.recover(connection, group.served, slots) if tries > 1 else []
            taken = {claimed.slot.token for claimed in ours}
            left = [slot for slot in slots if slot.token not in taken]
            fresh = await claims.claim(
                connection,
                group.served,
                left,
                dispatcher.lease,
                outcome,
                expired_too=dispatcher.expired_too,
                suspects=suspects,
            )
            return [*ours, *fresh], outcome

        claimed: list[Claimed] = []
        try:
            claimed, outcome = await dispatcher.database.transact(claim, _SUSPECT_PATIENCE if suspects else _PATIENCE)
            if faults.ON and claimed:
                faults.reach("dispatcher.deliver")
            for one in claimed:
                dispatcher.deliver(one)
            dispatcher.announcer.announce(group.served.namespace, outcome)
        finally:
            used = {one.slot.token for one in claimed}
            for slot in slots:
                if slot.token not in used:
                    dispatcher.restore(slot)
        return len(claimed)

    async def _next_due(self, group: Group) -> NextDue:
        next_due = await self._dispatcher.database.read(lambda c: claims.next_due(c, group.served))
        self._dispatcher.clock.observe(next_due.now)
        if next_due.at is not None:
            self.look_at(next_due.at)
        return next_due
