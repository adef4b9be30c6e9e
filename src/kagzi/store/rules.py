"""What the server decides and the store applies: how far `wake_at` of an automation may lie from now, when a producer's
schedule is due next, how large a history may become. The store reads no timetable and no setting itself. Also the one
backoff of handlers and of checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

# A handler that failed, and a reconciler that could not tell, is asked again after this, twice as long each time.
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=10)
# Failures, or checks, in a row after which a person has to look.
TRIES = 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a producer runs: `kind` is "interval", with milliseconds as `value`, or "cron", with an expression."""

    kind: str
    value: str
    timezone: str
    anchor: datetime


def never(_schedule: Schedule, _after: datetime) -> datetime | None:
    """A timetable without a slot."""
    return None


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a server that the store applies."""

    wake_min: timedelta = timedelta(seconds=30)
    wake_max: timedelta = timedelta(hours=24)
    # The first slot of a schedule after a moment.
    next_slot: Callable[[Schedule, datetime], datetime | None] = never
    # How much a run may have on record.
    history_steps: int = 20_000
    history_bytes: int = 50_000_000

    @property
    def history_share(self) -> int:
        """The bytes for each step with which no number of steps goes beyond the limit."""
        return self.history_bytes // self.history_steps

    def history_slack(self, position: int) -> int:
        """What a history with so many steps may hold beyond their shares; below 0 when they are too many."""
        return -1 if position > self.history_steps else self.history_bytes - self.history_share * position


def pause(failures: int) -> timedelta:
    """How long to wait after so many failures in a row."""
    return min(FIRST_PAUSE * (1 << min(failures - 1, 30)), LONGEST_PAUSE)
