"""`kagzi keys`: the API keys of a namespace. Every command asks a server with the key of an admin; with `--database` it
works on the database itself instead, which is how the first key is made: whoever may do that needs no key. A secret is
printed once, alone on stdout, so that it can be piped to where it is kept.
"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kagzi.cli.asking import asking
from kagzi.cli.problems import USAGE, explained
from kagzi.cli.remote import Json, Namespace, Url, end
from kagzi.cli.server import Config
from kagzi.cli.suggestions import words

if TYPE_CHECKING:
    from kagzi.protocol.v1 import namespace_pb2 as pb
    from kagzi.server.api.keys import Keys

app = typer.Typer(help="Look after API keys.", no_args_is_help=True)

Direct = Annotated[
    bool, typer.Option("--database", help="Work on the database that KAGZI_DB_URL names, as for the first key.")
]
Role = Annotated[
    str,
    typer.Option(
        help="reader, client, worker or admin; each may do what those before it may.",
        autocompletion=words("reader", "client", "worker", "admin"),
    ),
]


@app.command()
def create(
    role: Role,
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    namespace: Namespace = None,
    database: Direct = False,
    config: Config = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """Make a key and show its secret, this once. With --database the namespace is made too if it is new."""
    with explained():
        from kagzi.protocol.v1 import namespace_pb2 as pb

        roles = {label.removeprefix("KEY_").lower(): number for label, number in pb.KeyRole.items() if number}
        if role.lower() not in roles:
            end(f"--role {role!r} is none: write {', '.join(roles)}", USAGE)
        request = pb.CreateKeyRequest(name=name, role=roles[role.lower()])
        made = _ask("CreateKey", request, url, namespace, config if database else None, direct=database)
    if json:
        typer.echo(jsonlib.dumps({**_document(made.key), "secret": made.secret}))
        return
    typer.secho(f"Key {made.key.key_id} of namespace {made.key.namespace!r}, role {_role(made.key)}.", err=True)
    typer.secho("This is its secret, shown this once:", err=True)
    typer.echo(made.secret)


@app.command("list")
def list_(
    revoked: Annotated[bool, typer.Option("--revoked", help="Also those that were revoked.")] = False,
    namespace: Namespace = None,
    database: Direct = False,
    config: Config = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """List the keys of a namespace, newest first, without secrets."""
    with explained():
        from kagzi.protocol.v1 import namespace_pb2 as pb

        found: list[Any] = []
        request = pb.ListKeysRequest(include_revoked=revoked, page_size=100)
        while True:
            page = _ask("ListKeys", request, url, namespace, config if database else None, direct=database)
            found.extend(page.keys)
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
    if json:
        typer.echo(jsonlib.dumps([_document(key) for key in found]))
    else:
        _show(found)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Which key, as `kagzi keys list` shows it.")],
    namespace: Namespace = None,
    database: Direct = False,
    config: Config = None,
    url: Url = None,
    json: Json = False,
) -> None:
    """End a key for good: every server refuses it within three seconds."""
    with explained():
        from kagzi.protocol.v1 import namespace_pb2 as pb

        request = pb.RevokeKeyRequest(key_id=key_id)
        ended = _ask("RevokeKey", request, url, namespace, config if database else None, direct=database).key
    typer.echo(jsonlib.dumps(_document(ended)) if json else f"Revoked {ended.key_id}.")


def _ask(call: str, request: Any, url: str | None, namespace: str | None, config: Path | None, *, direct: bool) -> Any:
    """What a server answers, or the same servicer on the database itself."""
    return _on_database(call, request, namespace, config) if direct else _on_server(call, request, url, namespace)


def _on_server(call: str, request: Any, url: str | None, namespace: str | None) -> Any:
    with asking(url, namespace) as asked:
        request.namespace = asked.namespace
        return asked.send(f"NamespaceService.{call}", request)


def _on_database(call: str, request: Any, namespace: str | None, config: Path | None) -> Any:
    from kagzi.cli.process import run
    from kagzi.sdk.calls import resolve_namespace
    from kagzi.server import logs
    from kagzi.server.settings import load

    settings = load({}, config=None if config is None else str(config))
    logs.configure(settings.log_format, "warning")
    request.namespace = resolve_namespace(namespace)
    return run(_directly(call, request, settings))


async def _directly(call: str, request: Any, settings: Any) -> Any:
    from kagzi.cli.process import database
    from kagzi.server.api.namespaces import Namespaces
    from kagzi.server.listener import StartError
    from kagzi.store import migrate, namespaces
    from kagzi.store.database import Database

    async with database(settings) as url:
        missing = await migrate.pending(settings.db_listen_url or url)
        if missing:
            raise StartError(f"the database lacks the migrations {', '.join(missing)}: run `kagzi migrate`")
        opened = await Database(url, size=2, statement_cache=settings.db_statement_cache_size).open()
        try:
            servicer: Keys = Namespaces(opened, lambda _namespace, _key_id: None)
            if call == "CreateKey":
                name = request.namespace
                await opened.transact(lambda c: namespaces.create(c, name))
            return await getattr(servicer, call)(request, None)
        finally:
            await opened.close()


def _show(keys: list[pb.ApiKey]) -> None:
    from datetime import UTC

    from rich.text import Text

    from kagzi.cli import screen

    if not keys:
        typer.echo("No keys. Make one with `kagzi keys create --role client`.")
        return
    states = {True: Text("revoked", style="red"), False: Text("valid", style="green")}
    rows = [
        (
            key.key_id,
            _role(key),
            states[key.HasField("revoked_at")],
            screen.clock(key.created_at.ToDatetime(UTC)),
            key.name,
        )
        for key in keys
    ]
    screen.show(screen.table("key", "role", "state", "made", "name", rows=rows, wraps=("name",)))


def _role(key: pb.ApiKey) -> str:
    from kagzi.protocol.v1.namespace_pb2 import KeyRole

    return KeyRole.Name(key.role).removeprefix("KEY_").lower()


def _document(key: pb.ApiKey) -> dict[str, Any]:
    revoked = key.revoked_at.ToJsonString() if key.HasField("revoked_at") else None
    return {
        "key_id": key.key_id,
        "namespace": key.namespace,
        "name": key.name,
        "role": _role(key),
        "prefix": key.prefix,
        "created_at": key.created_at.ToJsonString(),
        "revoked_at": revoked,
    }
