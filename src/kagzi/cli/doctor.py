"""`kagzi doctor`: looks at a server and at its database, says what is not as it should be, and what to do about it. It
changes nothing, and ends with 1 when something must be done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli.findings import Finding, Level
from kagzi.cli.problems import FAILED, explained
from kagzi.cli.remote import Json, Url, answered
from kagzi.cli.server import Config, DataDir

if TYPE_CHECKING:
    from kagzi.server.settings import Settings

_MARKS = {
    Level.WELL: ("✓", "green"),
    Level.NOTE: ("·", "yellow"),
    Level.UNSEEN: ("?", "yellow"),
    Level.ACT: ("✗", "red"),
}


def doctor(
    database: Annotated[bool, typer.Option("--database", help="Look at the database alone, without a server.")] = False,
    tolerance: Annotated[str, typer.Option(help="How long work may stand before it is called stuck.")] = "5m",
    url: Url = None,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Look for what is wrong, and say what to do about it.

    The database is the one KAGZI_DB_URL names, else that of a `kagzi dev` in this directory. Ends with 1 when something
    must be done.
    """
    with explained(), answered():
        from kagzi.sdk import option
        from kagzi.server import logs
        from kagzi.server.settings import load

        patience = option.length(tolerance, "tolerance")
        settings = load({"data_dir": data_dir}, config=None if config is None else str(config))
        logs.configure(settings.log_format, "error")
        found = []
        for finding in _findings(settings, None if database else url or "", patience):
            found.append(finding)
            if not json:
                _show(finding)
    _end(found, json=json)


def _findings(settings: Settings, url: str | None, tolerance: timedelta) -> Iterator[Finding]:
    """`url` None: no server is asked."""
    if url is not None:
        from kagzi.cli import server_checks

        yield from server_checks.look(url or None)
    yield from _of_database(settings, tolerance)


def _of_database(settings: Settings, tolerance: timedelta) -> Iterator[Finding]:
    import asyncio

    from kagzi.cli import database_checks
    from kagzi.cli.findings import unseen
    from kagzi.embedded import address_of

    url = settings.db_url or address_of(settings.data_dir)
    if url is None:
        advice = "Set KAGZI_DB_URL to look at migrations, notices, durability, bloat, and work that stands still."
        yield unseen("database", "no database is named, and none runs here", advice)
        return
    with asyncio.Runner() as runner:
        looks = database_checks.look(url, settings, tolerance)
        while True:
            # One at a time: what is found is shown while the next check still looks.
            finding = runner.run(_next(looks))
            if finding is None:
                return
            yield finding


async def _next(looks: AsyncIterator[Finding]) -> Finding | None:
    return await anext(looks, None)


def _show(finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    from kagzi.cli import screen

    mark, colour = _MARKS[finding.level]
    told = Text.assemble((finding.check, "bold"), f": {finding.message.rstrip('.')}.")
    if finding.advice:
        told.append(f"\n→ {finding.advice}", style="cyan")
    line = Table.grid(padding=(0, 1))
    line.add_row(Text(mark, style=colour), told)
    screen.show(line)


def _end(found: list[Finding], *, json: bool) -> None:
    from dataclasses import asdict

    from kagzi.cli import screen

    todo = [finding for finding in found if finding.level is Level.ACT]
    if json:
        document: dict[str, Any] = {"well": not todo, "findings": [asdict(finding) for finding in found]}
        screen.print_json(document)
    elif todo:
        count = f"{len(todo)} things need" if len(todo) > 1 else "1 thing needs"
        typer.secho(f"\n{count} you: {', '.join(dict.fromkeys(finding.check for finding in todo))}.", fg="red")
    else:
        typer.secho("\nNothing needs you.", fg="green")
    if todo:
        raise typer.Exit(FAILED)
