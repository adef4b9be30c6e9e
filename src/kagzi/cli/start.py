"""`kagzi start`: starts a run by the name of its workflow, or one for every line of a file, and waits when asked to."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from kagzi.cli.problems import FAILED
from kagzi.cli.remote import Json, Namespace, Url, document, end, moment, pairs, plain, reached
from kagzi.cli.suggestions import QUEUES, TYPES


def start(
    type: Annotated[str, typer.Argument(help="The workflow.", autocompletion=TYPES)],
    input: Annotated[str | None, typer.Option(help="Its input, as JSON.")] = None,
    each: Annotated[
        Path | None, typer.Option(help="Start a run for every line of this file, each its input as JSON; - is stdin.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and answer its output.")] = False,
    timeout: Annotated[str | None, typer.Option(help="How long the run may take, as 30s or 2h.")] = None,
    id: Annotated[
        str | None,
        typer.Option(help="Your own name for it; one active run has it. With --each: order-{n}, by the line's number."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="The queue.", autocompletion=QUEUES)] = None,
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
    given: dict[str, Any] = {
        "id": id,
        "queue": queue,
        "version": version,
        "delay": delay,
        "at": moment("--at", at),
        "priority": priority,
        "labels": pairs("--label", label),
        "timeout": timeout,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if each is None:
        _one(type, document("--input", input), options, url, namespace, wait=wait, json=json)
    elif input is not None:
        end("say --input or --each, not both: --each takes the inputs from the file")
    else:
        from kagzi.cli.many import start_each

        start_each(type, each, options, url, namespace, wait=wait, json=json)


def _one(
    type: str, input: Any, options: dict[str, Any], url: str | None, namespace: str | None, *, wait: bool, json: bool
) -> None:
    from kagzi.cli import reasons, screen
    from kagzi.cli.wording import spoken
    from kagzi.sdk.errors import RunCancelled, RunFailed

    with reached(url, namespace) as client:
        handle = client.start(type, input, **options)
        if not wait:
            _tell({"run_id": handle.run_id}, handle.run_id, json=json)
            return
        typer.secho(f"Started {handle.run_id}, waiting for its end.", err=True)
        try:
            with screen.progress(type, None) as (bar, _):
                output = reasons.result(handle, reasons.speaker(bar.console))
        except (RunFailed, RunCancelled) as ended:
            _tell({"run_id": handle.run_id, "error": spoken(ended)}, "", json=json)
            end(spoken(ended), FAILED)
    _tell({"run_id": handle.run_id, "output": output}, jsonlib.dumps(output, default=plain), json=json)


def _tell(document: dict[str, Any], text: str, *, json: bool) -> None:
    if json:
        typer.echo(jsonlib.dumps(document, default=plain))
    elif text:
        typer.echo(text)
