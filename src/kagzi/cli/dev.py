"""`kagzi dev`: everything needed to write workflows, in one process: a PostgreSQL of its own below `./.kagzi`, its
schema brought up to date, and a server that lets tools look around. Nothing but Python has to be installed, and
deleting that directory forgets everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kagzi.cli.problems import explained
from kagzi.cli.server import Config, DataDir, Host, HttpPort, Insecure, LogFormat, LogLevel, Port, Told, tell

if TYPE_CHECKING:
    from kagzi.dashboard.site import Site
    from kagzi.server.app import Server
    from kagzi.server.settings import Settings


def dev(
    host: Host = None,
    port: Port = None,
    http_port: HttpPort = None,
    config: Config = None,
    data_dir: DataDir = None,
    insecure: Insecure = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    json: Told = False,
) -> None:
    """Serve for development, with an embedded PostgreSQL in ./.kagzi (KAGZI_DATA_DIR) unless KAGZI_DB_URL is set."""
    with explained():
        from kagzi.cli.process import run, until_signalled
        from kagzi.server import logs
        from kagzi.server.settings import load

        flags = {
            "server_host": host,
            "server_port": port,
            "http_port": http_port,
            "data_dir": data_dir,
            "server_insecure": insecure,
            "log_level": log_level,
            "log_format": log_format,
        }
        defaults = {"server_reflection": True, "log_format": "console", "log_level": "warning"}
        settings = load(flags, config=None if config is None else str(config), defaults=defaults)
        logs.configure(settings.log_format, settings.log_level)
        run(until_signalled(lambda: _serve(settings, json=json)))


async def _serve(settings: Settings, *, json: bool) -> None:
    from kagzi.cli.process import database, serve
    from kagzi.store import migrate

    async with database(settings) as url:
        await migrate.apply(url)
        await serve(settings, url, tell if json else _ready)


def _ready(server: Server, site: Site) -> None:
    settings = server.settings
    place = f"embedded PostgreSQL in {settings.data_dir.absolute()}"
    typer.echo(f"Kagzi listens on {server.address}")
    typer.echo(f"  dashboard: {site.address}")
    typer.echo(f"  database: {place if settings.db_url is None else 'the one KAGZI_DB_URL names'}")
    typer.echo("  Ctrl-C stops it.")
