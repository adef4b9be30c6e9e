"""`kagzi start`: starts a run by the name of its workflow, and waits for it when asked to."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated, Any

import typer

from kagzi.cli.problems import FAILED
from kagzi.cli.remote import Json, Namespace, Url, document, moment, pairs, plain, reached


def start(
    type: Annotated[str, typer.Argument(help="The workflow.")],
    input: Annotated[str | None, typer.Option(help="Its input, as JSON.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and answer its output.")] = False,
    timeout: Annotated[str | None, typer.Option(help="How long the run may take, as 30s or 2h.")] = None,
    id: Annotated[str | None, typer.Option(help="Your own name for it; one active run has it.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue.")] = None,
    version: Annotated[str | None, typer.Option(help="Only workers with this version run it.")] = None,
    delay: Annotated[str | None, typer.Option(help="Begin after this, as 10m.")] = None,
    at: Annotated[str | None, typer.Option(help="Begin at this time, as 2026-06-01T12:00Z.")] = None,
    priority: Annotated[int | None, typer.Option(help="0 to 4, higher first; else 2.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="A label, as customer=7; repeat it.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Start a run of the workflow TYPE."""
    from kagzi.sdk.errors import RunCancelled, RunFailed

    options: dict[str, Any] = {
        "id": id,
        "queue": queue,
        "version": version,
        "delay": delay,
        "at": moment("--at", at),
        "priority": priority,
        "labels": pairs("--label", label),
        "timeout": timeout,
    }
    given = document("--input", input)
    with reached(url, namespace) as client:
        handle = client.start(type, given, **{name: value for name, value in options.items() if value is not None})
        if not wait:
            _tell({"run_id": handle.run_id}, handle.run_id, json=json)
            return
        typer.secho(f"Started {handle.run_id}, waiting for its end.", err=True)
        try:
            output = handle.result()
        except (RunFailed, RunCancelled) as ended:
            _tell({"run_id": handle.run_id, "error": str(ended)}, "", json=json)
            typer.secho(f"error: {ended}", fg="red", err=True)
            raise typer.Exit(FAILED) from None
    _tell({"run_id": handle.run_id, "output": output}, jsonlib.dumps(output, default=plain), json=json)


def _tell(document: dict[str, Any], text: str, *, json: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps(document, default=plain))
    elif text:
        typer.echo(text)
