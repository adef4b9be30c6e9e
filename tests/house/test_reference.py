"""docs/python.md names everything that users can call, and nothing that they cannot."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import kagzi
from kagzi.sdk.automations import Automations
from kagzi.sdk.request import StartOptions
from kagzi.sdk.schedules import ScheduleHandle, Schedules
from tests.house.tree import ROOT

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS: dict[str, tuple[Any, ...]] = {
    "Context": (kagzi.Context,),
    "Client": (kagzi.Client,),
    "Handle": (kagzi.Handle,),
    "Schedules": (Schedules, ScheduleHandle),
    "Automations": (Automations,),
    "Worker": (kagzi.Worker,),
}


def section(name: str) -> str:
    return TEXT.partition(f"## {name}\n")[2].partition("\n## ")[0]


def told(text: str) -> set[str]:
    """The names in code: `step(…)`, `run_id`."""
    return {name for code in re.findall(r"`([^`]+)`", text) for name in re.findall(r"^(\w+)(?:\(|$)", code)}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_method_is_told(name: str) -> None:
    offered = {each for cls in SECTIONS[name] for each, _ in inspect.getmembers(cls) if not each.startswith("_")}
    assert offered - told(section(name)) == set()


def test_every_option_of_a_start_is_told() -> None:
    rows = re.findall(r"^\| (`.+?) \| ", section("Client").partition("| option |")[2], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(StartOptions.__annotations__)


@pytest.mark.parametrize("decorator", ["workflow", "step"])
def test_every_option_of_a_declaration_is_told(decorator: str) -> None:
    [row] = re.findall(rf"^\| `@{decorator}` \| (.*) \|$", TEXT, re.MULTILINE)
    offered = set(inspect.signature(getattr(kagzi, decorator)).parameters) - {"function"}
    assert offered <= set(re.findall(r"`(\w+)`", row))


def test_every_name_of_the_front_door_is_in_some_document() -> None:
    texts = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert [name for name in kagzi.__all__ if not re.search(rf"\b{name}\b", texts)] == []
