"""Every sentence of the design about runs is proved by tests that exist; `promises.toml` says by which. Where the
design stands beside the checkout it is read, so that no sentence is left out and none is made up; elsewhere the file is
judged alone.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.house import prose
from tests.house.tree import ROOT

FILE = Path(__file__).with_name("promises.toml")
DESIGN = ROOT.parent / "shared" / "design"
DOCUMENTS = {"engine": "2-engine.md", "fine-print": "8-fine-print.md"}


def promises() -> dict[str, dict[str, dict[str, Any]]]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def entries() -> dict[str, dict[str, Any]]:
    return {f"{document}.{name}": entry for document, named in promises().items() for name, entry in named.items()}


def exists(node: str) -> bool:
    """Whether a file of tests has a function of this name, in a class or not."""
    path, _, name = node.partition("::")
    return name.startswith("test_") and name in functions(ROOT / path)


@cache
def functions(path: Path) -> frozenset[str]:
    """The names of the functions in a file; none when there is no such file."""
    tree = ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")
    return frozenset(
        found.name for found in ast.walk(tree) if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_both_documents_are_mapped() -> None:
    assert promises().keys() == DOCUMENTS.keys()


def test_every_promise_names_its_tests_or_why_it_has_none() -> None:
    nothing = [name for name, entry in entries().items() if not entry.get("tests") and not entry.get("apart")]
    both = [name for name, entry in entries().items() if entry.get("tests") and entry.get("apart")]
    strange = [name for name, entry in entries().items() if entry.keys() - {"says", "tests", "apart"}]
    assert (nothing, both, strange) == ([], [], [])


def test_every_named_test_exists() -> None:
    named = {node: name for name, entry in entries().items() for node in entry.get("tests", ())}
    assert {name: node for node, name in named.items() if not exists(node)} == {}


def test_a_test_that_does_not_exist_is_noticed() -> None:
    assert exists("tests/house/test_promises.py::test_a_test_that_does_not_exist_is_noticed")
    assert not exists("tests/house/test_promises.py::test_that_is_not_there")
    assert not exists("tests/house/test_promises.py::exists")
    assert not exists("tests/house/test_nowhere.py::test_that_is_not_there")


@pytest.mark.skipif(not DESIGN.is_dir(), reason="the design does not stand beside this checkout")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_sentence_has_one_promise_and_every_promise_one_sentence(document: str) -> None:
    text = (DESIGN / DOCUMENTS[document]).read_text(encoding="utf-8")
    said = [sentence.text for sentence in prose.sentences(text)]
    known = {name: entry["says"] for name, entry in promises()[document].items()}
    unmapped = {
        sentence: names
        for sentence in said
        if len(names := [name for name, says in known.items() if sentence.startswith(says)]) != 1
    }
    invented = [name for name, says in known.items() if not any(sentence.startswith(says) for sentence in said)]
    assert unmapped == {}
    assert invented == []


def test_a_text_is_taken_apart_into_its_sentences() -> None:
    text = """# A title

A run **rests**. It waits for `kagzi.now()` at
1.5 s, or e.g. longer. ("Why?" nobody asks.)

**Lease.** Thirty seconds.

| head | of the table |
| --- | --- |
| one | row. Of two |

- ▸ A bullet.
- Another
  one.
"""
    assert [sentence.text for sentence in prose.sentences(text)] == [
        "A run rests.",
        "It waits for `kagzi.now()` at 1.5 s, or e.g. longer.",
        '("Why?" nobody asks.)',
        "Lease. Thirty seconds.",
        "one | row. Of two",
        "A bullet.",
        "Another one.",
    ]
