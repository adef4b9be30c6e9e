"""The timer of automations: starts what is due by time alone, when it is due. It sleeps until the earliest time that
any handler waits for, is told of earlier ones as they are committed, and looks by itself every few seconds for what
somebody else, or a lost notice, left behind. Safe on every server at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from functools import partial

import structlog

from kagzi.server.clock import DatabaseClock
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.notifier import Notifier
from kagzi.store import alarms
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.notices import Kind
from kagzi.store.operation import Outcome

log = structlog.get_logger(__name__)

# Past a due time by this much before looking, so that a timer that fires early does not look twice.
_PAST = 0.001
# Somebody has it locked, and chooses what is next; if not, the next sweep does.
_AGAIN = 0.02
_TRIES = 3
_PATIENCE = 2.0


class Alarm(Loop):
    """Wakes automations at their times."""

    name = "alarm"

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        announce: Callable[[str, Outcome], None],
        *,
        interval: float,
        batch: int,
    ) -> None:
        super().__init__()
        self._database = database
        self._announce = announce
        self._interval = interval
        self._batch = batch
        self._clock = DatabaseClock()
        self._next: datetime | None = None
        # When everything was last looked through, on the monotonic clock; and whether something is known to be new.
        self._swept = -interval
        self._news = True
        self._wakeup = Wakeup()
        notifier.subscribe(Kind.CLOCK, lambda _key: self.look())

    def look(self) -> None:
        """A time may be sooner than what is waited for."""
        self._news = True
        self._wakeup.set()

    def rings(self, at: datetime) -> None:
        """A handler is due at `at`, which may be sooner than what is waited for."""
        if self._next is None or at < self._next:
            self._next = at
            self._wakeup.set()

    async def run(self) -> None:
        while not self.stopping.is_set():
            pause = self._nap()
            if pause > 0:
                await self._wakeup.wait(pause)
                continue
            try:
                await self._pass()
            except Unreachable:
                log.warning("alarm_without_database")
                await self.pause(self._interval)

    def _nap(self) -> float:
        """Seconds until there is something to look for."""
        if self._news:
            return 0.0
        pause = max(0.0, self._swept + self._interval - time.monotonic())
        if self._next is not None:
            pause = min(pause, max(0.0, self._clock.until(self._next) + _PAST))
        return pause

    async def _pass(self) -> None:
        """Starts what is due, until nothing is, and finds out when something is next."""
        sweeps = time.monotonic() >= self._swept + self._interval
        if sweeps:
            self._swept = time.monotonic()
        self._news = False
        self._next = None
        missed = 0
        while missed < _TRIES:
            found = await self._database.read(partial(alarms.due, batch=self._batch, stranded=sweeps), _PATIENCE)
            if not found:
                break
            started = sum([await self._start(namespace, names) for namespace, names in found.items()])
            if not started:
                missed += 1
                await self.pause(_AGAIN)
        now, at = await self._database.read(alarms.next_due, _PATIENCE)
        self._clock.observe(now)
        if at is not None and (self._next is None or at < self._next):
            self._next = at

    async def _start(self, namespace: str, names: list[str]) -> int:
        start = partial(alarms.start, namespace=namespace, names=names)
        started, outcome = await self._database.transact(start, _PATIENCE)
        self._announce(namespace, outcome)
        return started
