"""Watching a run until it has ended: a picture that grows on a terminal, a line for every change in a pipe or a file.
It only looks, and says nothing of what did not change. Why a run does not begin is said too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli import run_tables as tables
from kagzi.cli import screen
from kagzi.cli.reasons import Reasons, speaker

if TYPE_CHECKING:
    from kagzi.sdk.descriptions import RunInfo, StepInfo

_PAUSE = 0.25

Seen = tuple["RunInfo", Sequence["StepInfo"]]
# How what was seen is shown, and how a line is said beside it.
Shown = tuple[Callable[[Seen], None], Callable[[str], None]]


def watch(handle: Any, *, err: bool = False) -> Seen:
    """Looks until the run has ended, and answers it with its steps. Shows what happens, on stderr if asked to."""

    def look() -> Seen:
        return handle.describe(), handle.steps()

    seen = look()
    with (_picture if screen.console(err=err).is_terminal else _lines)(seen, err=err) as (show, say):
        reasons = Reasons(handle, say)
        while not seen[0].status.ended:
            time.sleep(_PAUSE)
            seen = look()
            show(seen)
            if seen[0].status == "PENDING":
                reasons.ask()
    return seen


@contextmanager
def _picture(seen: Seen, *, err: bool) -> Iterator[Shown]:
    from rich.live import Live

    to = screen.console(err=err)
    with Live(tables.picture(*seen, to.width), console=to, auto_refresh=False, transient=True) as live:
        yield lambda now: live.update(tables.picture(*now, to.width), refresh=True), speaker(to)


@contextmanager
def _lines(seen: Seen, *, err: bool) -> Iterator[Shown]:
    said: dict[str, str] = {}

    def show(now: Seen) -> None:
        for name, what in _standing(*now):
            if said.get(name) != what:
                said[name] = what
                typer.echo(f"{screen.moment(datetime.now(UTC))}  {name}  {what}", err=err)

    show(seen)
    yield show, speaker(screen.console(err=True))


def _standing(run: RunInfo, steps: Sequence[StepInfo]) -> Iterator[tuple[str, str]]:
    """What can change, by name, each in a line."""
    for step in steps:
        tries = f", try {step.attempt}" if step.attempt > 1 else ""
        error = f": {step.error.type}: {step.error.message}" if step.error and step.status != "COMPLETED" else ""
        yield f"step {step.step_id}", screen.short(f"{step.status}{tries}{error}", 300)
    error = f": {run.error.type}: {run.error.message}" if run.error else ""
    yield f"run {run.run_id}", screen.short(f"{run.status}{error}", 300)
