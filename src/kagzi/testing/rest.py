"""When everything rests: no worker of the environment holds a run, the database has none that is held, due or past its
deadline, and no schedule is due. Nothing is guessed: what moves is waited for by its own event, then the database is
asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from kagzi.server.app import Server
from kagzi.testing.clock import Activity, VirtualClock
from kagzi.testing.crew import Hand

log = logging.getLogger("kagzi.testing")

# A run that is due was not taken for so long: the queues are told once more to look, for a notice may be lost.
_LOOK_AGAIN = 0.05
# A step body may take its time, but then the test should say why it stands still.
_SPEAK_UP = 5.0


class Rest:
    """Knows whether something moves in one environment. `stirred` is set when a worker takes a run."""

    def __init__(self, server: Server, clock: VirtualClock, workers: Sequence[Hand], stirred: asyncio.Event) -> None:
        self._server = server
        self._clock = clock
        self._workers = workers
        self._stirred = stirred

    async def come(self) -> Activity:
        """Waits until everything rests; answers what is to come."""
        speaking = asyncio.create_task(self._speak_up())
        try:
            while True:
                await asyncio.gather(*(worker.idle() for worker in self._workers))
                self._stirred.clear()
                activity = await self.look()
                if activity is not None:
                    return activity
        finally:
            speaking.cancel()

    async def look(self) -> Activity | None:
        """What is to come, if everything rests now; otherwise helps it on a little and answers None."""
        activity = await self._clock.activity()
        if not activity.stirring and not any(worker.holds for worker in self._workers):
            return activity
        if activity.ringing:
            self._server.alarm.look()
        if activity.late:
            await self._server.coordinator.expire_runs()
        elif activity.slots:
            await self._server.firing.fire_due()
        elif activity.stirring:
            await self._taken()
        return None

    async def _taken(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_AGAIN):
                await self._stirred.wait()
                return
        self._server.dispatcher.heard(None)

    async def _speak_up(self) -> None:
        """Names what does not come to rest, when that takes long."""
        await asyncio.sleep(_SPEAK_UP)
        bodies = ", ".join(body for worker in self._workers for body in worker.bodies())
        log.warning("the clock waits for what still moves: %s", bodies or await self._clock.activity())
