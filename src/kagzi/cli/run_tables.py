"""Runs as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kagzi.sdk.descriptions import Explanation, RunInfo, StepInfo

_COLOURS = {
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELLED": "yellow",
    "RUNNING": "cyan",
    "UNKNOWN": "magenta",
    "SLEEPING": "blue",
}
_BAR = 32


def show_list(runs: Sequence[RunInfo]) -> None:
    """Many runs, one a line."""
    from rich.markup import escape

    if not runs:
        typer.echo("No runs. Start one with `kagzi start TYPE --input JSON`.")
        return
    table = _table("run", "id", "workflow", "queue", "status", "created", "took")
    for run in runs:
        table.add_row(
            run.run_id,
            escape(run.id or ""),
            escape(run.type),
            escape(run.queue),
            status(run.status),
            moment(run.created_at),
            _took(run.started_at, run.finished_at),
        )
    print_(table)


def show(run: RunInfo, steps: Sequence[StepInfo]) -> None:
    """One run with its steps."""
    print_(picture(run, steps))


def picture(run: RunInfo, steps: Sequence[StepInfo]) -> RenderableType:
    """One run as a timeline that grows with every look."""
    from rich.console import Group
    from rich.markup import escape

    facts = _table("", "", head=False)
    for name, value in _facts(run):
        facts.add_row(name, escape(value))
    facts.add_row("status", status(run.status))
    if run.error is not None:
        facts.add_row("error", escape(f"{run.error.type}: {run.error.message}"))
    if not steps:
        return facts
    begun = min((step.started_at for step in steps if step.started_at), default=run.created_at)
    until = run.finished_at or datetime.now(UTC)
    table = _table("step", "kind", "status", "try", "when", "took")
    for step in steps:
        table.add_row(
            escape(step.step_id),
            step.kind.lower(),
            status(step.status),
            str(step.attempt),
            _bar(begun, until, step.started_at, step.finished_at),
            _took(step.started_at, step.finished_at),
        )
        if step.error is not None:
            table.add_row("", "", "", "", escape(f"{step.error.type}: {step.error.message}"), "")
    return Group(facts, table)


def show_explanation(told: Explanation) -> None:
    """Why a run is where it is."""
    typer.secho(told.summary, bold=True)
    for reason in told.reasons:
        typer.echo(f"- {reason.sentence}")
        if reason.suggestion:
            typer.echo(f"  {reason.suggestion}")


def run_document(run: RunInfo, steps: Sequence[StepInfo] | None = None, *, whole: bool = False) -> dict[str, Any]:
    """A run as JSON; `whole` with what it was given and returned."""
    document = _document(run)
    if whole:
        document |= {"input": run.input, "output": run.output}
    if steps is not None:
        document["steps"] = [_document(step) | {"output": step.output} for step in steps]
    return document


def print_json(document: Any) -> None:
    """Prints a document as JSON."""
    typer.echo(json.dumps(document, default=plain))


def print_(what: RenderableType) -> None:
    """Prints a table, as wide as it needs when nobody looks."""
    from rich.console import Console

    console = Console()
    console.print(what, crop=False, soft_wrap=not console.is_terminal)


def status(name: str) -> str:
    """A status in its colour."""
    colour = _COLOURS.get(name)
    return f"[{colour}]{name}[/]" if colour else str(name)


def moment(at: datetime | None) -> str:
    """A time as it is here."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _document(told: Any) -> dict[str, Any]:
    return {
        field.name: dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
        for field in dataclasses.fields(told)
        if not field.name.startswith("_")
        for value in (getattr(told, field.name),)
    }


def _facts(run: RunInfo) -> list[tuple[str, str]]:
    known: list[tuple[str, Any]] = [
        ("run", run.run_id),
        ("id", run.id),
        ("workflow", run.type),
        ("version", run.version),
        ("queue", run.queue),
        ("labels", ", ".join(f"{key}={value}" for key, value in run.labels.items())),
        ("created", moment(run.created_at)),
        ("started", moment(run.started_at)),
        ("finished", moment(run.finished_at)),
        ("due", moment(run.available_at) if not run.status.ended else ""),
        ("parent", run.parent_run_id),
        ("schedule", run.schedule),
        ("continued as", run.continued_as),
        ("retried from", run.retried_from),
        ("state", json.dumps(run.state, default=plain) if run.state is not None else None),
    ]
    return [(name, str(value)) for name, value in known if value] + [
        ("warning", f"{warning.step_id}: {warning.message}") for warning in run.warnings
    ]


def _bar(begun: datetime, until: datetime, start: datetime | None, finish: datetime | None) -> str:
    """Where in the life of its run a step lies."""
    whole = max((until - begun).total_seconds(), 1e-6)
    if start is None:
        return ""
    first = min(_BAR - 1, int(_BAR * max(0.0, (start - begun).total_seconds()) / whole))
    last = min(_BAR, max(first + 1, round(_BAR * ((finish or until) - begun).total_seconds() / whole)))
    return " " * first + "━" * (last - first)


def _took(start: datetime | None, finish: datetime | None) -> str:
    if start is None or finish is None:
        return ""
    seconds = (finish - start).total_seconds()
    return f"{seconds * 1_000:.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def _table(*columns: str, head: bool = True) -> Table:
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD if head else box.SIMPLE, show_header=head)
