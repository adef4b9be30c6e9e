"""The coordinator: what has to happen although nobody asks for it. Each duty is a small method that is safe
on every server at once; one that fails is logged by name and never stops the others. It waits for the next
deadline, for a notice, or for its interval, and while the database is away it does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import structlog
from asyncpg.connection import Connection

from kagzi.server.clearance import Clearance
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.notifier import Notifier
from kagzi.server.settings import Settings
from kagzi.store import merges, upkeep
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.notices import Kind
from kagzi.store.operation import Outcome

T = TypeVar("T")
log = structlog.get_logger(__name__)

# Called after a commit with what it means for the rest of the server.
Announce = Callable[[str, Outcome], None]

# How long a run that was asked to end at its deadline has for its cleanup.
GRACE = timedelta(seconds=30)
# Removing and merging are never urgent: one look every so many intervals, and removing at most this long at a time.
_REMOVE_EVERY = 12
# Merging looks back over some minutes only, and must come by before they are forgotten.
_MERGE_WITHIN_SECS = 60.0
_REMOVE_SECS = 1.0
_REMOVE_PAUSE = 0.2
_NEXT_BATCH = 0.02
# The next pass comes soon enough; a long wait here would only hold a connection's place.
_PATIENCE = 2.0


class Coordinator(Loop):
    """The background duties of a server."""

    name = "coordinator"

    def __init__(self, database: Database, notifier: Notifier, settings: Settings, announce: Announce) -> None:
        super().__init__()
        self._database = database
        self._announce = announce
        self._batch = settings.coordinator_batch_size
        self._interval = settings.coordinator_interval_secs
        self._threshold = timedelta(seconds=settings.coordinator_worker_stale_threshold_secs)
        self._keep_runs = timedelta(seconds=settings.retention_runs_secs)
        self._keep_workers = timedelta(seconds=settings.retention_workers_secs)
        self._keep_stats = timedelta(seconds=settings.retention_stats_secs)
        self._clearance = Clearance(database, timedelta(seconds=settings.retention_events_secs), self._batch)
        # After a time without server or database every worker looks silent until it could be heard again.
        self._hearing = settings.heartbeat_secs + settings.lease_secs / 6
        self._began = time.monotonic()
        self._removes_from = 0.0
        self._clears_from = 0.0
        self._merges_from = 0.0
        self._wakeup = Wakeup()
        notifier.subscribe(Kind.CLOCK, lambda _key: self._wakeup.set())

    def look(self) -> None:
        """A deadline may be sooner than what is waited for."""
        self._wakeup.set()

    async def run(self) -> None:
        while not self.stopping.is_set():
            try:
                pause = await self._pass()
            except Unreachable:
                log.warning("coordinator_without_database")
                pause = self._interval
            await self._wakeup.wait(pause)

    async def _pass(self) -> float:
        """Does every duty once; answers how long to wait."""
        pause = self._interval
        for duty in (self.silence_workers, self.expire_runs, self.remove_old, self.clear_events, self.merge_stats):
            pause = min(pause, await self._do(duty))
        return max(pause, 0.01)

    async def _do(self, duty: Callable[[], Awaitable[float | None]]) -> float:
        try:
            soon = await duty()
        except Unreachable:
            raise
        except Exception:
            log.exception("duty_failed", duty=duty.__name__)
            soon = None
        return self._interval if soon is None else soon

    async def silence_workers(self) -> float | None:
        """Marks workers OFFLINE that were not heard of for too long; nothing happens to their runs."""
        if time.monotonic() < max(self._began, self._database.lost_at) + self._hearing:
            return None
        found = await self._read(partial(upkeep.silent, threshold=self._threshold, batch=self._batch))
        for namespace, workers in found.items():
            mark = partial(upkeep.silence, namespace=namespace, worker_ids=workers, threshold=self._threshold)
            for worker in await self._write(mark):
                log.info("worker_offline", namespace=namespace, worker=worker)
        return None

    async def expire_runs(self) -> float | None:
        """Asks runs past their deadline to end, ends those that did not, and answers when the next is late."""
        found = await self._read(partial(upkeep.late, grace=GRACE, batch=self._batch))
        for namespace, runs in found.items():
            expire = partial(upkeep.expire, namespace=namespace, run_ids=runs, grace=GRACE)
            ended, outcome = await self._write(expire)
            self._announce(namespace, outcome)
            for run in ended:
                log.info("run_expired", namespace=namespace, run=run)
        if sum(map(len, found.values())) == self._batch:
            return _NEXT_BATCH
        return await self._read(upkeep.next_deadline)

    async def remove_old(self) -> float | None:
        """Deletes what was kept long enough, in small batches; answers when to go on if there is more."""
        if time.monotonic() < self._removes_from:
            return None
        until = time.monotonic() + _REMOVE_SECS
        for what in await self._read(partial(upkeep.outlived, keep=self._keep_runs)):
            removed = self._batch
            while removed == self._batch:
                if time.monotonic() > until:
                    return _REMOVE_PAUSE
                removed = await self._write(partial(upkeep.remove, what=what, batch=self._batch))
                log.debug("runs_removed", namespace=what.namespace, status=what.status, count=removed)
        for namespace in await self._read(partial(upkeep.left_workers, keep=self._keep_workers)):
            forget = partial(upkeep.forget_workers, namespace=namespace, keep=self._keep_workers)
            await self._write(partial(forget, batch=self._batch))
        for namespace in await self._read(partial(upkeep.old_stats, keep=self._keep_stats)):
            forget = partial(upkeep.forget_stats, namespace=namespace, keep=self._keep_stats)
            await self._write(partial(forget, batch=self._batch))
        self._removes_from = time.monotonic() + self._interval * _REMOVE_EVERY
        return None

    async def clear_events(self) -> float | None:
        """Deletes events and inputs that nobody needs any more; answers when to go on if there may be more."""
        if time.monotonic() < self._clears_from:
            return None
        if not await self._clearance.clear(time.monotonic() + _REMOVE_SECS):
            return _REMOVE_PAUSE
        self._clears_from = time.monotonic() + self._interval * _REMOVE_EVERY
        return None

    async def merge_stats(self) -> float | None:
        """Makes one row of what several servers have counted in a minute or an hour that is over."""
        if time.monotonic() < self._merges_from:
            return None
        for namespace, span in await self._read(merges.scattered):
            await self._write(partial(merges.merge, namespace=namespace, span=span))
        self._merges_from = time.monotonic() + merge_every(self._interval)
        return None

    async def _read(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._database.read(work, _PATIENCE)

    async def _write(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return await self._database.transact(work, _PATIENCE)


def merge_every(interval: float) -> float:
    """Seconds after which the first pass merges again, where passes are so many apart."""
    return min(interval * _REMOVE_EVERY, _MERGE_WITHIN_SECS)
