"""Runs as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli import screen
from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from kagzi.sdk.descriptions import Explanation, RunInfo, StepInfo

_DEFAULT_QUEUE = "default"
# What the time means at which a run can be taken next.
_AVAILABLE = {"PENDING": "due", "RUNNING": "lease ends", "SLEEPING": "wakes"}
# What the other columns of a timeline need, and how long its bars are at most.
_BESIDE = 46
_LONGEST_BAR = 60
_SHORTEST_BAR = 12


def show_list(runs: Sequence[RunInfo]) -> None:
    """Many runs, one a line."""
    if not runs:
        typer.echo("No runs. Start one with `kagzi start TYPE --input JSON`.")
        return
    # One queue alone is not worth a column.
    several = any(run.queue != _DEFAULT_QUEUE for run in runs)
    rows = [
        (
            run.run_id,
            run.type,
            screen.status(run.status),
            screen.clock(run.created_at),
            screen.span(run.started_at, run.finished_at),
            run.id,
            run.queue if several else "",
        )
        for run in runs
    ]
    columns = ("run", "workflow", "status", "created", "took", "id", "queue")
    screen.show(screen.table(*columns, rows=rows, wraps=("workflow", "id", "queue")))


def show(run: RunInfo, steps: Sequence[StepInfo]) -> None:
    """One run with its steps."""
    to = screen.console()
    screen.show(picture(run, steps, to.width if to.is_terminal else _BESIDE + _LONGEST_BAR))


def picture(run: RunInfo, steps: Sequence[StepInfo], width: int) -> RenderableType:
    """One run as a timeline that grows with every look, for a screen so wide."""
    from rich.console import Group
    from rich.text import Text

    told: list[RenderableType] = [screen.facts(*_facts(run))]
    if steps:
        begun = min((step.started_at for step in steps if step.started_at), default=run.created_at)
        until = run.finished_at or max(datetime.now(UTC), begun)
        names = max(len(step.step_id) for step in steps)
        bar = max(_SHORTEST_BAR, min(_LONGEST_BAR, width - _BESIDE - min(names, width // 4)))
        rows = [
            (
                step.step_id,
                _kind(step),
                screen.status(step.status),
                str(step.attempt) if step.attempt > 1 else "",
                _bar(begun, until, step, bar),
                screen.span(step.started_at, step.finished_at),
            )
            for step in steps
        ]
        told += [Text(""), screen.table("step", "kind", "status", "try", "when", "took", rows=rows, wraps=("step",))]
        told += [_error(step) for step in steps if step.error is not None and step.status != "COMPLETED"]
    return Group(*told)


def show_step(step: StepInfo) -> None:
    """One attempt of a step with what it returned or how it failed."""
    screen.show(
        screen.facts(
            ("step", step.step_id),
            ("kind", step.kind.lower()),
            ("status", screen.status(step.status)),
            ("try", step.attempt),
            ("attempt", step.attempt_id),
            ("waits for", step.target),
            ("child", step.child_run_id),
            ("started", screen.moment(step.started_at)),
            ("finished", screen.moment(step.finished_at)),
            ("took", screen.span(step.started_at, step.finished_at)),
            ("next try", screen.moment(step.retry_at)),
            ("wakes", screen.moment(step.wake_at)),
            ("output", _payload(lambda: step.output)),
            ("error", f"{step.error.type}: {step.error.message}" if step.error else None),
        )
    )
    if step.error is not None and step.error.traceback:
        typer.echo(f"\n{step.error.traceback.rstrip()}")


def show_explanation(told: Explanation) -> None:
    """Why a run is where it is."""
    typer.secho(told.summary, bold=True)
    for reason in told.reasons:
        if reason.sentence != told.summary:
            typer.echo(f"- {reason.sentence}")
        if reason.suggestion:
            typer.echo(f"  {reason.suggestion}")


def run_document(run: RunInfo, steps: Sequence[StepInfo] | None = None, *, whole: bool = False) -> dict[str, Any]:
    """A run as JSON; `whole` with what it was given and returned."""
    document = screen.fields(run)
    if whole:
        document |= {"input": run.input, "output": run.output}
    if steps is not None:
        document["steps"] = [screen.fields(step) | {"output": step.output} for step in steps]
    return document


def _facts(run: RunInfo) -> list[tuple[str, Any]]:
    return [
        ("run", run.run_id),
        ("id", run.id),
        ("workflow", f"{run.type} {run.version}".rstrip()),
        ("queue", run.queue),
        ("status", screen.status(run.status)),
        ("error", f"{run.error.type}: {run.error.message}" if run.error else None),
        ("labels", ", ".join(f"{key}={value}" for key, value in run.labels.items())),
        ("created", screen.moment(run.created_at)),
        ("started", screen.moment(run.started_at)),
        ("finished", screen.moment(run.finished_at)),
        ("took", screen.span(run.started_at, run.finished_at)),
        (_AVAILABLE.get(run.status, ""), screen.moment(run.available_at)),
        ("parent", run.parent_run_id),
        ("schedule", run.schedule),
        ("continued as", run.continued_as),
        ("retried from", run.retried_from),
        ("state", _json(run.state) if run.state is not None else None),
        ("input", _payload(lambda: run.input)),
        ("output", _payload(lambda: run.output)),
        *(("warning", f"{warning.step_id}: {warning.message}") for warning in run.warnings),
    ]


def _json(value: Any) -> str:
    return screen.short(json.dumps(value, default=plain, ensure_ascii=False), 500)


def _payload(read: Callable[[], Any]) -> str | None:
    """A value as JSON; one that needs a codec says so, for the rest of the run is worth seeing without it."""
    from kagzi.sdk.errors import PayloadError

    try:
        value = read()
    except PayloadError as error:
        return f"not readable here: {error}"
    return None if value is None else _json(value)


def _kind(step: StepInfo) -> str:
    return {"FUNCTION": "", "CHILD_WORKFLOW": "child"}.get(step.kind, step.kind.lower())


def _error(step: StepInfo) -> RenderableType:
    from rich.text import Text

    assert step.error is not None
    return Text(f"\n{step.step_id} failed: {step.error.type}: {step.error.message}", style="red")


def _bar(begun: datetime, until: datetime, step: StepInfo, width: int) -> Text:
    """Where in the life of its run a step lies; one that goes on ends with a point."""
    from rich.text import Text

    if step.started_at is None:
        return Text("")
    whole = max((until - begun).total_seconds(), 1e-6)
    first = min(width - 1, int(width * max(0.0, (step.started_at - begun).total_seconds()) / whole))
    end = step.finished_at or until
    last = min(width, max(first + 1, round(width * (end - begun).total_seconds() / whole)))
    drawn = "━" * (last - first) if step.finished_at else "─" * (last - first - 1) + "●"
    return Text(" " * first) + Text(drawn, style=screen.status(step.status).style)
