"""What the root of a run leaves behind when it ends: tasks that nobody waited for, and async generators that were begun
and not finished. As with `asyncio.run` each is cancelled once, does then what it likes for as long as it likes, and the
run ends when none lives. Unlike there, a task that is in the cleanup of an earlier cancel hears of the end only when it
goes on after that. Whom to cancel and when follows from what the code was given and asked for, and from no clock, so a
replay does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW
from kagzi.sdk.history import OWN
from kagzi.sdk.loop import RunTask
from kagzi.sdk.pending import Pending

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# How often those are cancelled that were made meanwhile.
_MOST_ROUNDS = 100
# A wait that is over sooner needs nobody's attention.
_SOON_US = 60_000_000


class Leftover:
    """The end of a run, from the moment its root is done."""

    __slots__ = ("_closed_generators", "_dropped", "_left", "_round", "_rounds", "_run", "_told")

    def __init__(self, run: Execution) -> None:
        self._run = run
        # Those that are waited for. What their cleanup starts is theirs to wait for; if they do not, it comes next.
        self._round: list[RunTask[Any]] = []
        self._left = 0
        self._rounds = 0
        self._dropped: set[RunTask[Any]] = set()
        self._closed_generators = False
        self._told = False

    def ended(self) -> bool:
        """Whether nothing is left to wait for. Called while the code rests; it may run until it rests again."""
        run = self._run
        while run.ledger.mismatch is None:
            if not self._left:
                if not self._begin_round():
                    return True
            elif run.agenda.open:
                return False
            else:
                self._end_waiting()
            run.loop.pump()
        return True

    def _begin_round(self) -> bool:
        loop = self._run.loop
        live = [task for task in loop.live() if task not in self._dropped]
        self._rounds += 1
        if live and self._rounds > _MOST_ROUNDS:
            self._drop(live, f"started anew whenever they were cancelled, {_MOST_ROUNDS} times")
            live = []
        for task in live:
            if task.cleans_up:
                task.got_over = _cancel
            else:
                _cancel(task)
        if not live and not self._closed_generators:
            self._closed_generators = True
            live = loop.close_generators()
        self._round, self._left = live, len(live)
        for task in live:
            task.add_done_callback(self._one_ended)
        return bool(live)

    def _one_ended(self, task: asyncio.Task[Any]) -> None:
        if task not in self._dropped:
            self._left -= 1

    def _end_waiting(self) -> None:
        """They wait for one another, or for an event that nobody will set."""
        live = [task for task in self._round if not task.done()]
        unheard = [task for task in live if task.got_over is not None]
        for task in unheard:
            _cancel(task)
        if not unheard:
            self._drop(live, "waited for an event, a queue or a lock that nothing will set")

    def cancel(self) -> None:
        """Somebody asks the run to end: all that live hear it, whatever they do."""
        for task in self._run.loop.live():
            if task not in self._dropped:
                _cancel(task)

    def _drop(self, tasks: Sequence[RunTask[Any]], reason: str) -> None:
        self._dropped.update(tasks)
        self._round, self._left = [], 0
        self._run.readings.warn(f"{OWN}end", f"after the workflow had ended, {_names(tasks)} {reason}: left behind")

    def drop_all(self, reason: str) -> None:
        """The code goes round without waiting: nothing of it is heard any more."""
        self._closed_generators = True
        self._drop(self._run.loop.live(), f"did not rest ({reason})")

    def tell(self) -> None:
        """The run is given back although its root is done. If it takes long, people should know for whom it waits."""
        waits = [step_id for step_id, pending in self._run.agenda.held.items() if self._takes_long(pending)]
        if not waits or self._told:
            return
        self._told = True
        message = f"the workflow has ended, and its run waits for {_names(self._run.loop.live())}"
        advice = (
            "Terminate it" if self._run.waits.cancelled else "Cancel it, and they hear that once more, or terminate it"
        )
        self._run.readings.warn(
            f"{OWN}left", f"{message}, at {', '.join(map(repr, waits[:3]))}. {advice} to end it now."
        )

    def _takes_long(self, pending: Pending) -> bool:
        if pending.request.kind == CHILD_WORKFLOW:
            return False
        if pending.due_us is not None:
            return pending.due_us - self._run.waits.now_us() >= _SOON_US
        return pending.duration_ms is None or pending.duration_ms * 1_000 >= _SOON_US


def _cancel(task: RunTask[Any]) -> None:
    task.got_over = None
    task.cancel("the workflow has ended")


def _names(tasks: Sequence[RunTask[Any]]) -> str:
    """The functions of the first tasks, each with the line where it is."""
    named = []
    for task in tasks[:3]:
        coroutine: Any = task.get_coro()
        frame = getattr(coroutine, "cr_frame", None)
        # What users call their functions may have any length, and a warning may not.
        name = repr(getattr(coroutine, "__qualname__", task.get_name())[-100:])
        where = "" if frame is None else f" at {frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        named.append(name + where)
    more = len(tasks) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")
