"""What somebody has to type for a field of a request: the option or the argument of the command that runs, as its usage
shows it. A field that the command has nothing for stays without a name here, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import typer

# What commands call otherwise than the contract and the client.
_OTHERWISE = {
    "automation": "name",
    "event_id": "id",
    "every_ms": "every",
    "external_id": "id",
    "maximum_attempts": "attempts",
    "page_size": "limit",
    "payload": "input",
    "schedule_id": "id",
    "signal_id": "id",
    "task_queue": "queue",
    "template_run_id": "template",
    "workflow": "type",
    "workflow_type": "type",
}
_KEY = re.compile(r"\[.*\]")


def typed(field: str) -> str | None:
    """The option, as --cron for "timing.cron", or the argument, as the usage shows it."""
    ctx = _running()
    found = _parameter(ctx, field)
    return None if found is None else _shown(found, ctx)


def listing(field: str) -> str | None:
    """The command that lists what the field names, where it is what the running command is about."""
    ctx = _running()
    found = _parameter(ctx, field)
    if found is None or ctx.parent is None:
        return None
    about = next((each for each in ctx.command.params if each.param_type_name == "argument"), None)
    lists = getattr(ctx.parent.command, "commands", {}).get("list")
    if found is not about or lists is None:
        return None
    everything = " --all" if any("--all" in each.opts for each in lists.params) else ""
    return f"{ctx.parent.command_path} list{everything}"


def _running() -> Any:
    """The context of the command that runs; None where none does."""
    # The parser is a package of its own for some versions of Typer and a part of it for others.
    parser = typer.BadParameter.__module__.rpartition(".")[0]
    return import_module(f"{parser}.globals").get_current_context(silent=True)


def _parameter(ctx: Any, field: str) -> Any:
    if ctx is None:
        return None
    by_name = {name: each for each in ctx.command.params for name in (_plain(each.opts[0]), each.name)}
    return next((by_name[name] for name in _spellings(field) if name in by_name), None)


def _spellings(field: str) -> Iterator[str]:
    """What the parameter for a field may be called, the likeliest first."""
    name = _KEY.sub("", field).rpartition(".")[2]
    yield name
    if name in _OTHERWISE:
        yield _OTHERWISE[name]
    for ending in ("_id", "_ms", "es", "s"):
        yield name.removesuffix(ending)


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _shown(parameter: Any, ctx: Any) -> str:
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return " ".join(parameter.get_usage_pieces(ctx)).strip("[]")
