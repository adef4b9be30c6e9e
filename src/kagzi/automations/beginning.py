"""That the body of a step runs, for people: said soon, and not at all if it has ended by then. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kagzi.automations.records import Record

if TYPE_CHECKING:
    from kagzi.automations.run import HandlerRun


class Beginning:
    """`behind` sends what has to leave before it; it is not called if the body ends at once."""

    __slots__ = ("_behind", "_ended", "_record", "_run", "_withdraw")

    def __init__(
        self, run: HandlerRun, record: Record, ended: asyncio.Future[Any], behind: Callable[[], None] | None
    ) -> None:
        self._run = run
        self._record = record
        self._ended = ended
        self._behind = behind
        self._withdraw: Callable[[], bool] | None = None
        if behind is None:
            self._say()
        else:
            # Behind the first step of the body's task, and what that calls when it has ended without waiting.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._say)

    def _say(self) -> None:
        if self._ended.done():
            return
        if self._behind is not None:
            self._behind()
        self._withdraw = self._run.host.send_soon(self._run, "step_started", self._record.started)

    def over(self) -> None:
        """The body has ended, or is stopped."""
        self._ended.cancel()
        if self._withdraw is not None:
            self._withdraw()
