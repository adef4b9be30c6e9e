"""The command `kagzi`: one file a noun, each loading what it needs only when it runs. A command that fails says why
and what to do next in one line on stderr, and ends with 1; wrong usage or settings end with 2, and a server that does
not answer with 3.
"""

from __future__ import annotations

import os
from importlib.metadata import version as installed
from typing import Annotated

import typer

from kagzi.cli import automations, keys, namespaces, runs, schedules, suggestions, usage, workers
from kagzi.cli.bench import bench
from kagzi.cli.completion import completion
from kagzi.cli.demo import demo
from kagzi.cli.dev import dev
from kagzi.cli.doctor import doctor
from kagzi.cli.load import queues, stats, types
from kagzi.cli.migrate import migrate
from kagzi.cli.server import server
from kagzi.cli.start import start
from kagzi.cli.worker import worker

app = typer.Typer(
    help="Durable workflows for Python on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # `kagzi completion` prints the script; nothing is written into anybody's profile.
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TRY, _SERVE, _WORK, _WATCH, _KEEP = "Try it", "Serve", "Work", "Watch over it", "Keep order"
app.command(rich_help_panel=_TRY)(demo)
app.command(rich_help_panel=_TRY)(dev)
app.command(rich_help_panel=_SERVE)(server)
app.command(rich_help_panel=_SERVE)(migrate)
app.command(rich_help_panel=_SERVE)(worker)
app.command(rich_help_panel=_WORK)(start)
app.add_typer(runs.app, name="runs", rich_help_panel=_WORK)
app.add_typer(automations.app, name="automations", rich_help_panel=_WORK)
app.add_typer(schedules.app, name="schedules", rich_help_panel=_WORK)
app.add_typer(workers.app, name="workers", rich_help_panel=_WATCH)
app.command(rich_help_panel=_WATCH)(doctor)
app.command(rich_help_panel=_WATCH)(bench)
app.command(rich_help_panel=_WATCH)(queues)
app.command(rich_help_panel=_WATCH)(types)
app.command(rich_help_panel=_WATCH)(stats)
app.add_typer(namespaces.app, name="namespaces", rich_help_panel=_KEEP)
app.add_typer(keys.app, name="keys", rich_help_panel=_KEEP)
app.command(rich_help_panel=_KEEP)(completion)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kagzi {installed('kagzi')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What every command shares."""


def main() -> None:
    """The entry point."""
    # The core of gRPC writes to stderr past every log; what it would say of an error, the error says.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if suggestions.asked():
        from typer.completion import completion_init  # type: ignore[attr-defined]  # its public front

        completion_init()
    usage.run(typer.main.get_command(app), "kagzi")
