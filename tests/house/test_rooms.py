"""The import contracts in pyproject.toml say what the architecture says, for every room there is."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.house.tree import ROOT, SOURCE

EVERYTHING = {"kagzi.cli", "kagzi.testing"}
MAY_IMPORT: dict[str, set[str]] = {
    "kagzi": {
        "kagzi.automations",
        "kagzi.errors",
        "kagzi.faults",
        "kagzi.protocol",
        "kagzi.sdk",
        "kagzi.sql",
        "kagzi.timetable",
    },
    "kagzi.protocol": set(),
    "kagzi.timetable": set(),
    "kagzi.faults": set(),
    "kagzi.store": {"kagzi.faults", "kagzi.protocol"},
    "kagzi.server": {"kagzi.faults", "kagzi.protocol", "kagzi.store", "kagzi.timetable"},
    "kagzi.sdk": {"kagzi.faults", "kagzi.protocol", "kagzi.timetable"},
    "kagzi.errors": {"kagzi.faults", "kagzi.sdk", "kagzi.protocol", "kagzi.timetable"},
    "kagzi.sql": {"kagzi.faults", "kagzi.sdk", "kagzi.protocol", "kagzi.timetable"},
    "kagzi.automations": {"kagzi.faults", "kagzi.sdk", "kagzi.protocol", "kagzi.timetable"},
    "kagzi.dashboard": {"kagzi.faults", "kagzi.automations", "kagzi.sdk", "kagzi.protocol", "kagzi.timetable"},
    "kagzi.embedded": set(),
}


def rooms() -> set[str]:
    """Every package and module that stands directly in `kagzi`."""
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    modules = {path.stem for path in SOURCE.glob("*.py") if path.stem != "__init__"}
    return {f"kagzi.{name}" for name in packages | modules}


def contracts() -> list[dict[str, Any]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["tool"]["importlinter"]["contracts"])


def test_every_room_is_known() -> None:
    assert rooms() - MAY_IMPORT.keys() - EVERYTHING == set()


def test_every_contract_forbids_what_the_architecture_does_not_allow() -> None:
    written = {contract["source_modules"][0]: set(contract["forbidden_modules"]) for contract in contracts()}
    present = {room for room in MAY_IMPORT if room == "kagzi" or room in rooms()}
    assert written == {room: rooms() - allowed - {room} for room, allowed in MAY_IMPORT.items() if room in present}
