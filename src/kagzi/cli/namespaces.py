"""`kagzi namespaces`: what keeps the work of different owners apart. Answers as a table or as JSON. A namespace
is never deleted: it is disabled, and what has ended in it goes after its retention.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kagzi.cli.asking import asking
from kagzi.cli.remote import Json, Limit, Url, answered, end
from kagzi.cli.suggestions import NAMESPACES

app = typer.Typer(help="Look after namespaces.", no_args_is_help=True)

_FOREVER = "forever"
_DEFAULT = "default"
_KEPT = {"completed": "COMPLETED runs", "failed": "FAILED runs", "cancelled": "CANCELLED runs", "events": "events"}

Name = Annotated[str, typer.Argument(help="The namespace.", autocompletion=NAMESPACES)]
Description = Annotated[str | None, typer.Option(help="What it is for, for people.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(
        help="How long what has ended is kept, as completed=7d, failed=forever or events=default (as the server is "
        "set); of completed, failed, cancelled, events; repeat it."
    ),
]


@app.command("list")
def list_(
    enabled: Annotated[bool | None, typer.Option("--enabled/--disabled", help="Only those; else both.")] = None,
    limit: Limit = 1_000,
    url: Url = None,
    json: Json = False,
) -> None:
    """List the namespaces that your key reaches, by name."""
    from kagzi.cli import screen

    with asking(url, None) as asked:
        found = asked.each("NamespaceService.ListNamespaces", "namespaces", limit, enabled=enabled)
    if json:
        screen.print_json(found)
        return
    if not found:
        typer.echo("No such namespaces. Make one with `kagzi namespaces create NAME`.")
        return
    rows = [
        (each["name"], _state(each), _kept(each), screen.clock(each["created_at"]), each["description"])
        for each in found
    ]
    screen.show(
        screen.table(
            "namespace",
            "state",
            "keeps",
            "created",
            "description",
            rows=rows,
            wraps=("namespace", "keeps", "description"),
        )
    )


@app.command()
def create(name: Name, description: Description = None, keep: Keep = None, url: Url = None, json: Json = False) -> None:
    """Create a namespace; one that exists is left as it is."""
    from kagzi.cli import screen

    with asking(url, None) as asked:
        made = asked.call(
            "NamespaceService.CreateNamespace", name=name, description=description, retention=_retention(keep, {})
        )
    if json:
        screen.print_json(made)
    else:
        typer.echo(f"{name} existed already, and was left as it is." if made["already_exists"] else f"Created {name}.")


@app.command()
def show(name: Name, url: Url = None, json: Json = False) -> None:
    """Show one namespace."""
    from kagzi.cli import screen

    with asking(url, None) as asked:
        found = asked.call("NamespaceService.GetNamespace", name=name)["namespace"]
    _tell(found, json=json) if json else screen.show(_facts(found))


@app.command()
def update(name: Name, description: Description = None, keep: Keep = None, url: Url = None, json: Json = False) -> None:
    """Change what is given and leave the rest."""
    if description is None and not keep:
        end("nothing to change: give --description or --keep completed=7d")
    with asking(url, None) as asked:
        before = asked.call("NamespaceService.GetNamespace", name=name)["namespace"] if keep else {}
        # The contract replaces all of a retention at once.
        kept = _retention(keep, before.get("retention") or {})
        found = asked.call("NamespaceService.UpdateNamespace", name=name, description=description, retention=kept)
    _tell(found["namespace"], f"Changed {name}: keeps {_kept(found['namespace'])}.", json=json)


@app.command()
def enable(name: Name, url: Url = None, json: Json = False) -> None:
    """Let work start again."""
    with asking(url, None) as asked:
        found = asked.call("NamespaceService.EnableNamespace", name=name)["namespace"]
    _tell(found, f"{name} is enabled.", json=json)


@app.command()
def disable(name: Name, url: Url = None, json: Json = False) -> None:
    """Start, claim and fire nothing more; what workers hold may finish."""
    from kagzi.cli import screen

    with asking(url, None) as asked:
        found = asked.call("NamespaceService.DisableNamespace", name=name)
    if json:
        screen.print_json(found["namespace"] | {"running": found["running"]})
        return
    running = f" Workers still hold {found['running']} of its runs." if found["running"] else ""
    typer.echo(f"{name} is disabled.{running} `kagzi namespaces enable {name}` lets it go on.")


def _retention(keep: list[str] | None, before: dict[str, Any]) -> dict[str, Any] | None:
    """What options say of a retention, over what it was."""
    from kagzi.cli.remote import pairs
    from kagzi.sdk import option

    given = pairs("--keep", keep, "failed=30d")
    if given is None:
        return None
    made = dict(before)
    for what, length in given.items():
        if what not in _KEPT:
            end(f"--keep {what}={length} keeps nothing: it is of {', '.join(_KEPT)}")
        with answered():
            special = {_FOREVER: 0, _DEFAULT: None}
            known = length.lower() in special
            made[f"{what}_ms"] = (
                special[length.lower()] if known else round(option.length(length, "keep").total_seconds() * 1e3)
            )
    return made


def _kept(found: dict[str, Any]) -> str:
    """A retention in words; what the server's settings decide is left out."""
    from kagzi.dashboard.words import length

    known = {name: (found["retention"] or {}).get(f"{name}_ms") for name in _KEPT}
    said = [f"{name} {length(ms) if ms else _FOREVER}" for name, ms in known.items() if ms is not None]
    return ", ".join(said) or "as the server is set"


def _state(found: dict[str, Any]) -> Any:
    from rich.text import Text

    return Text("enabled", style="green") if found["enabled"] else Text("disabled", style="yellow")


def _facts(found: dict[str, Any]) -> Any:
    from kagzi.cli import screen

    return screen.facts(
        ("namespace", found["name"]),
        ("description", found["description"]),
        ("state", _state(found)),
        ("keeps", _kept(found)),
        ("created", screen.moment(found["created_at"])),
        ("changed", screen.moment(found["updated_at"])),
    )


def _tell(found: dict[str, Any], text: str = "", *, json: bool) -> None:
    from kagzi.cli import screen

    if json:
        screen.print_json(found)
    else:
        typer.echo(text)
