"""Fires schedules: sleeps until the earliest is due and starts its run. It is the coordinator's duty that must be on
time, and so has a loop of its own: nothing else that the coordinator does delays it. A schedule that cannot fire is
marked and never stops the others. Whether something is due is asked of the database alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import structlog

from kagzi import faults
from kagzi.server import planner
from kagzi.server.announcer import Announcer
from kagzi.server.aside import Aside
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
# A batch that takes longer than this is looked past for others.
_BESIDE = 0.02


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
        self._aside = Aside(self._attempt, self.look)
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

    async def stop(self, grace: float = 0.0) -> None:
        await super().stop(grace)
        await self._aside.stop()

    async def fire_due(self) -> float:
        """Fires everything that is due; answers how long to wait for what comes next."""
        # What is due and did not move: another server fires it, or somebody changes it. It stands before nobody else.
        locked: set[str] = set()
        until = time.monotonic() + _LONGEST
        while True:
            if time.monotonic() > until:
                # Its server may be gone.
                locked.clear()
                until = time.monotonic() + _LONGEST
            due = await self._due(locked.union(self._aside))
            full = sum(map(len, due.values())) == self._batch
            if due and not await self._fire_beside(due, locked, at_once=full):
                locked.update(*due.values())
            if full:
                continue
            coming = await self._upcoming(locked.union(self._aside))
            self.clock.observe(coming.now)
            if coming.due:
                # Since the look before.
                continue
            if locked:
                self._missed += 1
                return self._nap(coming, min(_SOON * 2.0**self._missed, _LONGEST))
            self._missed = 0
            return self._nap(coming, self._interval)

    async def _due(self, later: Collection[str]) -> dict[str, list[str]]:
        return await self._database.read(lambda c: firing.due(c, self._batch, later), _PATIENCE)

    async def _newest(self, later: Collection[str]) -> dict[str, list[str]]:
        return await self._database.read(lambda c: firing.newest(c, _FRESH, later), _PATIENCE)

    async def _upcoming(self, later: Collection[str]) -> Upcoming:
        return await self._database.read(lambda c: firing.upcoming(c, later), _PATIENCE)

    async def _fire_beside(self, due: Mapping[str, Sequence[str]], later: Collection[str], *, at_once: bool) -> int:
        """Fires a batch. If it takes long, those that become due meanwhile are fired beside it, and wait neither for it
        nor for all that were due before them. Answers how many of the batch moved on.
        """
        batch = asyncio.create_task(self._fire_found(due))
        left = set(later).union(*due.values())
        try:
            if not at_once:
                await asyncio.wait({batch}, timeout=_BESIDE)
            while not batch.done():
                if not await self._fire_found(await self._newest(left.union(self._aside))):
                    await asyncio.wait({batch}, timeout=_SOON)
        except asyncio.CancelledError:
            batch.cancel()
            await asyncio.wait({batch})
            raise
        except Exception:
            # Whatever is wrong beside the batch is not its fate.
            log.exception("newest_not_fired")
        return await batch

    async def _fire_found(self, found: Mapping[str, Sequence[str]]) -> int:
        """Fires schedules of several namespaces; answers how many moved on."""
        return sum([await self._fire(namespace, template_ids) for namespace, template_ids in found.items()])

    def _nap(self, coming: Upcoming, longest: float) -> float:
        """How long to wait when nobody wakes the loop."""
        if coming.at is None:
            return longest
        return min(longest, max(0.0, self.clock.until(coming.at)) + _PAST)

    async def _fire(self, namespace: str, template_ids: Sequence[str]) -> int:
        """Fires some schedules of a namespace; answers how many moved on."""
        try:
            return await self._attempt(namespace, template_ids)
        except Held:
            self._aside.put(namespace, template_ids)
            return 0

    async def _attempt(self, namespace: str, template_ids: Sequence[str]) -> int:
        """Fires them in one transaction; raises Held when somebody's open transaction keeps one of them from it."""
        try:
            fired = await self._database.transact(
                lambda c: firing.fire(c, namespace, template_ids, planner.plan), _PATIENCE
            )
        except (Unreachable, Held):
            raise
        except Exception as error:
            if len(template_ids) > 1:
                # One of them is to blame: each stands alone.
                return sum([await self._fire(namespace, [template_id]) for template_id in template_ids])
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
