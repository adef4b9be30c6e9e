"""What a phrase says, part by part, before anybody asks whether a timetable can do it.

Each part is None until it is said. A phrase that cannot be, or can be only by guessing, is a Misfit, with another
phrase that is near and can.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from kagzi.timetable.lexicon import Clock

# The unit of a length of time that has several, as 1 hour 30 minutes.
MIXED = "mixed"


class Misfit(Exception):
    """It says nothing a timetable can do. `instead` is what it could say: a phrase, or its parts."""

    def __init__(self, reason: str, instead: Phrase | str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.instead = instead


@dataclass(frozen=True, slots=True)
class Phrase:
    """The parts of a phrase."""

    # "every 90 minutes"; also "every minute" and "every month", which count nothing and have no length.
    length: timedelta | None = None
    unit: str | None = None
    count: int | None = None
    # "every 15 minutes of every hour": it begins anew with each of these.
    within: str | None = None
    # "twice a day".
    rate: int | None = None
    weekdays: frozenset[int] | None = None
    excluded: frozenset[int] | None = None
    nth: frozenset[tuple[int, int]] | None = None
    dates: frozenset[int] | None = None
    months: frozenset[int] | None = None
    times: tuple[Clock, ...] | None = None
    window: tuple[Clock, Clock] | None = None
    minutes: frozenset[int] | None = None
    seconds: frozenset[int] | None = None

    @property
    def on_days(self) -> bool:
        """Whether it says which days, and not only how often."""
        said = (self.weekdays, self.excluded, self.nth, self.dates, self.months)
        return any(part is not None for part in said)
