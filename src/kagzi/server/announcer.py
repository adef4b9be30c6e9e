"""What a committed change means for whoever waits: queues to look into, timers to set, runs whose end somebody watches,
held runs for which something arrived. Local listeners hear of it at once, other servers by a notice that may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar

from kagzi.server.notifier import Notifier
from kagzi.store.notices import Kind, key_hash
from kagzi.store.operation import Ended, Operation, Outcome

T = TypeVar("T")


class Queues(Protocol):
    """Where runs wait for workers."""

    def look(self, namespace: str, task_queue: str) -> None: ...

    def look_at(self, namespace: str, task_queue: str, moment: datetime) -> None: ...


class Announcer:
    """Tells of committed changes."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._queues: list[Queues] = []
        self._ended: list[Callable[[str, Sequence[Ended]], None]] = []
        self._told: list[Callable[[str, Sequence[str]], None]] = []
        self._applied: list[Callable[[str, Sequence[Operation]], None]] = []
        self._deadline: list[Callable[[], None]] = []
        self._alarm: list[Callable[[datetime], None]] = []
        self._started: list[Callable[[str, Sequence[str]], None]] = []
        self._clock: list[Callable[[], None]] = []
        self._claimed: list[Callable[[str, Sequence[tuple[str, float]]], None]] = []
        self._flushed: list[Callable[[int, float], None]] = []

    def add_queues(self, queues: Queues) -> None:
        """`queues` hears of runs that are or become due."""
        self._queues.append(queues)

    def on_ended(self, listener: Callable[[str, Sequence[Ended]], None]) -> None:
        """`listener` hears of runs that ended."""
        self._ended.append(listener)

    def on_applied(self, listener: Callable[[str, Sequence[Operation]], None]) -> None:
        """`listener` hears of operations that were committed, or refused."""
        self._applied.append(listener)

    def on_told(self, listener: Callable[[str, Sequence[str]], None]) -> None:
        """`listener` hears of held runs for which a fact arrived."""
        self._told.append(listener)

    def on_deadline(self, listener: Callable[[], None]) -> None:
        """`listener` hears that a run got a deadline."""
        self._deadline.append(listener)

    def on_alarm(self, listener: Callable[[datetime], None]) -> None:
        """`listener` hears when an automation may move by time alone."""
        self._alarm.append(listener)

    def on_started(self, listener: Callable[[str, Sequence[str]], None]) -> None:
        """`listener` hears of runs that exist since a moment ago, by their types."""
        self._started.append(listener)

    def on_claimed(self, listener: Callable[[str, Sequence[tuple[str, float]]], None]) -> None:
        """`listener` hears of runs that were claimed: their types, and for how long they had been due."""
        self._claimed.append(listener)

    def on_flushed(self, listener: Callable[[int, float], None]) -> None:
        """`listener` hears how many operations a flush had, and how many seconds it took."""
        self._flushed.append(listener)

    def on_clock(self, listener: Callable[[], None]) -> None:
        """`listener` hears that a schedule may be due sooner than before."""
        self._clock.append(listener)

    def announce(self, namespace: str, outcome: Outcome) -> None:
        """The transaction with this outcome was committed."""
        for task_queue in outcome.due:
            self.due(namespace, task_queue)
        for task_queue, moment in outcome.later.items():
            for queues in self._queues:
                queues.look_at(namespace, task_queue, moment)
        self._set_timers(outcome)
        _tell(self._started, namespace, outcome.started)
        _tell(self._claimed, namespace, outcome.waited)
        if outcome.ended:
            _tell(self._ended, namespace, outcome.ended)
            self._notifier.tell(Kind.ENDED, key_hash(namespace))
        _tell(self._told, namespace, outcome.told)
        for run_id in outcome.told:
            self._notifier.tell(Kind.TOLD, key_hash(namespace, run_id))

    def _set_timers(self, outcome: Outcome) -> None:
        if outcome.deadline:
            for listener in self._deadline:
                listener()
        if outcome.alarm is not None:
            for rings in self._alarm:
                rings(outcome.alarm)

    def applied(self, namespace: str, operations: Sequence[Operation]) -> None:
        """These operations have their answers."""
        for applied in self._applied:
            applied(namespace, operations)

    def flushed(self, operations: int, seconds: float) -> None:
        """A flush of so many operations took so long."""
        for flushed in self._flushed:
            flushed(operations, seconds)

    def clock(self, namespace: str) -> None:
        """A schedule of this namespace was created or changed."""
        for listener in self._clock:
            listener()
        self._notifier.tell(Kind.CLOCK, key_hash(namespace))

    def due(self, namespace: str, task_queue: str) -> None:
        """Something in this queue can be claimed now."""
        for queues in self._queues:
            queues.look(namespace, task_queue)
        self._notifier.tell(Kind.WORK, key_hash(namespace, task_queue))


def _tell(listeners: Sequence[Callable[[str, Sequence[T]], None]], namespace: str, what: Sequence[T]) -> None:
    if what:
        for listener in listeners:
            listener(namespace, what)
