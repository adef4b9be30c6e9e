"""The numbered examples do what they say. They run in this process, on one PostgreSQL that stays warm between them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from tests.house.tree import ROOT

COURSE = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))

# Lines that show what each example is about; the others may come in any order.
SAID = {
    "01_hello": ["greeting Ada", "the run is SLEEPING", "shouting 'Hello, Ada'", "HELLO, ADA!"],
    "02_errors": ["fetch_price, attempt 3", "charged 1999"],
    "03_scheduling": [
        "nightly: every Monday at 02:00 (UTC), next on a Monday",
        "nightly has started 1 run",
        "nightly is PAUSED",
        "delayed report of right now",
    ],
    "04_concurrency": ["booked train", "nothing booked: too dear", "  veto: ABANDONED"],
    "05_fan_out": ["168 words on 39 of 40 pages", "page 31 is FAILED: an empty page"],
    "06_long_running": ["month 3: bill Ada", "after 70 days: {'month': 3}", "goodbye, Ada", "it lasted 3 months"],
    "07_idempotency": ["reconciling: was it paid?", "paid, as the provider's books say", "payments made: 1"],
    "08_saga": ["  enjoy the flight and the hotel", "  cancelled hotel", "  cancelled flight"],
    "09_pipeline": ["extract", "clean", "load 2 sales", "total 25.00", "load 1 sales", "total 25.00"],
    "10_queues": ["  rendering a film of priority 4", "  rendering a film of priority 0"],
    "11_approvals": ["approved by Grace", "after three days: {'waiting for': 'the director'}", "refused by Edsger"],
    "12_automation": ["packed: lamp, chair", "packed: lamp, chair, table", "  an order of a table: DONE"],
    "13_agent_loop": ["it asks: delete the old backups?", "deleting the old backups", "there is room again"],
}


def load(name: str) -> ModuleType:
    """An example as a module: its name begins with a digit, which no import statement takes."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def in_order(wanted: list[str], lines: list[str]) -> bool:
    rest = iter(lines)
    return all(line in rest for line in wanted)


def test_every_example_of_the_course_is_run() -> None:
    assert [path.stem for path in COURSE] == list(SAID)


@pytest.mark.parametrize("name", SAID)
async def test_an_example_shows_what_it_is_about(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    await load(name).main()
    lines = capsys.readouterr().out.splitlines()
    assert in_order(SAID[name], lines), lines


def test_an_example_runs_by_itself() -> None:
    command = [sys.executable, "-W", "error", "examples/01_hello.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (SAID["01_hello"], "")
