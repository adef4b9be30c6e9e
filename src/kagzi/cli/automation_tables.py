"""Automations as people see them in a terminal, and as JSON. It asks nobody anything."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli.remote import plain

if TYPE_CHECKING:
    from kagzi.sdk.automation_info import AutomationInfo, EventInfo, HandlerInfo, InputInfo, Lineage

_COLORS = {
    "ACTIVE": "green",
    "DONE": "green",
    "CONSUMED": "green",
    "APPLIED": "green",
    "COMPLETED": "green",
    "PAUSED": "yellow",
    "SKIPPED": "yellow",
    "BLOCKED": "red",
    "FAILED": "red",
    "INDETERMINATE": "red",
}
_LONGEST = 60


def show_list(automations: Sequence[AutomationInfo]) -> None:
    """Many automations, one a line."""
    if not automations:
        typer.echo("No automations. A worker deploys its own: `kagzi worker MODULE`.")
        return
    table = _table("automation", "status", "running", "pending", "moves next", "what stops it")
    for one in automations:
        running = f"{one.live_run.handler} ({one.live_run.phase or one.live_run.trigger})" if one.live_run else ""
        stops = one.blocked.message if one.blocked else ""
        _row(table, one.name, one.status, running, str(one.pending), _time(one.next_at), _short(stops))
    _print(table)


def show(one: AutomationInfo) -> None:
    """One automation."""
    facts = _table("", "", head=False)
    _row(facts, "automation", one.name)
    _row(facts, "status", one.status)
    _row(facts, "definition", f"{one.definition_hash}, deployed {_time(one.deployed_at)}")
    _row(facts, "queue", one.queue)
    if one.live_run is not None:
        live = one.live_run
        doing = " ".join(part for part in (live.phase, live.title) if part)
        _row(facts, "running", f"{live.handler}, started by {live.trigger}: {doing or live.status} ({live.run_id})")
    _row(facts, "moves next", _time(one.next_at) or "when something is published, or somebody asks")
    _print(facts)
    handlers = _table("handler", "kind", "reads", "publishes", "when", "failures", "last error")
    for handler in one.handlers.values():
        _row(
            handlers,
            handler.name,
            handler.kind,
            ", ".join(handler.subscribes),
            ", ".join(handler.publishes),
            _when(handler),
            str(handler.failures or ""),
            _short(str(handler.last_error or "")),
        )
    _print(handlers)
    backlog = _table("topic", "for", "pending", "taken", "oldest")
    for each in one.backlog:
        _row(backlog, each.topic, each.consumer, str(each.pending), str(each.reserved), _time(each.oldest_at))
    if one.backlog:
        _print(backlog)
    _blocked(one)


def _blocked(one: AutomationInfo) -> None:
    blocked = one.blocked
    if blocked is None:
        return
    typer.secho(f"Blocked since {_time(blocked.since)} by {blocked.handler}: {blocked.message}", fg="red")
    if blocked.mutation is None:
        typer.echo(f"Deploy what mends it, or try again: kagzi automations retry {one.name}")
        return
    asked = json.dumps(blocked.mutation.parameters, default=plain, ensure_ascii=False)
    typer.echo(f"Nobody knows whether {blocked.mutation.tool}({asked}) happened. Look there, then say so:")
    typer.echo(f"  kagzi automations resolve {one.name} happened|did-not|skip|check-again")


def show_events(events: Sequence[EventInfo], *, payloads: bool) -> None:
    """Events, one a line."""
    if not events:
        typer.echo("No events.")
        return
    table = _table("topic", "event", "published", "deliveries", "from", *(["payload"] if payloads else []))
    for one in events:
        deliveries = ", ".join(f"{each.consumer} {each.status}" for each in one.deliveries.values())
        shown = [json.dumps(one.payload, default=plain, ensure_ascii=False)] if payloads else []
        _row(table, one.topic, one.id, _time(one.created_at), deliveries, ", ".join(map(str, one.inputs)), *shown)
    _print(table)


def show_inputs(inputs: Sequence[InputInfo]) -> None:
    """Inputs, one a line."""
    if not inputs:
        typer.echo("No inputs.")
        return
    table = _table("input", "title", "status", "pending", "came")
    for one in inputs:
        _row(table, str(one.input), _short(one.title), one.status, str(one.pending), _time(one.created_at))
    _print(table)


def show_lineage(found: Lineage) -> None:
    """One input and what it caused."""
    one = found.input
    typer.echo(f"{one.input} {one.title!r} came {_time(one.created_at)} and is {one.status}.")
    show_events(found.events, payloads=False)
    runs = _table("run", "handler", "status", "title", "ended")
    for run in found.runs:
        _row(runs, run.run_id, run.handler, run.status, _short(run.title), _time(run.finished_at))
    if found.runs:
        _print(runs)
    changes = _table("mutation", "handler", "status", "checks", "ended")
    for change in found.mutations:
        _row(changes, change.tool, change.handler, change.status, str(change.checks), _time(change.finished_at))
    if found.mutations:
        _print(changes)
    if found.truncated:
        typer.echo("There is more than is shown.")


def fields(one: Any) -> dict[str, Any]:
    """What the client was told, as JSON has it."""
    names = [field.name for field in dataclasses.fields(one) if not field.name.startswith("_")]
    return {name: _value(getattr(one, name)) for name in names}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields(value)
    if isinstance(value, Mapping):
        return {name: _value(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_value(one) for one in value]
    return value


def print_json(document: Any) -> None:
    """Prints JSON."""
    typer.echo(json.dumps(document, indent=2, default=plain, ensure_ascii=False))


def _when(handler: HandlerInfo) -> str:
    if handler.not_before is not None:
        return f"again at {_time(handler.not_before)}"
    if handler.kind == "producer":
        return f"{handler.schedule}, next {'now' if handler.queued else _time(handler.next_run_at)}"
    wakes = f"wakes {_time(handler.wake_at)}" if handler.wake_at else ""
    return "something new" if handler.dirty else wakes


def _time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def _short(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def _row(table: Any, *cells: str) -> None:
    from rich.text import Text

    # As text: what users wrote is no markup.
    table.add_row(*(Text(str(cell), style=_COLORS.get(str(cell), "")) for cell in cells))


def _table(*columns: str, head: bool = True) -> Any:
    from rich import box
    from rich.table import Table

    return Table(*columns, box=box.SIMPLE_HEAD if head else box.SIMPLE, show_header=head)


def _print(table: Any) -> None:
    from rich.console import Console

    Console().print(table)
