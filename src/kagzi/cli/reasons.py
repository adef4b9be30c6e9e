"""Why a run has not begun, told to who waits for it: when it has waited longer than a run that somebody serves, and
again when the reason is another. It only looks; a reason that cannot be had is left out, and the waiting goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from kagzi.sdk.errors import KagziError

if TYPE_CHECKING:
    from rich.console import Console

    from kagzi.sdk.descriptions import Explanation

_FIRST = 3.0
_AGAIN = 30.0


class Reasons:
    """Asks now and then why a run is PENDING, and says it."""

    def __init__(self, handle: Any, say: Callable[[str], None]) -> None:
        self._handle = handle
        self._say = say
        self._said = ""
        self._due = time.monotonic() + _FIRST

    @property
    def pause(self) -> timedelta:
        """How long nothing is to be asked."""
        return timedelta(seconds=max(0.001, self._due - time.monotonic()))

    def ask(self) -> bool:
        """Says why the run has not begun, if it is time for that. Whether it still may be worth asking."""
        if time.monotonic() < self._due:
            return True
        self._due = time.monotonic() + _AGAIN
        with suppress(KagziError):
            told = self._handle.explain()
            if told.status != "PENDING":
                return False
            line = _line(told)
            if line != self._said:
                self._said = line
                self._say(line)
        return True


def result(handle: Any, say: Callable[[str], None]) -> Any:
    """What the run returns, once it has ended; says why while it does not begin."""
    reasons = Reasons(handle, say)
    while True:
        try:
            return handle.result(timeout=reasons.pause)
        except TimeoutError:
            if not reasons.ask():
                return handle.result()


def speaker(to: Console) -> Callable[[str], None]:
    """Says lines there, above what moves on it."""
    return lambda line: to.print(line, markup=False, highlight=False, soft_wrap=True)


def _line(told: Explanation) -> str:
    advice = next((reason.suggestion for reason in told.reasons if reason.suggestion), "")
    return f"Not running yet: {told.summary[:1].lower()}{told.summary[1:]} {advice}".strip()
