"""Automations as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from kagzi.cli import screen
from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from kagzi.sdk.automation_info import AutomationInfo, EventInfo, HandlerInfo, InputInfo, Lineage


def show_list(automations: Sequence[AutomationInfo]) -> None:
    """Many automations, one a line."""
    if not automations:
        typer.echo("No automations. A worker deploys its own: `kagzi worker MODULE`.")
        return
    rows = [
        (
            one.name,
            screen.status(one.status),
            f"{one.live_run.handler} ({one.live_run.phase or one.live_run.trigger})" if one.live_run else "",
            one.pending,
            screen.clock(one.next_at),
            screen.short(one.blocked.message) if one.blocked else "",
        )
        for one in automations
    ]
    columns = ("automation", "status", "running", "pending", "moves next", "what stops it")
    screen.show(screen.table(*columns, rows=rows, wraps=("automation", "running", "what stops it")))


def show(one: AutomationInfo) -> None:
    """One automation."""
    live = one.live_run
    running = None
    if live is not None:
        doing = " ".join(part for part in (live.phase, live.title) if part)
        running = f"{live.handler}, started by {live.trigger}: {doing or live.status} ({live.run_id})"
    parts = [
        screen.facts(
            ("automation", one.name),
            ("status", screen.status(one.status)),
            ("definition", f"{one.definition_hash}, deployed {screen.moment(one.deployed_at)}"),
            ("queue", one.queue),
            ("running", running),
            ("moves next", _moves(one)),
        )
    ]
    handlers = [
        (
            handler.name,
            handler.kind,
            ", ".join(handler.subscribes),
            ", ".join(handler.publishes),
            _when(handler),
            str(handler.failures or ""),
            screen.short(str(handler.last_error or "")),
        )
        for handler in one.handlers.values()
    ]
    columns = ("handler", "kind", "reads", "publishes", "when", "failures", "last error")
    parts.append(screen.table(*columns, rows=handlers, wraps=("reads", "publishes", "when", "last error")))
    if one.backlog:
        backlog = [(it.topic, it.consumer, it.pending, it.reserved, screen.clock(it.oldest_at)) for it in one.backlog]
        parts.append(screen.table("topic", "for", "pending", "taken", "oldest", rows=backlog, wraps=("topic", "for")))
    screen.show(*parts)
    _blocked(one)


def _moves(one: AutomationInfo) -> str:
    if one.blocked is not None:
        return "when what blocks it is settled"
    if one.status == "PAUSED":
        return f"when it is resumed: kagzi automations resume {one.name}"
    return screen.moment(one.next_at) or "when something is published, or somebody asks"


def _blocked(one: AutomationInfo) -> None:
    blocked = one.blocked
    if blocked is None:
        return
    typer.secho(f"Blocked since {screen.moment(blocked.since)} by {blocked.handler}: {blocked.message}", fg="red")
    if blocked.mutation is None:
        typer.echo(f"Deploy what mends it, or try again: kagzi automations retry {one.name}")
        return
    asked = json.dumps(blocked.mutation.parameters, default=plain, ensure_ascii=False)
    typer.echo(f"Nobody knows whether {blocked.mutation.tool}({asked}) happened. Look there, then say so:")
    again = "|check-again" if blocked.mutation.has_reconciler else ""
    typer.echo(f"  kagzi automations resolve {one.name} happened|did-not|skip{again}")


def show_events(events: Sequence[EventInfo], *, payloads: bool) -> None:
    """Events, one a line."""
    if not events:
        typer.echo("No events.")
        return
    rows = [
        (
            one.topic,
            one.id,
            screen.clock(one.created_at),
            ", ".join(f"{each.consumer} {each.status}" for each in one.deliveries.values()),
            ", ".join(map(str, one.inputs)),
            screen.short(json.dumps(one.payload, default=plain, ensure_ascii=False), 200) if payloads else "",
        )
        for one in events
    ]
    columns = ("topic", "event", "published", "deliveries", "from", "payload")
    screen.show(screen.table(*columns, rows=rows, wraps=("topic", "event", "deliveries", "from", "payload")))


def show_inputs(inputs: Sequence[InputInfo]) -> None:
    """Inputs, one a line."""
    if not inputs:
        typer.echo("No inputs.")
        return
    rows = [
        (str(one.input), screen.short(one.title), screen.status(one.status), one.pending, screen.clock(one.created_at))
        for one in inputs
    ]
    screen.show(screen.table("input", "title", "status", "pending", "came", rows=rows, wraps=("input", "title")))


def show_lineage(found: Lineage) -> None:
    """One input and what it caused."""
    one = found.input
    typer.echo(f"{one.input} {one.title!r} came {screen.moment(one.created_at)} and is {one.status}.\n")
    show_events(found.events, payloads=False)
    if found.runs:
        runs = [
            (run.run_id, run.handler, screen.status(run.status), screen.short(run.title), screen.clock(run.finished_at))
            for run in found.runs
        ]
        typer.echo()
        screen.show(screen.table("run", "handler", "status", "title", "ended", rows=runs, wraps=("handler", "title")))
    if found.mutations:
        changes = [
            (it.tool, it.handler, screen.status(it.status), it.checks, screen.clock(it.finished_at))
            for it in found.mutations
        ]
        typer.echo()
        screen.show(screen.table("mutation", "handler", "status", "checks", "ended", rows=changes))
    if found.truncated:
        typer.echo("There is more than is shown.")


def _when(handler: HandlerInfo) -> str:
    if handler.not_before is not None:
        return f"again at {screen.clock(handler.not_before)}"
    if handler.kind == "producer":
        return f"{handler.schedule}, next {'now' if handler.queued else screen.clock(handler.next_run_at)}"
    wakes = f"wakes {screen.clock(handler.wake_at)}" if handler.wake_at else ""
    return "something new" if handler.dirty else wakes
