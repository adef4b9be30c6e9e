"""Starting a run for every line of a file, and waiting for all of them, with a bar that shows how far it is. All lines
are read before anything is started, so that a file with a mistake in it starts nothing.
"""

from __future__ import annotations

import asyncio
import json as jsonlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kagzi.cli import screen
from kagzi.cli.problems import FAILED
from kagzi.cli.remote import PATIENCE, answered, end

if TYPE_CHECKING:
    from kagzi.sdk.client import Client
    from kagzi.sdk.handle import Handle

# Enough to fill calls of many starts; the server is never asked to hold a whole file.
_AT_ONCE = 1_000
_NUMBER = "{n}"


def start_each(
    type: str, file: Path, options: dict[str, Any], url: str | None, namespace: str | None, *, wait: bool, json: bool
) -> None:
    """Starts a run for each line of `file`; with `wait` the command ends with 1 unless all complete."""
    from kagzi.cli.process import run

    if _NUMBER not in options.get("id", _NUMBER):
        end(f"--id {options['id']!r} would name every run alike: write the line's number into it, as order-{_NUMBER}")
    inputs = _inputs(file)
    with answered():
        told = run(_start(type, inputs, options, url, namespace, wait=wait))
    if json:
        screen.print_json(told)
    else:
        for one in told:
            typer.echo(one["run_id"] if not wait else f"{one['run_id']} {jsonlib.dumps(_ending(one), default=str)}")
    failed = sum("error" in one for one in told)
    if failed:
        end(f"{failed} of {len(told)} runs did not complete: `kagzi runs list --status failed` shows them", FAILED)


def _inputs(file: Path) -> list[Any]:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        end(f"--each {file} cannot be read: {error}")
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append(jsonlib.loads(line))
            except ValueError as error:
                end(f"line {number} of {file} is no JSON ({error}); nothing was started")
    return found


async def _start(
    type: str, inputs: list[Any], options: dict[str, Any], url: str | None, namespace: str | None, *, wait: bool
) -> list[dict[str, Any]]:
    from kagzi.sdk.client import Client

    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        handles: list[Handle[Any]] = []
        with screen.progress("starting", len(inputs)) as (bar, task):
            for first in range(0, len(inputs), _AT_ONCE):
                part = enumerate(inputs[first : first + _AT_ONCE], first + 1)
                handles += await asyncio.gather(*(_one(client, type, number, each, options) for number, each in part))
                bar.update(task, completed=len(handles))
        if not wait:
            return [{"run_id": handle.run_id} for handle in handles]
        typer.secho(f"Started {len(handles)} runs, waiting for their ends.", err=True)
        with screen.progress("waiting", len(handles)) as (bar, task):
            return await asyncio.gather(*(_ended(handle, lambda: bar.advance(task)) for handle in handles))


async def _one(client: Client, type: str, number: int, input: Any, options: dict[str, Any]) -> Handle[Any]:
    named = {"id": options["id"].replace(_NUMBER, str(number))} if "id" in options else {}
    return await client.start(type, input, **{**options, **named})


async def _ended(handle: Handle[Any], tick: Any) -> dict[str, Any]:
    from kagzi.cli.wording import spoken
    from kagzi.sdk.errors import RunCancelled, RunFailed

    try:
        return {"run_id": handle.run_id, "output": await handle.result()}
    except (RunFailed, RunCancelled) as ended:
        return {"run_id": handle.run_id, "error": spoken(ended)}
    finally:
        tick()


def _ending(told: dict[str, Any]) -> Any:
    return {"error": told["error"]} if "error" in told else told["output"]
