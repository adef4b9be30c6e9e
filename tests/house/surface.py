"""What a person can reach: the calls of the contract, the commands, the routes of the HTTP API and the pages, each as
the code has them; and `surface.toml`, which says where each call is found.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

from kagzi import cli
from kagzi.dashboard.pages import routes

SERVICES = ("workflow", "schedule", "admin", "namespace", "automation", "worker")
FILE = Path(__file__).with_name("surface.toml")


@cache
def table() -> Mapping[str, Any]:
    """The file as it is."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def entries() -> dict[str, dict[str, Any]]:
    """What the file says of each call, by "Service.Method"."""
    services = {name: told for name, told in table().items() if name.endswith("Service")}
    return {f"{service}.{name}": entry for service, calls in services.items() for name, entry in calls.items()}


def calls() -> set[str]:
    """Every call of the contract."""
    modules = [import_module(f"kagzi.protocol.v1.{name}_pb2") for name in SERVICES]
    services = [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]
    return {f"{service.name}.{method.name}" for service in services for method in service.methods}


@cache
def commands() -> dict[str, Any]:
    """Every command by its words, as "runs list"."""
    return dict(_below(get_command(cli.app), ""))


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for word, each in below.items():
        yield from _below(each, f"{name} {word}".lstrip())


def pages() -> dict[str, Any]:
    """Every page and form by its verb and path, with the function behind it."""
    looks = {f"GET {path}": look for path, look in routes._LOOKS.items()}
    return looks | {f"POST {path}": act for path, act in routes._ACTS.items()}
