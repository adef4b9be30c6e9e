"""The examples of automations do what they say, on a database of their own."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from tests.house.tree import ROOT

SAID = {
    "inbox": [
        "row 1: Invoice",
        "row 2: Complaint",
        "row 3: Thanks",
        "'ann@example.com: Complaint' is DONE:",
        "  append_row: APPLIED after 1 checks",
    ],
    "digest": [
        "2 mails wait until 09:00",
        "sent: Invoice, Complaint",
        "1 mails wait until 09:00",
        "sent: Thanks",
    ],
    "batches": ["at once: [10, 10]", "later:   [10, 10, 4]"],
    "shipping": ["shipped: 2, 1", "waiting: 3"],
}


@pytest.mark.parametrize("name", SAID)
async def test_an_example_shows_what_it_is_about(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    await importlib.import_module(f"examples.automations.{name}").main()
    assert capsys.readouterr().out.splitlines() == SAID[name]


@pytest.mark.parametrize("name", SAID)
def test_an_example_breaks_no_rule(name: str) -> None:
    module = importlib.import_module(f"examples.automations.{name}")
    found = [value for value in vars(module).values() if isinstance(value, importlib.import_module("kagzi").Automation)]
    assert [automation.check() for automation in found] == [[]]


def test_an_example_runs_by_itself() -> None:
    command = [sys.executable, "-m", "examples.automations.shipping"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (SAID["shipping"], "")
