"""Every row of the design's table of faults names tests that exist, and every test of the laboratory that has a number
is in its row. Where the design stands beside the checkout it is read, so that no row is left out and none is made up.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.house.test_promises import DESIGN, exists, functions
from tests.house.tree import ROOT

LABORATORY = ROOT / "tests" / "faults"
ROWS = LABORATORY / "rows.toml"


def table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(ROWS.read_text(encoding="utf-8"))


def named(row: dict[str, Any]) -> list[str]:
    return [*row.get("tests", ()), *row.get("whole", ())]


def test_every_row_names_tests_or_why_it_has_none() -> None:
    assert sorted(table()) == [f"{number:02}" for number in range(20)]
    assert [number for number, row in table().items() if bool(row.get("tests")) == bool(row.get("apart"))] == []
    assert [number for number, row in table().items() if row.keys() - {"fault", "tests", "whole", "apart"}] == []


def test_every_test_that_a_row_names_exists() -> None:
    assert [node for row in table().values() for node in named(row) if not exists(node)] == []


def test_every_numbered_test_is_in_its_row_and_in_no_other() -> None:
    for path in LABORATORY.glob("test_*.py"):
        for name in functions(path):
            found = re.match(r"test_row_(\d\d)_", name)
            node = f"{path.relative_to(ROOT)}::{name}"
            rows = [number for number, row in table().items() if node in named(row)]
            assert rows == ([found[1]] if found else []), node


@pytest.mark.skipif(not DESIGN.is_dir(), reason="the design does not stand beside this checkout")
def test_the_rows_are_those_of_the_design() -> None:
    text = (DESIGN / "6-reliability.md").read_text(encoding="utf-8")
    written = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if line.startswith("| ")][2:]
    assert [row["fault"] for number, row in sorted(table().items()) if number != "00"] == written
