"""Clearing away what automations left behind, one automation after the other and a stretch of each list at a time. How
far it came is kept in memory and only saves reading: whoever starts anew begins at the old end. Old things that must be
kept may be many, so that a round passes a few stretches of them in each automation, and the next one goes on there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

import structlog
from asyncpg.connection import Connection

from kagzi.store import clearance
from kagzi.store.clearance import Kept, Look, Place, Remove, Stretch
from kagzi.store.database import Database

log = structlog.get_logger(__name__)

# How many batches a look is for, and how many looks that remove nothing an automation has in a round.
_LOOK_BATCHES = 10
_BARREN = 5
# How long to leave an automation alone that somebody holds.
_HELD = 0.02
# As in the coordinator.
_PATIENCE = 2.0

# An automation's list.
_Shelf = tuple[str, str, int]


class Clearance:
    """Where the clearing stands."""

    def __init__(self, database: Database, keep: timedelta, batch: int) -> None:
        self._database = database
        self._keep = keep
        self._batch = batch
        self._left: list[Kept] = []
        self._places: dict[_Shelf, Place] = {}

    async def clear(self, until: float) -> bool:
        """Goes on until that time; answers whether the round is over. The next call begins another."""
        if not self._left:
            self._left = await self._database.read(partial(clearance.outlived, keep=self._keep), _PATIENCE)
            self._left.reverse()
            known = {(kept.namespace, kept.automation) for kept in self._left}
            self._places = {shelf: place for shelf, place in self._places.items() if shelf[:2] in known}
        while self._left:
            if not await self._automation(self._left[-1], until):
                return False
            self._left.pop()
        return True

    async def _automation(self, kept: Kept, until: float) -> bool:
        for number, (look, remove) in enumerate(clearance.SHELVES):
            if not await self._shelf((kept.namespace, kept.automation, number), kept, look, remove, until):
                return False
        await self._database.transact(partial(clearance.forget_handlers, kept=kept), _PATIENCE)
        return True

    async def _shelf(self, shelf: _Shelf, kept: Kept, look: Look, remove: Remove, until: float) -> bool:
        """Walks along one list; answers whether it was walked far enough for this round."""
        barren = 0
        while barren < _BARREN:
            if time.monotonic() > until:
                return False
            found = await self._look(look, kept, self._places.get(shelf))
            removed, whole = await self._remove(remove, kept, found.done)
            if not whole:
                # Somebody has the automation: looked at again from the same place.
                await asyncio.sleep(_HELD)
            elif found.place is None:
                self._places.pop(shelf, None)
                return True
            else:
                self._places[shelf] = found.place
            barren = 0 if removed else barren + 1
        return True

    async def _look(self, look: Look, kept: Kept, place: Place | None) -> Stretch:
        async def read(connection: Connection) -> Stretch:
            return await look(connection, kept, place, self._batch * _LOOK_BATCHES)

        return await self._database.read(read, _PATIENCE)

    async def _remove(self, remove: Remove, kept: Kept, keys: Sequence[Place]) -> tuple[int, bool]:
        """Removes in batches; answers how many are gone, and whether nobody was in the way."""
        removed = 0
        for start in range(0, len(keys), self._batch):
            batch = keys[start : start + self._batch]

            async def write(connection: Connection, batch: Sequence[Place] = batch) -> int | None:
                return await remove(connection, kept, batch)

            gone = await self._database.transact(write, _PATIENCE)
            if gone is None:
                return removed, False
            removed += gone
            log.debug("left_behind_removed", namespace=kept.namespace, automation=kept.automation, count=gone)
        return removed, True
