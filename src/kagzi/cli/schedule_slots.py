"""The commands of `kagzi schedules` about slots and runs: what is to come, what was, and what is made up for."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kagzi.cli.remote import Json, Namespace, Url, end, moment, reached
from kagzi.cli.schedule_options import Cron, EndAt, Every, Id, StartAt, Text, Timezone


def backfill(
    id: Id,
    since: Annotated[str, typer.Option(help="From this slot on, as 2026-06-01T00:00Z.")],
    until: Annotated[str | None, typer.Option(help="Up to, and without, this one; else up to now.")] = None,
    overlap: Annotated[
        str,
        typer.Option(
            help="allow: all at once. queue_all: one after another. skip, queue_one, cancel_previous: newest."
        ),
    ] = "allow",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Start nothing, only say what would be.")] = False,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Start the runs of past slots that have none."""
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen

    begin = moment("--since", since)
    assert begin is not None, "it must be given"
    policy: Any = overlap
    with reached(url, namespace) as client:
        handle = client.schedules.handle(id)
        with screen.progress("filling", None):
            done = handle.backfill(begin, moment("--until", until), overlap=policy, dry_run=dry_run)
        if json:
            slots = [{"scheduled_for": slot, "run_id": done.runs[slot]} for slot in sorted(done.runs)]
            counts = {"started": done.started, "already_existed": done.already_existed, "dry_run": dry_run}
            screen.print_json(counts | {"skipped": done.skipped, "slots": slots})
        else:
            tables.show_backfill(done, handle.describe().timezone)


def history(
    id: Id,
    status: Annotated[str | None, typer.Option(help="Only in this status, as FAILED.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    template: Annotated[
        str | None, typer.Option(help="Of a schedule that was deleted: the template run id its runs carry.")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show the runs that a schedule has started, newest first."""
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen

    which = status.upper() if status else None
    with reached(url, namespace) as client:
        handle = client.schedules.handle(id)
        timezone = "UTC" if template else handle.describe().timezone
        runs = list(handle.history(status=which, limit=limit, template_run_id=template))
    if json:
        screen.print_json([tables.run_document(run) for run in runs])
    elif runs:
        screen.show(tables.history(runs, timezone))
    else:
        typer.echo(f"No run of {id} {f'is {which}' if which else 'was started yet'}.")


def next_(
    id: Annotated[
        str | None, typer.Argument(help="The schedule's id; without one, give --cron, --every or --text.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many.", min=1)] = 10,
    after: Annotated[str | None, typer.Option(help="Only those after this, as 2026-06-01T12:00Z; else now.")] = None,
    cron: Cron = None,
    every: Every = None,
    text: Text = None,
    timezone: Timezone = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show the next fire times of a schedule, or of one that does not exist yet."""
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen

    proposed: dict[str, Any] = {"cron": cron, "every": every, "text": text}
    if any(given is not None for given in proposed.values()) == (id is not None):
        end("name a schedule, or say --cron, --every or --text: one of both")
    proposed |= {"timezone": timezone, "start_at": moment("--start-at", start_at), "end_at": moment("--end-at", end_at)}
    if id is not None and any(proposed.values()):
        end("--timezone, --start-at and --end-at are for a schedule that does not exist yet: leave them out")
    begin = moment("--after", after)
    with reached(url, namespace) as client:
        if id is not None:
            fires, words = client.schedules.handle(id).next_fires(count, after=begin), None
        else:
            found = client.schedules.preview(count, after=begin, **proposed)
            fires, words = list(found.fires), found.words
    if json:
        screen.print_json({"fires": fires} | ({"words": words} if words else {}))
        return
    if words:
        typer.echo(words)
    tables.show_fires(fires)
