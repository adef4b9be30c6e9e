"""Schedules as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli import screen
from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from kagzi.sdk.descriptions import RunInfo
    from kagzi.sdk.schedule_info import Backfill, ScheduleInfo


def show_list(schedules: Sequence[ScheduleInfo]) -> None:
    """Many schedules, one a line."""
    if not schedules:
        typer.echo("No schedules. Create one with `kagzi schedules create ID TYPE --text 'every day at 09:00'`.")
        return
    rows = [
        (
            one.id,
            one.type,
            one.words,
            local(one.next_fire_at, one.timezone),
            local(one.last_slot, one.timezone),
            one.runs_started,
            _status(one),
        )
        for one in schedules
    ]
    columns = ("id", "workflow", "when", "next", "last", "runs", "status")
    screen.show(screen.table(*columns, rows=rows, wraps=("id", "workflow", "when", "next", "last", "status")))


def show(one: ScheduleInfo, fires: Sequence[datetime], runs: Sequence[RunInfo]) -> None:
    """One schedule with its next fires and its last runs."""
    upcoming = [("next fires" if number == 0 else "", _told(fire)) for number, fire in enumerate(fires)]
    parts = [screen.facts(("id", one.id), ("status", _status(one)), *_facts(one), *upcoming)]
    screen.show(*parts, *([history(runs, one.timezone)] if runs else []))


def history(runs: Sequence[RunInfo], timezone: str) -> Table:
    """Runs of a schedule, with their slots in its time zone."""
    rows = [
        (
            run.run_id,
            local(run.scheduled_for, timezone) if run.scheduled_for else "by hand",
            screen.status(run.status),
            screen.span(run.started_at, run.finished_at),
        )
        for run in runs
    ]
    return screen.table("run", "slot", "status", "took", rows=rows, wraps=("slot",))


def show_backfill(done: Backfill, timezone: str) -> None:
    """What a backfill did."""
    left_out = set(done.skipped)
    rows = [
        (local(slot, timezone), done.runs[slot] or ("left out" if slot in left_out else "would start"))
        for slot in sorted(done.runs)
    ]
    if rows:
        screen.show(screen.table("slot", "run", rows=rows))
    verb = "would start" if done.dry_run else "started"
    left = f"; {len(left_out)} left out" if left_out else ""
    typer.echo(f"{verb.capitalize()} {done.started}; {done.already_existed} had their run{left}.")


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


def _status(one: ScheduleInfo) -> Text:
    from rich.text import Text

    if one.error:
        return Text(f"broken: {one.error}", style="red")
    if one.pause:
        reason = f": {one.pause_reason}" if one.pause_reason else ""
        return Text(f"paused ({one.pause}){reason}", style="yellow")
    return Text("scheduled", style="green")
