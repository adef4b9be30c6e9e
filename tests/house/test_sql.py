"""The SQL of the store obeys the house rules; the rules themselves are tested beside this file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import tree
from tests.house.sqlrules import problems

STORE = tree.SOURCE / "store"
FILES = [path for path in tree.files(STORE) if path.suffix == ".sql" and path.parent.name != "migrations"]


def test_the_store_has_sql_to_judge() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_query_obeys_the_rules(path: Path) -> None:
    assert problems(path.read_text(encoding="utf-8")) == []
