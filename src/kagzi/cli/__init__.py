"""The command `kagzi`: one file a noun, each loading what it needs only when it runs. A command that fails says why
and what to do next in one line on stderr, and ends with 1; wrong usage or settings end with 2, and a server that does
not answer with 3.
"""

from __future__ import annotations

import os
from importlib.metadata import version as installed
from typing import Annotated

import typer

from kagzi.cli import automations, keys, namespaces, runs, schedules, workers
from kagzi.cli.demo import demo
from kagzi.cli.dev import dev
from kagzi.cli.load import queues, stats, types
from kagzi.cli.migrate import migrate
from kagzi.cli.server import server
from kagzi.cli.start import start
from kagzi.cli.worker import worker

app = typer.Typer(
    help="Durable workflows for Python on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(dev)
app.command()(server)
app.command()(migrate)
app.command()(worker)
app.command()(start)
app.add_typer(runs.app, name="runs")
app.add_typer(automations.app, name="automations")
app.add_typer(schedules.app, name="schedules")
app.add_typer(workers.app, name="workers")
app.command()(queues)
app.command()(types)
app.command()(stats)
app.add_typer(namespaces.app, name="namespaces")
app.add_typer(keys.app, name="keys")


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
    app(prog_name="kagzi")
