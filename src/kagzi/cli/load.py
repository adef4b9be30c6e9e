"""`kagzi queues`, `kagzi types` and `kagzi stats`: what waits, who could run it, and how it went."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from kagzi.cli.asking import asking
from kagzi.cli.remote import Json, Limit, Namespace, Url, answered

_TOTALS = ("started", "completed", "failed", "cancelled", "steps_completed", "steps_failed", "leases_lost")
_STANDING = ("pending_due", "running", "sleeping")
_COLUMNS = ("from", "started", "done", "failed", "wait", "p99", "life", "p99", "due", "busy")
_MINUTES = 12
_MINUTE_MS = 60_000


def queues(
    queue: Annotated[str, typer.Option(help="Only this queue.")] = "",
    type: Annotated[str, typer.Option(help="Only this workflow.")] = "",
    limit: Limit = 100,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show what waits and what runs, by queue and workflow."""
    from kagzi.cli import screen
    from kagzi.dashboard.words import length

    with asking(url, namespace) as asked:
        rpc = "AdminService.GetQueueDepth"
        found = asked.each(rpc, "depths", limit, task_queue=queue, workflow_type=type)
    if json:
        screen.print_json(found)
    elif not found:
        typer.echo("Nothing waits, and no worker serves a queue. Start one with `kagzi worker MODULE`.")
    else:
        rows = [
            (
                each["task_queue"],
                each["workflow_type"],
                each["pending_due"],
                length(each["oldest_due_ms"]) if each["pending_due"] else "",
                each["running"],
                each["sleeping"],
                each["pending_later"],
                each["workers"],
                each["free_slots"],
            )
            for each in found
        ]
        names = ("queue", "workflow", "due", "oldest", "running", "asleep", "later", "workers", "free")
        screen.show(screen.table(*names, rows=rows, wraps=("queue", "workflow")))


def types(
    queue: Annotated[str, typer.Option(help="Only those served in this queue.")] = "",
    limit: Limit = 100,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List the workflows that workers have registered, with the versions there are."""
    from kagzi.cli import screen

    with asking(url, namespace) as asked:
        found = asked.each("AdminService.ListWorkflowTypes", "types", limit, task_queue=queue)
    if json:
        screen.print_json(found)
    elif not found:
        typer.echo("No worker has registered a workflow. Start one with `kagzi worker MODULE`.")
    else:
        rows = [
            (
                each["workflow_type"] if at == 0 else "",
                each["task_queue"] if at == 0 else "",
                form["version"],
                form["definition_hash"][:12],
                form["workers"],
                screen.ago(form["last_seen_at"]),
            )
            for each in found
            for at, form in enumerate(each["definitions"])
        ]
        screen.show(
            screen.table(
                "workflow", "queue", "version", "code", "workers", "seen", rows=rows, wraps=("workflow", "queue")
            )
        )


def stats(
    since: Annotated[str, typer.Option(help="How far back, as 6h or 2d.")] = "1h",
    type: Annotated[str, typer.Option(help="Only runs of this workflow.")] = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show how it went lately, and what needs attention now."""
    from kagzi.cli import screen
    from kagzi.sdk import option

    with answered():
        back = max(option.length(since, "since"), timedelta(minutes=1))
    # Some twelve rows, each of whole minutes.
    step = -(-back // timedelta(minutes=_MINUTES)) * _MINUTE_MS
    with asking(url, namespace) as asked:
        found = asked.call(
            "AdminService.GetStats",
            workflow_type=type,
            since=datetime.now(UTC) - back,
            step_ms=step,
            include_attention=True,
        )
    if json:
        screen.print_json(found)
        return
    lively = [point for point in found["points"] if any(point[name] for name in (*_TOTALS, *_STANDING))]
    if lively:
        screen.show(screen.table(*_COLUMNS, rows=[_point(point) for point in lively]))
        typer.echo("\nwait: due until taken, life: start until end; the median, and what 99 of 100 took.\n")
    totals = {name: sum(point[name] for point in found["points"]) for name in _TOTALS}
    typer.echo(f"In {since}: " + ", ".join(f"{name.replace('_', ' ')} {totals[name]:,}" for name in _TOTALS) + ".")
    for each in found["attention"]:
        typer.secho(f"! {each['sentence']}", fg="yellow")
    if not found["attention"]:
        typer.secho("Nothing needs attention.", fg="green")


def _point(point: dict[str, Any]) -> tuple[Any, ...]:
    from kagzi.cli import screen
    from kagzi.dashboard.words import length

    def told(kind: str, what: str) -> str:
        return length(point[kind][what]) if point[kind] else ""

    return (
        screen.clock(point["at"]).removesuffix(":00"),
        *(point[name] for name in ("started", "completed", "failed")),
        told("pickup", "p50_ms"),
        told("pickup", "p99_ms"),
        told("duration", "p50_ms"),
        told("duration", "p99_ms"),
        point["pending_due"],
        point["running"],
    )
