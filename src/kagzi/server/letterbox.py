"""Wakes the runs of signals that were sent with the SQL function `kagzi.signal`, which only stores them. It looks when
a notice tells of one, and every second, whatever notices were lost. Any number of servers may look at once.
"""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from kagzi.server.announcer import Announcer
from kagzi.server.lifecycle import Loop, Wakeup
from kagzi.server.notifier import Notifier
from kagzi.store import letters
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.notices import Kind

log = structlog.get_logger(__name__)

# Servers tell each other of other things with the same kind of notice: looking for nothing must cost nothing.
_GAP = 0.02
# When a run was locked by somebody, or there were more than a batch.
_SOON = 0.05
_BATCH = 500


class Letterbox(Loop):
    """Looks for letters that nobody has heard."""

    name = "letterbox"

    def __init__(self, database: Database, notifier: Notifier, announcer: Announcer, *, interval: float = 1.0) -> None:
        super().__init__()
        self._database = database
        self._announcer = announcer
        self._interval = interval
        self._wakeup = Wakeup()
        notifier.subscribe(Kind.TOLD, lambda _key: self._wakeup.set())

    async def run(self) -> None:
        while not self.stopping.is_set():
            pause = self._interval
            try:
                if not await self._look():
                    pause = _SOON
            except Unreachable:
                log.warning("letterbox_waits_for_database")
            await asyncio.sleep(_GAP)
            await self._wakeup.wait(pause)

    async def _look(self) -> bool:
        """Hears what is there; answers whether that was all."""
        found = await self._database.read(partial(letters.unheard, batch=_BATCH))
        heard = 0
        for namespace, signal_ids in found.items():
            hear = partial(letters.hear, namespace=namespace, signal_ids=signal_ids)
            count, outcome = await self._database.transact(hear)
            self._announcer.announce(namespace, outcome)
            heard += count
        return heard == sum(map(len, found.values())) < _BATCH
