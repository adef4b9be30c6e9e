"""`kagzi server`: one server in the foreground. It changes no schema of a database that it was given: a role without
the right to is enough.
"""

from __future__ import annotations

import json as jsonlib
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kagzi.cli.problems import explained

if TYPE_CHECKING:
    from kagzi.dashboard.site import Site
    from kagzi.server.app import Server
    from kagzi.server.settings import Settings

Config = Annotated[Path | None, typer.Option(help="A TOML file with settings; KAGZI_CONFIG names one too.")]
Host = Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 unless told otherwise.")]
Port = Annotated[int | None, typer.Option(help="The port for gRPC, 50051 unless told otherwise; 0: any free one.")]
HttpPort = Annotated[
    int | None, typer.Option(help="The port for pages and HTTP API, 8080 unless told otherwise; 0: any free one.")
]
DataDir = Annotated[Path | None, typer.Option(help="Where the embedded PostgreSQL lives when no database is named.")]
Insecure = Annotated[bool | None, typer.Option("--insecure", help="Listen beyond loopback without TLS and keys.")]
RequireKeys = Annotated[
    bool | None,
    typer.Option(
        "--require-keys/--no-require-keys", help="Serve nobody without an API key; else beyond loopback only."
    ),
]
Told = Annotated[bool, typer.Option("--json", help="Say as one line of JSON where it listens, once it does.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="json or console.")]


def server(
    host: Host = None,
    port: Port = None,
    http_port: HttpPort = None,
    config: Config = None,
    data_dir: DataDir = None,
    insecure: Insecure = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate to show, in PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's key, in PEM.")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="Who signs the certificates of clients.")] = None,
    require_keys: RequireKeys = None,
    reflection: Annotated[bool | None, typer.Option("--reflection", help="Let tools ask for the contract.")] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    json: Told = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C. The database is the one KAGZI_DB_URL names, with its schema up to date."""
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
            "server_tls_cert": tls_cert,
            "server_tls_key": tls_key,
            "server_tls_client_ca": tls_client_ca,
            "server_require_keys": require_keys,
            "server_reflection": reflection,
            "log_level": log_level,
            "log_format": log_format,
        }
        settings = load(flags, config=None if config is None else str(config))
        logs.configure(settings.log_format, settings.log_level)
        run(until_signalled(lambda: _serve(settings, json=json)))


async def _serve(settings: Settings, *, json: bool) -> None:
    from kagzi.cli.process import database, serve
    from kagzi.server.listener import StartError
    from kagzi.store import migrate

    async with database(settings) as url:
        missing = await migrate.pending(settings.db_listen_url or url)
        if missing:
            raise StartError(f"the database lacks the migrations {', '.join(missing)}: run `kagzi migrate`")
        await serve(settings, url, partial(_ready, json=json))


def _ready(server: Server, site: Site, *, json: bool) -> None:
    if json:
        tell(server, site)
        return
    typer.echo(f"Kagzi listens on {server.address}")
    typer.echo(f"  dashboard: {site.address}")


def tell(server: Server, site: Site) -> None:
    """Says in one line of JSON where a server is, for scripts that start one."""
    typer.echo(jsonlib.dumps({"address": server.address, "dashboard": site.address, "pid": os.getpid()}))
