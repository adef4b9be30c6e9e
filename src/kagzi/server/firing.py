"""Fires schedules: sleeps until the earliest is due and starts its run. It is the coordinator's duty that must be on
time, and so has a loop of its own: nothing else that the coordinator does delays it. A schedule that cannot fire is
marked and never stops the others. Whether something is due is asked of the database alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from kagzi import faults
from kagzi.server import planner
from kagzi.server.announcer import Announcer
from kagzi.server.clock import DatabaseClock
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.notifier import Notifier
from kagzi.server.settings import Settings
from kagzi.store import firing
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.firing import Fired, Held, Upcoming
from kagzi.store.notices import Kind

log = structlog.get_logger(__name__)

# Past a due time by this much before looking, so that a timer that ends early does not look twice.
_PAST = 0.0005
# What others fire at this moment is looked for again after this, then less and less often.
_SOON = 0.005
_LONGEST = 0.5
_PATIENCE = 2.0
# How many of the newest are fired at once beside a long queue.
_FRESH = 20
# A schedule that somebody's open transaction keeps from firing costs the others the time it is waited for: it is tried
# again alone, after this, then less and less often.
_HELD = 0.25
_HELD_LONGEST = 5.0


@dataclass(slots=True)
class _Wait:
    """How long a held schedule is left alone, and until when."""

    namespace: str
    pause: float
    until: float


class Firing(Loop):
    """The schedules of all namespaces, as far as this server is quick enough to fire them."""

    name = "firing"

    def __init__(self, database: Database, notifier: Notifier, announcer: Announcer, settings: Settings) -> None:
        super().__init__()
        # Whoever measures hears by how many seconds schedules were late.
        self.on_fired: Callable[[Sequence[float]], None] = lambda _late: None
        self.clock = DatabaseClock()
        self._database = database
        self._announcer = announcer
        self._batch = settings.coordinator_batch_size
        self._interval = settings.coordinator_interval_secs
        self._wakeup = Wakeup()
        # Looks in a row that found something due and could not get it.
        self._missed = 0
        # Schedules that somebody's open transaction kept from firing, by template.
        self._held: dict[str, _Wait] = {}
        notifier.subscribe(Kind.CLOCK, lambda _key: self.look())

    def look(self) -> None:
        """A schedule may be due sooner than what is waited for."""
        self._wakeup.set()

    async def run(self) -> None:
        while not self.stopping.is_set():
            try:
                pause = await self.fire_due()
            except Unreachable:
                log.warning("firing_without_database")
                pause = self._interval
            await self._wakeup.wait(pause)

    async def fire_due(self) -> float:
        """Fires everything that is due; answers how long to wait for what comes next."""
        # A whole batch of which nothing moved is locked, and stands before others that are not.
        locked: set[str] = set()
        while True:
            later = locked.union(self._held)
            due = await self._due(later)
            full = sum(map(len, due.values())) == self._batch
            moved = await (self._fire_beside(due, later) if full else self._fire_found(due))
            if full and not moved:
                locked.update(template_id for template_ids in due.values() for template_id in template_ids)
            if full:
                continue
            moved += await self._fire_held()
            coming = await self._database.read(firing.upcoming, _PATIENCE)
            self.clock.observe(coming.now)
            if not coming.due:
                self._missed = 0
                return self._nap(coming, self._interval)
            if not moved:
                # Another server fires it, or somebody holds what it needs.
                self._missed += 1
                return self._nap(coming, min(_SOON * 2.0**self._missed, _LONGEST))

    async def _due(self, later: Collection[str]) -> dict[str, list[str]]:
        return await self._database.read(lambda c: firing.due(c, self._batch, later), _PATIENCE)

    async def _newest(self, later: Collection[str]) -> dict[str, list[str]]:
        return await self._database.read(lambda c: firing.newest(c, _FRESH, later), _PATIENCE)

    async def _fire_beside(self, due: Mapping[str, Sequence[str]], later: Collection[str]) -> int:
        """Fires a whole batch, which takes a while: those that become due meanwhile are fired beside it, and wait
        neither for it nor for all that were due before them. Answers how many of the batch moved on.
        """
        batch = asyncio.create_task(self._fire_found(due))
        left = set(later).union(*due.values())
        try:
            while not batch.done():
                if not await self._fire_found(await self._newest(left.union(self._held))):
                    await asyncio.wait({batch}, timeout=_SOON)
        except BaseException:
            batch.cancel()
            raise
        return await batch

    async def _fire_held(self) -> int:
        """Tries again, each alone, what was held some time ago; answers how many moved on."""
        moved = 0
        for template_id, wait in list(self._held.items()):
            if time.monotonic() >= wait.until:
                moved += await self._fire(wait.namespace, [template_id])
                if self._held[template_id] is wait:
                    del self._held[template_id]
        return moved

    def _leave(self, namespace: str, template_id: str) -> None:
        before = self._held.get(template_id)
        pause = _HELD if before is None else min(2 * before.pause, _HELD_LONGEST)
        self._held[template_id] = _Wait(namespace, pause, time.monotonic() + pause)

    async def _fire_found(self, found: Mapping[str, Sequence[str]]) -> int:
        """Fires schedules of several namespaces; answers how many moved on."""
        return sum([await self._fire(namespace, template_ids) for namespace, template_ids in found.items()])

    def _nap(self, coming: Upcoming, longest: float) -> float:
        """How long to wait when nobody wakes the loop."""
        if coming.at is None:
            return longest
        return min(longest, max(0.0, self.clock.until(coming.at)) + _PAST)

    async def _fire(self, namespace: str, template_ids: Sequence[str]) -> int:
        """Fires some schedules of a namespace in one transaction; answers how many moved on."""
        try:
            fired = await self._database.transact(
                lambda c: firing.fire(c, namespace, template_ids, planner.plan), _PATIENCE
            )
        except Unreachable:
            raise
        except Exception as error:
            if len(template_ids) > 1:
                # One of them is to blame: each stands alone.
                return sum([await self._fire(namespace, [template_id]) for template_id in template_ids])
            if isinstance(error, Held):
                self._leave(namespace, template_ids[0])
                return 0
            log.exception("schedule_not_fired", namespace=namespace, template=template_ids[0])
            reason = f"its run cannot be stored ({type(error).__name__}): look for schedule_not_fired in the log"
            fired = Fired()
            broken = {template_ids[0]: reason}
            await self._database.transact(lambda c: firing.mark(c, namespace, broken, fired), _PATIENCE)
        self._tell(namespace, fired)
        return fired.moved

    def _tell(self, namespace: str, fired: Fired) -> None:
        if faults.ON:
            faults.reach("firing.fired")
        self.on_fired(fired.late)
        self._announcer.announce(namespace, fired.outcome)
        for schedule, error in fired.broken.items():
            log.warning("schedule_broken", namespace=namespace, schedule=schedule, error=error)
        for template, notice in fired.notices.items():
            log.warning("schedule_notice", namespace=namespace, template=template, notice=notice)
