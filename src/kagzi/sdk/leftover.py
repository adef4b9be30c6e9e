"""What the root of a run leaves behind when it ends: tasks that nobody waited for, and async generators that were begun
and not finished. As with `asyncio.run` they are cancelled, their cleanup runs, and the run ends when none lives. Unlike
there, a task that is being cancelled already is not disturbed in its cleanup. When and whom to cancel follows from what
the code was given and asked for, and from no clock, so a replay does the same. A cleanup is never cut short for taking
long; a task that goes on where it was cancelled is cancelled again, and at last left behind with a warning on the run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, SIGNAL, SLEEP
from kagzi.sdk.history import OWN
from kagzi.sdk.loop import RunTask
from kagzi.sdk.pending import Pending
from kagzi.sdk.source import standing

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# How often a task is cancelled that goes on as if it had not been.
_PATIENCE = 3
# What an endless loop waits for. A step in a loop may be a list of things to undo, and is never refused.
_WAITS = frozenset({SLEEP, SIGNAL})
_ADVICE = "Let asyncio.CancelledError pass, or wait for the task before the workflow returns."


class Leftover:
    """The end of a run, from the moment its root is done."""

    __slots__ = ("_closed_generators", "_given_up", "_left", "_round", "_run", "_told")

    def __init__(self, run: Execution) -> None:
        self._run = run
        # Those that are waited for. What their cleanup starts is theirs to wait for; if they do not, it comes next.
        self._round: list[RunTask[Any]] = []
        self._left = 0
        self._given_up: set[RunTask[Any]] = set()
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
                # They wait for one another, or for an event that nobody will set.
                for task in self._round:
                    if not task.done():
                        self._insist(task)
            run.loop.pump()
        return True

    def _begin_round(self) -> bool:
        loop = self._run.loop
        live = [task for task in loop.live() if task not in self._given_up]
        for task in live:
            # One that is being cancelled cleans up. Should it get over that, as over its own timeout, it hears too.
            task.got_over = self._insist
            if not task.cancelling():
                self._insist(task)
        if not live and not self._closed_generators:
            self._closed_generators = True
            live = loop.close_generators()
        self._round, self._left = live, len(live)
        for task in live:
            task.add_done_callback(self._one_ended)
        return bool(live)

    def _one_ended(self, task: asyncio.Task[Any]) -> None:
        if task not in self._given_up:
            self._left -= 1

    def _insist(self, task: RunTask[Any], step_id: str = f"{OWN}end") -> None:
        if task.insisted < _PATIENCE:
            task.insisted += 1
            task.cancel("the workflow has ended")
        elif task not in self._given_up:
            self._give_up(task, step_id)

    def refuses(self, pending: Pending) -> bool:
        """The code asks for something. A task that was cancelled at this very place while it waited for a timer or a
        signal, and asks for one again, goes on as before: it is cancelled again, and in the end refused, whereupon it
        waits for nothing.
        """
        if pending.request.kind not in _WAITS:
            return False
        task = asyncio.current_task(self._run.loop)
        if not isinstance(task, RunTask) or not task.was_cancelled_at(standing()):
            return False
        self._insist(task, pending.step_id)
        return task in self._given_up

    def _give_up(self, task: RunTask[Any], step_id: str) -> None:
        self._given_up.add(task)
        if task in self._round:
            self._left -= 1
        message = f"task {_name(task)} went on after the workflow had ended, was cancelled {task.insisted} times"
        self._run.readings.warn(step_id, f"{message}, and is left behind. {_ADVICE}")

    def give_up_all(self, reason: str) -> None:
        """The code goes round without waiting: nothing of it is heard any more."""
        self._given_up.update(self._run.loop.live())
        self._round, self._left, self._closed_generators = [], 0, True
        self._run.readings.warn(f"{OWN}end", f"after the workflow had ended, {reason}")

    def tell(self) -> None:
        """The run is given back although its root is done. If only somebody else can wake it, they should know."""
        if self._told or any(_moves(pending) for pending in self._run.agenda.held.values()):
            return
        self._told = True
        tasks = ", ".join(_name(task) for task in self._run.loop.live()[:3])
        waits = list(self._run.agenda.held)
        message = f"the workflow has ended, and its run waits for the cleanup of {tasks}"
        self._run.readings.warn(
            waits[0], f"{message}, at {', '.join(map(repr, waits[:3]))}. Terminate it to end it now."
        )


def _moves(pending: Pending) -> bool:
    """Whether it comes to an end by itself: a time, or another run."""
    return pending.due_us is not None or pending.duration_ms is not None or pending.request.kind == CHILD_WORKFLOW


def _name(task: RunTask[Any]) -> str:
    # A name of the users' choice may have any length, and a warning may not.
    return repr(task.get_name()[:100])


def note_cancelled(run: Execution, pending: Pending) -> None:
    """The code was cancelled while it waited for a step."""
    if pending.request.kind in _WAITS:
        task = asyncio.current_task(run.loop)
        if isinstance(task, RunTask):
            task.note_cancelled(standing())
