"""`kagzi runs`: looks at runs and acts on them. Every command does what the client can do, and answers as a table or as
JSON. A run is named by its run id, or by the id its caller chose.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli.problems import FAILED
from kagzi.cli.remote import Json, Namespace, Url, document, end, moment, pairs, reached
from kagzi.cli.suggestions import QUEUES, RUN_STATUS, RUNS, TYPES, words

if TYPE_CHECKING:
    from kagzi.sdk.sync import SyncClient

app = typer.Typer(help="Look at runs and act on them.", no_args_is_help=True)

Run = Annotated[str, typer.Argument(help="The run's id, or the id its caller chose.", autocompletion=RUNS)]
Reason = Annotated[str, typer.Option(help="Why; it is kept with the run.")]
_ANSWERS = ("applied", "not_applied", "fail")


def _handle(client: SyncClient, run: str) -> Any:
    try:
        return client.handle(str(uuid.UUID(run)))
    except ValueError:
        return client.find(run)


@app.command("list")
def list_(
    status: Annotated[
        str | None, typer.Option(help="Only in this status, as FAILED.", autocompletion=RUN_STATUS)
    ] = None,
    type: Annotated[str | None, typer.Option(help="Only of this workflow.", autocompletion=TYPES)] = None,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.", autocompletion=QUEUES)] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only with this label, as customer=7; repeat it.")] = None,
    since: Annotated[str | None, typer.Option(help="Only created since, as 2026-06-01T12:00Z.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1)] = 50,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List runs, newest first."""
    from kagzi.cli import run_tables as tables
    from kagzi.cli import screen

    which: dict[str, Any] = {
        "status": status.upper() if status else None,
        "type": type,
        "queue": queue,
        "labels": pairs("--label", label),
        "since": moment("--since", since),
    }
    with reached(url, namespace) as client:
        found = list(client.runs(limit=limit, **{name: value for name, value in which.items() if value is not None}))
    if json:
        screen.print_json([tables.run_document(run) for run in found])
    else:
        tables.show_list(found)


@app.command()
def show(run: Run, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Show a run with its steps, its error and its times."""
    from kagzi.cli import run_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        handle = _handle(client, run)
        told, steps = handle.describe(), handle.steps()
        if json:
            screen.print_json(tables.run_document(told, steps, whole=True))
        else:
            tables.show(told, steps)


@app.command()
def watch(run: Run, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Watch a run until it has ended, as a timeline that grows, or in a pipe as a line for every change. Ends with 1
    unless it completes.
    """
    from kagzi.cli import run_tables as tables
    from kagzi.cli import screen, watching

    with reached(url, namespace) as client:
        told, steps = watching.watch(_handle(client, run), err=json)
        if json:
            screen.print_json(tables.run_document(told, steps, whole=True))
        else:
            tables.show(told, steps)
    if told.status != "COMPLETED":
        raise typer.Exit(FAILED)


@app.command()
def step(
    run: Run,
    step: Annotated[str, typer.Argument(help="The step, as `runs show` names it.")],
    attempt: Annotated[str | None, typer.Option(help="This attempt, by its id; else the latest.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Show one step: what it returned, or the traceback of its failure."""
    from kagzi.cli import run_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        found = _handle(client, run).step(step, attempt_id=attempt)
        if json:
            screen.print_json(screen.fields(found) | {"output": found.output})
        else:
            tables.show_step(found)


@app.command()
def cancel(run: Run, reason: Reason = "", url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Ask a run to end: its cleanup runs, then it is CANCELLED."""
    _act(url, namespace, run, lambda handle: handle.cancel(reason), json=json)


@app.command()
def terminate(run: Run, reason: Reason = "", url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """End a run now, whatever it does."""
    _act(url, namespace, run, lambda handle: handle.terminate(reason), json=json)


@app.command()
def resume(run: Run, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Let a run go on that was parked because its code no longer fitted its history."""
    _act(url, namespace, run, lambda handle: handle.resume(), json=json)


@app.command()
def retry(run: Run, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Start a new run with the history before the failed step; answers its run id."""
    _begin(url, namespace, run, lambda handle: handle.retry(), json=json)


@app.command()
def fork(
    run: Run,
    step: Annotated[str, typer.Argument(help="The step it begins again with, as `runs show` names it.")],
    output: Annotated[list[str] | None, typer.Option(help="Another output of a step, as pay=7; repeat it.")] = None,
    input: Annotated[str | None, typer.Option(help="Another input, as JSON.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Start a new run with the history before a step; answers its run id."""
    outputs = {name: document("--output", text) for name, text in (pairs("--output", output, "pay=7") or {}).items()}
    given = document("--input", input)
    _begin(url, namespace, run, lambda handle: handle.fork(step, outputs=outputs or None, input=given), json=json)


@app.command()
def signal(
    run: Run,
    name: Annotated[str, typer.Argument(help="The signal.")],
    value: Annotated[str | None, typer.Option("--input", help="What it carries, as JSON.")] = None,
    id: Annotated[str | None, typer.Option(help="A UUID; sent twice with it, it arrives once.")] = None,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Send a signal to a run."""
    from kagzi.cli import screen

    given = document("--input", value)
    with reached(url, namespace) as client:
        handle = _handle(client, run)
        handle.signal(name, given, id=id)
    if json:
        screen.print_json({"run_id": handle.run_id, "signal": name})
    else:
        typer.echo(f"Sent {name!r}.")


@app.command()
def resolve(
    run: Run,
    step: Annotated[str, typer.Argument(help="The step whose outcome is UNKNOWN.")],
    answer: Annotated[str, typer.Argument(help="applied, not_applied or fail.", autocompletion=words(*_ANSWERS))],
    result: Annotated[str | None, typer.Option(help="With applied: what it returned, as JSON.")] = None,
    reason: Reason = "",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Say what became of an effect that nobody can know."""
    if answer not in _ANSWERS:
        end(f"{answer!r} is no answer: write applied, not_applied or fail")
    given = document("--result", result)
    _act(url, namespace, run, lambda handle: handle.resolve(step, answer, given, reason=reason), json=json)


@app.command()
def explain(run: Run, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Tell why a run is where it is, and what to do if that is not wanted."""
    import dataclasses

    from kagzi.cli import run_tables as tables
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        told = _handle(client, run).explain()
    if json:
        screen.print_json(dataclasses.asdict(told))
    else:
        tables.show_explanation(told)


def _act(url: str | None, namespace: str | None, run: str, act: Any, *, json: bool) -> None:
    """Does something to a run, and tells the status it has then."""
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        handle = _handle(client, run)
        status = act(handle)
    if json:
        screen.print_json({"run_id": handle.run_id, "status": status})
    else:
        typer.echo(f"{handle.run_id} is {status}.")


def _begin(url: str | None, namespace: str | None, run: str, begin: Any, *, json: bool) -> None:
    """Starts a run from another, and tells its id."""
    from kagzi.cli import screen

    with reached(url, namespace) as client:
        made = begin(_handle(client, run))
    if json:
        screen.print_json({"run_id": made.run_id})
    else:
        typer.echo(made.run_id)
