"""Timers of a run: what `call_later` gives back, and the clock that makes them durable.

The loop measures no time. It asks its clock for a timer and waits to be told; a timer that is cancelled
before it fired tells the clock, so that its record can be closed. Neither side speaks of a timer twice.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The time of one run, as its history records it."""

    def now(self) -> float:
        """Seconds since the epoch. Moves only when something is handed to the run, and alike in replay."""
        ...

    def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Start a timer of `delay` > 0 seconds; `fire` it when due, and pump. Returns how to cancel it."""
        ...


class Timer(asyncio.TimerHandle):
    """A callback that waits for the clock, then for its turn."""

    __slots__ = ("fired", "stop")

    fired: bool
    stop: Callable[[], None] | None

    def when(self) -> float:
        """On the loop's clock. Asked for only when somebody asks: a reading of the clock may have to be recorded."""
        # asyncio.Handle keeps its loop here.
        return float(self._loop.time() + self._when)  # type: ignore[attr-defined]

    def start(self, clock: Clock, delay: float, due: Callable[["Timer"], None]) -> None:
        def fire() -> None:
            if not self.fired and not self.cancelled():
                self.fired = True
                due(self)

        self.stop = clock.start_timer(delay, fire)
