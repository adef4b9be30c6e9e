"""`kagzi schedules`: workflows that start by themselves. Every command does what the client can do, and answers as a
table or as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli import schedule_slots
from kagzi.cli.remote import Json, Namespace, Url, document, end, pairs, reached
from kagzi.cli.schedule_options import (
    Attempts,
    Cron,
    EndAt,
    Every,
    Id,
    Input,
    Jitter,
    Labels,
    MaxCatchup,
    MaxRuns,
    Overlap,
    Priority,
    Queue,
    StartAt,
    Text,
    Timeout,
    Timezone,
    Version,
    options,
)

if TYPE_CHECKING:
    from kagzi.sdk.schedule_info import ScheduleInfo

app = typer.Typer(help="Look after schedules.", no_args_is_help=True)
app.command()(schedule_slots.backfill)
app.command()(schedule_slots.history)
app.command("next")(schedule_slots.next_)


@app.command("list")
def list_(
    status: Annotated[str | None, typer.Option(help="SCHEDULED or PAUSED; else both.")] = None,
    type: Annotated[str | None, typer.Option(help="Only of this workflow.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.")] = None,
    label: Labels = None,
    broken: Annotated[bool, typer.Option("--broken", help="Only those that cannot fire.")] = False,
    limit: Annotated[int | None, typer.Option(help="At most so many.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List schedules, paused ones too."""
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = list(
            client.schedules.list(
                status=status.upper() if status else None,
                type=type,
                queue=queue,
                labels=pairs("--label", label),
                broken=broken,
                limit=limit,
            )
        )
    if json:
        screen.print_json([tables.schedule_document(one) for one in found])
    else:
        tables.show_list(found)


@app.command()
def create(
    id: Id,
    type: Annotated[str, typer.Argument(help="The workflow it starts.")],
    cron: Cron = None,
    every: Every = None,
    text: Text = None,
    timezone: Timezone = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    jitter: Jitter = None,
    max_runs: MaxRuns = None,
    overlap: Overlap = None,
    max_catchup: MaxCatchup = None,
    paused: Annotated[bool, typer.Option("--paused", help="Fires only once it is resumed.")] = False,
    input: Input = None,
    queue: Queue = None,
    version: Version = None,
    priority: Priority = None,
    label: Labels = None,
    timeout: Timeout = None,
    attempts: Attempts = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Create a schedule that starts the workflow TYPE, by --cron, --every or --text."""
    with reached(url, namespace) as client:
        made = client.schedules.create(id, type, document("--input", input), paused=paused, **options(locals()))
        _show(made.describe(), json=json, said="Created")


@app.command()
def update(
    id: Id,
    type: Annotated[str | None, typer.Option(help="The workflow it starts.")] = None,
    cron: Cron = None,
    every: Every = None,
    text: Text = None,
    timezone: Timezone = None,
    start_at: StartAt = None,
    end_at: EndAt = None,
    jitter: Jitter = None,
    max_runs: MaxRuns = None,
    overlap: Overlap = None,
    max_catchup: MaxCatchup = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Resume or pause it.")] = None,
    input: Input = None,
    queue: Queue = None,
    version: Version = None,
    priority: Priority = None,
    label: Labels = None,
    timeout: Timeout = None,
    attempts: Attempts = None,
    clear: Annotated[
        list[str] | None, typer.Option(help="Take away start_at, end_at, timeout, retry or input; repeat it.")
    ] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Change what is given and leave the rest; a change of times takes effect from now."""
    with reached(url, namespace) as client:
        changes = options(locals())
        changes |= {"workflow": type} if type else {}
        changes |= {"enabled": enabled} if enabled is not None else {}
        changes |= {"input": document("--input", input)} if input is not None else {}
        for name in clear or ():
            if name not in ("start_at", "end_at", "timeout", "retry", "input") or name in changes:
                end(
                    f"--clear {name} takes nothing away: it is start_at, end_at, timeout, retry or input, and not given"
                )
            changes[name] = None
        if not changes:
            end("nothing to change: give an option, as --cron '0 3 * * *'")
        _show(client.schedules.handle(id).update(**changes), json=json, said="Changed")


@app.command()
def show(id: Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Show a schedule, its next fires and its last runs."""
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen
    from kagzi.sdk.errors import PreconditionFailed

    with reached(url, namespace) as client:
        handle = client.schedules.handle(id)
        found = handle.describe()
        try:
            fires = handle.next_fires(5)
        except PreconditionFailed:
            # A broken one says so itself.
            fires = []
        runs = list(handle.history(limit=10))
        if json:
            shown = tables.schedule_document(found, with_input=True)
            screen.print_json(shown | {"next_fires": fires, "runs": [tables.run_document(run) for run in runs]})
        else:
            tables.show(found, fires, runs)


@app.command()
def pause(
    id: Id,
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Stop firing until it is resumed."""
    with reached(url, namespace) as client:
        _show(client.schedules.handle(id).pause(reason), json=json, said="Paused")


@app.command()
def resume(id: Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Fire again from the next slot; those of the pause are skipped."""
    with reached(url, namespace) as client:
        _show(client.schedules.handle(id).resume(), json=json, said="Resumed")


@app.command()
def trigger(
    id: Id,
    input: Annotated[str | None, typer.Option("--input", help="Input for this run alone, as JSON.")] = None,
    overlap: Overlap = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Start one run now, also of a paused schedule."""
    from kagzi.cli import screen

    given: Any = overlap
    with reached(url, namespace) as client:
        started = client.schedules.handle(id).trigger(input=document("--input", input), overlap=given)
    if json:
        screen.print_json({"run_id": started.run_id if started else None, "skipped": started is None})
    elif started is None:
        typer.echo("Nothing was started: the run before has not ended. Say --overlap allow to start one all the same.")
    else:
        typer.echo(f"Started run {started.run_id}.")


@app.command()
def delete(id: Id, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Remove a schedule; its runs stay as they are."""
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        template = client.schedules.handle(id).delete()
    if json:
        screen.print_json({"deleted": id, "template_run_id": template})
    else:
        typer.echo(f"Deleted {id}. Its runs stay: kagzi schedules history {id} --template {template}")


def _show(one: ScheduleInfo, *, json: bool, said: str) -> None:
    from kagzi.cli import schedule_tables as tables
    from kagzi.cli import screen

    if json:
        screen.print_json(tables.schedule_document(one))
        return
    fires = (
        f" Fires next at {tables.local(one.next_fire_at, one.timezone)} ({one.timezone})." if one.next_fire_at else ""
    )
    typer.echo(f"{said} {one.id}: {one.words}.{fires}")
