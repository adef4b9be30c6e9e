"""`kagzi migrate`: brings the database's schema up to date. Any number may run at the same time; each migration is
applied once. `--check` only looks, for use before a rollout.
"""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import typer

from kagzi.cli.problems import FAILED, explained
from kagzi.cli.server import Config, DataDir

if TYPE_CHECKING:
    from kagzi.server.settings import Settings


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Change nothing; end with 1 if something is missing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
    config: Config = None,
    data_dir: DataDir = None,
) -> None:
    """Bring the schema of the database that KAGZI_DB_URL names up to date."""
    with explained():
        from kagzi.cli import screen
        from kagzi.cli.process import run
        from kagzi.server import logs
        from kagzi.server.settings import load

        settings = load({"data_dir": data_dir}, config=None if config is None else str(config))
        logs.configure(settings.log_format, "warning")
        with screen.progress("looking" if check else "migrating", None):
            names = run(_migrate(settings, check))
    key, done = ("missing", "Missing") if check else ("applied", "Applied")
    if json:
        typer.echo(jsonlib.dumps({key: names}))
    else:
        typer.echo(f"{done}: {', '.join(names)}" if names else "The schema is up to date.")
    if check and names:
        raise typer.Exit(FAILED)


async def _migrate(settings: Settings, check: bool) -> list[str]:
    """The names of the migrations that were applied, or that are missing."""
    from kagzi.cli.process import database
    from kagzi.store.migrate import apply, pending

    async with database(settings, up_to_date=False) as url:
        # What is kept in a session, as the lock that lets one migrate at a time, does not go through a pooler.
        direct = settings.db_listen_url or url
        return await (pending(direct) if check else apply(direct))
