"""Brings runs to free places. Each queue that somebody serves claims for itself; here is what concerns them all: who
joins and leaves, who is woken by which news, which places are taken, and what goes back that never reached its worker.
A run that is started while a place is free and nothing older waits is handed over as it is stored, without a claim.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import uuid_utils

from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.server.announcer import Announcer
from kagzi.server.clock import DatabaseClock
from kagzi.server.places import Place
from kagzi.server.queues import Queue
from kagzi.store import leases, rows
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.notices import key_hash
from kagzi.store.operation import Claimed, Kind, Operation, Slot


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
