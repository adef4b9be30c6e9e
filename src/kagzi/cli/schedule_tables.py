"""Schedules as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from kagzi.sdk.descriptions import RunInfo
    from kagzi.sdk.schedule_info import Backfill, ScheduleInfo


def show_list(schedules: Sequence[ScheduleInfo]) -> None:
    """Many schedules, one a line."""
    from rich.markup import escape

    if not schedules:
        typer.echo("No schedules. Create one with `kagzi schedules create ID TYPE --text 'every day at 09:00'`.")
        return
    table = _table("id", "workflow", "when", "next", "last", "runs", "status")
    for one in schedules:
        table.add_row(
            *(escape(text) for text in (one.id, one.type, one.words, local(one.next_fire_at, one.timezone))),
            local(one.last_slot, one.timezone),
            str(one.runs_started),
            _status(one),
        )
    _print(table)


def show(one: ScheduleInfo, fires: Sequence[datetime], runs: Sequence[RunInfo]) -> None:
    """One schedule with its next fires and its last runs."""
    from rich.markup import escape

    table = _table("", one.id, head=False)
    for name, value in _facts(one):
        table.add_row(name, escape(value))
    table.add_row("status", _status(one))
    for number, fire in enumerate(fires):
        table.add_row("next fires" if number == 0 else "", _told(fire))
    _print(table)
    if runs:
        history = _table("run", "slot", "status", "started", "took")
        for run in runs:
            took = run.finished_at - run.started_at if run.finished_at and run.started_at else None
            history.add_row(
                run.run_id,
                local(run.scheduled_for, one.timezone) if run.scheduled_for else "by hand",
                run.status,
                local(run.started_at, one.timezone),
                "" if took is None else f"{took.total_seconds():.1f} s",
            )
        _print(history)


def show_backfill(done: Backfill, timezone: str) -> None:
    """What a backfill did."""
    table = _table("slot", "run")
    for slot in sorted(done.runs):
        table.add_row(local(slot, timezone), done.runs[slot] or "would start")
    if done.runs:
        _print(table)
    verb = "would start" if done.dry_run else "started"
    typer.echo(f"{verb.capitalize()} {done.started}; {done.already_existed} had their run.")


def show_fires(fires: Sequence[datetime]) -> None:
    """Fire times, one a line."""
    for fire in fires:
        typer.echo(_told(fire))
    if not fires:
        typer.echo("It never fires again.")


def schedule_document(one: ScheduleInfo, *, with_input: bool = False) -> dict[str, Any]:
    """A schedule as JSON has it."""
    names = [field.name for field in dataclasses.fields(one) if not field.name.startswith("_")]
    made = {name: getattr(one, name) for name in names}
    made["retry"] = None if one.retry is None else dataclasses.asdict(one.retry)
    return made | ({"input": one.input} if with_input else {})


def run_document(run: RunInfo) -> dict[str, Any]:
    """A run of a schedule as JSON has it."""
    return {
        "run_id": run.run_id,
        "id": run.id,
        "status": run.status,
        "scheduled_for": run.scheduled_for,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def print_json(document: Any) -> None:
    """Prints JSON."""
    typer.echo(json.dumps(document, indent=2, default=plain, ensure_ascii=False))


def local(moment: datetime | None, timezone: str) -> str:
    """A time in a zone, or as it is where that zone is not known."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if moment is None:
        return ""
    try:
        return f"{moment.astimezone(ZoneInfo(timezone)):%Y-%m-%d %H:%M:%S}"
    except (ZoneInfoNotFoundError, ValueError):
        return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _told(fire: datetime) -> str:
    return f"{fire:%a %Y-%m-%d %H:%M:%S %z}"


def _facts(one: ScheduleInfo) -> list[tuple[str, str]]:
    """What there is to say of a schedule; what it does not have is left out."""
    said: list[tuple[str, Any]] = [
        ("workflow", one.type),
        ("queue", one.queue),
        ("version", one.version),
        ("when", one.words),
        ("cron", one.cron),
        ("every", one.every),
        ("time zone", one.timezone),
        ("from", one.start_at),
        ("until", one.end_at),
        ("jitter", one.jitter or None),
        ("overlap", one.overlap),
        ("catch-up", one.max_catchup),
        ("runs", f"{one.runs_started} of {one.max_runs}" if one.max_runs else one.runs_started),
        ("time limit", one.timeout),
        ("labels", ", ".join(f"{name}={value}" for name, value in one.labels.items())),
        ("input", None if one.input is None else json.dumps(one.input, default=plain, ensure_ascii=False)),
        ("notice", one.notice),
    ]
    return [(name, str(value)) for name, value in said if value not in (None, "", timedelta())]


def _status(one: ScheduleInfo) -> str:
    from rich.markup import escape

    if one.error:
        return f"[red]broken: {escape(one.error)}[/]"
    if one.pause:
        reason = f": {escape(one.pause_reason)}" if one.pause_reason else ""
        return f"[yellow]paused ({one.pause}){reason}[/]"
    return "[green]scheduled[/]"


def _table(*columns: str, head: bool = True) -> Any:
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD if head else box.SIMPLE, show_header=head)


def _print(table: Any) -> None:
    from rich.console import Console

    Console().print(table)
