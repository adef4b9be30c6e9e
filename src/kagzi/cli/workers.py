"""`kagzi workers`: who runs what, and how to take one away without losing anything. Answers as a table or as JSON."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kagzi.cli.asking import Asking, asking
from kagzi.cli.problems import FAILED
from kagzi.cli.remote import Json, Limit, Namespace, Url, end
from kagzi.cli.suggestions import QUEUES, TYPES, WORKERS, words

app = typer.Typer(help="Look after workers.", no_args_is_help=True)

_STATUSES = ("ONLINE", "DRAINING", "OFFLINE")
_PAUSE = 0.5
# The time and the first random part of an id: enough to name a worker by.
_PREFIX = 18

Worker = Annotated[
    str, typer.Argument(help="The worker's id, or how it begins, as `workers list` shows it.", autocompletion=WORKERS)
]


@app.command("list")
def list_(
    status: Annotated[
        str | None,
        typer.Option(help="ONLINE, DRAINING or OFFLINE; else the first two.", autocompletion=words(*_STATUSES)),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Also those that are gone.")] = False,
    queue: Annotated[str, typer.Option(help="Only of this queue.", autocompletion=QUEUES)] = "",
    type: Annotated[str, typer.Option(help="Only those that run this workflow.", autocompletion=TYPES)] = "",
    limit: Limit = 100,
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """List workers, newest first, with what each holds."""
    from kagzi.cli import screen

    if status is not None and status.upper() not in _STATUSES:
        end(f"--status {status!r} is none: write {', '.join(_STATUSES)}")
    wanted = [status.upper()] if status else [] if all else ["ONLINE", "DRAINING"]
    with asking(url, namespace) as asked:
        rpc = "AdminService.ListWorkers"
        found = asked.each(rpc, "workers", limit, statuses=wanted, task_queue=queue, workflow_type=type)
    if json:
        screen.print_json(found)
    elif not found:
        typer.echo("No workers. Start one with `kagzi worker MODULE`; --all shows those that are gone.")
    else:
        columns = ("worker", "status", "busy", "heard", "queue", "process", "runs")
        rows = [
            (
                each["worker_id"][:_PREFIX] if screen.narrow() else each["worker_id"],
                screen.status(each["status"]),
                f"{each['running']}/{each['concurrency']}",
                screen.ago(each["last_heartbeat_at"]),
                each["task_queue"],
                f"{each['hostname']}:{each['pid']}",
                ", ".join(served["name"] for served in each["types"]),
            )
            for each in found
        ]
        screen.show(screen.table(*columns, rows=rows, wraps=("process", "queue", "runs")))


@app.command()
def show(worker: Worker, url: Url = None, namespace: Namespace = None, json: Json = False) -> None:
    """Show one worker and the runs it holds."""
    from kagzi.cli import screen

    with asking(url, namespace) as asked:
        found = asked.call("AdminService.GetWorker", worker_id=_whole(asked, worker))
    if json:
        screen.print_json(found)
        return
    each = found["worker"]
    parts = [
        screen.facts(
            ("worker", each["worker_id"]),
            ("status", screen.status(each["status"])),
            ("queue", each["task_queue"]),
            ("busy", f"{each['running']} of {each['concurrency']}"),
            ("process", f"{each['hostname']}:{each['pid']}"),
            ("version", each["version"]),
            ("runs", ", ".join(_served(one) for one in each["types"])),
            ("labels", ", ".join(f"{name}={value}" for name, value in each["labels"].items())),
            ("registered", screen.moment(each["registered_at"])),
            ("heard", screen.ago(each["last_heartbeat_at"])),
            ("drain asked", screen.moment(each["drain_requested_at"])),
            ("left", screen.moment(each["deregistered_at"])),
        )
    ]
    held = [(run["run_id"], run["workflow_type"], screen.moment(run["lease_until"])) for run in found["runs"]]
    if held:
        parts.append(screen.table("holds", "workflow", "lease ends", rows=held, wraps=("workflow",)))
    screen.show(*parts)


@app.command()
def drain(
    worker: Worker,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it holds nothing more.")] = False,
    timeout: Annotated[str, typer.Option(help="With --wait: how long, as 5m; then the command ends with 1.")] = "10m",
    url: Url = None,
    namespace: Namespace = None,
    json: Json = False,
) -> None:
    """Ask a worker to take nothing more, finish what it holds, and leave."""
    from kagzi.cli import screen
    from kagzi.cli.remote import answered
    from kagzi.sdk import option

    with answered():
        patience = option.length(timeout, "timeout").total_seconds()
    with asking(url, namespace) as asked:
        worker_id = _whole(asked, worker)
        now = asked.call("AdminService.DrainWorker", worker_id=worker_id)
        if wait and now["status"] == "DRAINING":
            now = _until_gone(asked, worker_id, now["running"], patience)
    if json:
        screen.print_json({"worker_id": worker_id, **now})
    else:
        holds = f"and holds {now['running']} runs" if now["running"] else "and holds nothing"
        typer.echo(f"{worker_id} is {now['status']} {holds}.")
    if wait and now["status"] != "OFFLINE":
        raise typer.Exit(FAILED)


def _until_gone(asked: Asking, worker_id: str, running: int, patience: float) -> dict[str, Any]:
    """How a worker is once it has left, or when patience is over."""
    import time

    from kagzi.cli import screen

    until = time.monotonic() + patience
    with screen.progress(f"waiting for {running} runs", running or None) as (bar, task):
        while True:
            found = asked.call("AdminService.GetWorker", worker_id=worker_id)["worker"]
            bar.update(task, completed=max(0, running - found["running"]))
            if found["status"] == "OFFLINE" or time.monotonic() > until:
                return {"status": found["status"], "running": found["running"]}
            time.sleep(_PAUSE)


def _whole(asked: Asking, text: str) -> str:
    """The id that begins so; a whole one is taken as it is."""
    from uuid import UUID

    try:
        return str(UUID(text))
    except ValueError:
        pass
    listed = asked.each("AdminService.ListWorkers", "workers", 1_000)
    found = [each["worker_id"] for each in listed if each["worker_id"].startswith(text.lower())]
    if len(found) != 1:
        which = "no worker's id begins" if not found else f"the ids of {len(found)} workers begin"
        end(f"{which} with {text!r}: `kagzi workers list --all` shows them", FAILED)
    return str(found[0])


def _served(served: dict[str, Any]) -> str:
    return f"{served['name']} {served['version']}".rstrip()
