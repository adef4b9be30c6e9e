"""Places: where a run can go. A connected stream has as many free places as the worker gave credit for; a waiting
PollTask is one. A place is memory of this process alone: what it promises is written in the run's row, by its token.
"""

from __future__ import annotations

from typing import Protocol

from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store.claims import Served

# What somebody had locked is looked for again after this, then less and less often.
_SOON = 0.01


class Place(Protocol):
    """A worker that can take runs."""

    worker_id: str
    served: Served
    # How many more runs it takes.
    free: int
    # What follows a run of its own may take that run's place.
    lends: bool
    # Suspended runs that it says it keeps in memory, by id, with the tokens they were suspended with.
    residents: dict[str, str]

    def deliver(self, delivery: Delivery) -> None:
        """A claimed run for this worker; the claim is durable."""
        ...

    def end(self) -> None:
        """The server stops: nothing more comes here."""
        ...


class Group:
    """Places that serve the same types of one queue, so that one claim can serve them all."""

    __slots__ = ("_missed", "drained", "news", "places", "served", "unversioned")

    def __init__(self, served: Served) -> None:
        self.served = served
        # Types that any run without a version can have.
        self.unversioned = frozenset(
            name for name, version in zip(served.types, served.versions, strict=True) if not version
        )
        # Nothing was due when somebody last looked, and no news came since: what is started now is the oldest.
        self.drained = False
        # Counts what may have become due, to notice what came while somebody looked.
        self.news = 0
        self.places: list[Place] = []
        # Looks in a row that found something due and could not get it.
        self._missed = 0

    @property
    def free(self) -> int:
        return sum(place.free for place in self.places)

    def look(self) -> None:
        """Something may be due."""
        self.drained = False
        self.news += 1

    def pause(self, *, missed: bool) -> float:
        """Seconds until the next look after one that could not get what is due, longer each time; else 0."""
        self._missed = self._missed + 1 if missed else 0
        return min(_SOON * 2**self._missed, 1.0) if missed else 0.0

    def serves(self, workflow_type: str, version: str) -> bool:
        return (workflow_type, version) in zip(self.served.types, self.served.versions, strict=True)

    def take(self) -> Place | None:
        """A free place, the emptiest first; it has one less then."""
        place = max(self.places, key=lambda place: place.free, default=None)
        if place is None or place.free <= 0:
            return None
        place.free -= 1
        return place
