"""What the documents name exists: files they link to, tests that prove a guarantee, settings with their defaults,
errors and commands.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kagzi import cli
from kagzi.sdk import errors
from kagzi.server.settings import Settings
from tests.docs.blocks import documents
from tests.house.test_promises import functions
from tests.house.tree import ROOT

_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s]+)\)")
GUARANTEES = ROOT / "docs" / "guarantees.md"
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Where links can lead within a document: its headings, as the sites that show it spell them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def leads_nowhere(path: Path, link: str) -> bool:
    target, _, anchor = link.partition("#")
    found = path.parent / target if target else path
    return not found.exists() or bool(anchor and found.suffix == ".md" and anchor not in anchors(found))


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    links = [link for _, link in _LINK.findall(path.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if leads_nowhere(path, link)] == []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    assert leads_nowhere(GUARANTEES, "nowhere.md")
    assert leads_nowhere(GUARANTEES, "guides/errors.md#nowhere")
    assert not leads_nowhere(GUARANTEES, "guides/errors.md#when-nobody-knows")


def test_every_guarantee_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text(encoding="utf-8").partition("## ")[0]
    [_, *guarantees] = re.split(r"^\d+\. ", text, flags=re.MULTILINE)
    assert len(guarantees) == 13
    for guarantee in guarantees:
        proofs = _LINK.findall(guarantee)
        assert proofs, guarantee
        for name, link in proofs:
            assert name.strip("`") in functions((GUARANTEES.parent / link).resolve()), (name, link)


def written(value: Any) -> str:
    """A default as the reference shows it."""
    if value is None or value == "":
        return "unset"
    text = str(value).lower() if isinstance(value, bool) else f"{value:.10g}" if isinstance(value, float) else value
    return f"`{text}`"


def test_the_reference_tells_every_setting_with_its_default() -> None:
    told = dict(re.findall(r"^\| `KAGZI_(\w+)` \| (\S+) \|", REFERENCE, re.MULTILINE))
    assert told == {name.upper(): written(field.default) for name, field in Settings.model_fields.items()}


def test_the_reference_tells_every_error() -> None:
    named = [name for name in errors.__all__ if name[0].isupper() and name not in ("KagziError", "ErrorInfo")]
    assert [name for name in named if f"`{name}" not in REFERENCE] == []


def test_every_command_of_the_reference_exists() -> None:
    commands: dict[str, Any] = get_command(cli.app).commands  # type: ignore[attr-defined]  # the root is a group
    for name, words in re.findall(r"^\| `kagzi ([\w-]+)[^`]*` \| (.*) \|$", REFERENCE, re.MULTILINE):
        assert name in commands
        below = getattr(commands[name], "commands", None)
        if below is not None:
            assert sorted(re.split(r", ", words)) == sorted(below), name
