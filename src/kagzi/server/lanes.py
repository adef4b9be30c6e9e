"""Which lane an operation goes to. What begins has a lane of its own, for it waits for nobody's results, and the phases
of handler runs have some. Unanswered operations of a run stay in one lane, behind one another; otherwise any lane of
its sort will do, and the one that is likely to flush first is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kagzi.server.lane import Flush, Lane
from kagzi.store.operation import HANDLING, Kind, Operation


@dataclass(slots=True)
class _Stay:
    """Where the operations of a run are, and how many of them."""

    lane: Lane
    count: int = 0


class Lanes:
    """So many lanes for runs under way, and for the phases of handlers."""

    def __init__(self, runs: int, handlers: int, most: int, flush: Flush) -> None:
        lanes = [Lane(number, most, flush) for number in range(1 + runs + handlers)]
        self._all = lanes
        self._running = lanes[1 : 1 + runs]
        self._handling = lanes[1 + runs :]
        self._stays: dict[tuple[str, str], _Stay] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._all)

    def enter(self, operation: Operation) -> Lane:
        """The lane of an operation that is not answered yet; `leave` has to follow."""
        if operation.kind is Kind.START:
            return self._all[0]
        key = (operation.namespace, operation.run_id)
        stay = self._stays.get(key)
        if stay is None:
            stay = self._stays[key] = _Stay(_soonest(self._handling if operation.kind in HANDLING else self._running))
        stay.count += 1
        return stay.lane

    def leave(self, operation: Operation) -> None:
        """The operation has its answer."""
        if operation.kind is not Kind.START:
            key = (operation.namespace, operation.run_id)
            stay = self._stays[key]
            stay.count -= 1
            if not stay.count:
                del self._stays[key]


def _soonest(lanes: list[Lane]) -> Lane:
    """The lane that is likely to flush next what is put into it: one at rest, else the one at work for longest."""
    return lanes[0] if len(lanes) == 1 else min(lanes, key=_since)


def _since(lane: Lane) -> float:
    return lane.since
