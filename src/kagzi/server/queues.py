"""The runs of one queue and the places that serve it. One loop claims in batches for all free places at once; it is
woken by a start, a notice, a timer set to the earliest due time, or a tick, and ends when nobody serves the queue.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from asyncpg.connection import Connection

from kagzi import faults
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.places import Group, Place
from kagzi.store import claims
from kagzi.store.claims import NextDue, Served
from kagzi.store.errors import Unreachable
from kagzi.store.operation import Claimed, Outcome

if TYPE_CHECKING:
    from kagzi.server.dispatcher import Dispatcher

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
