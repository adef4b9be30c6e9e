"""Every file of the project is short, well named, and silent about registries and its own making."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house import tree
from tests.house.tree import ROOT, SOURCE


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_no_source_file_reaches_500_lines() -> None:
    judged = [
        path
        for path in tree.files(SOURCE)
        if path.suffix in {".py", ".sql"} and not tree.is_generated(path) and path.parent.name != "migrations"
    ]
    assert judged
    assert named([path for path in judged if tree.too_long(path)]) == []


def test_a_file_of_500_lines_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("x = 1\n" * 500)
    assert tree.too_long(path)
    path.write_text("x = 1\n" * 499)
    assert not tree.too_long(path)


def test_no_module_has_a_vague_name() -> None:
    rooms = [ROOT / room for room in ("src", "tests", "tools", "benchmarks", "examples")]
    modules = [
        path
        for room in rooms
        if room.is_dir()
        for path in room.rglob("*")
        if (path.is_dir() or path.suffix in {".py", ".sql"}) and not tree.is_generated(path)
    ]
    assert named([path for path in modules if tree.is_vague(path)]) == []


@pytest.mark.parametrize("name", ["utils.py", "_util.py", "helpers", "common.sql", "manager.py", "base.py"])
def test_a_vague_name_is_recognised(name: str) -> None:
    assert tree.is_vague(Path("src") / name)


@pytest.mark.parametrize("name", ["batcher.py", "database.py", "__init__.py", "baseline.py"])
def test_a_name_that_says_something_is_not_vague(name: str) -> None:
    assert not tree.is_vague(Path("src") / name)


def test_no_file_holds_a_registry_address_or_speaks_of_its_making() -> None:
    found = {
        str(path.relative_to(ROOT)): words for path in tree.files() if (words := tree.forbidden(tree.text_of(path)))
    }
    assert found == {}


@pytest.mark.parametrize(
    "words",
    [
        ("https://", "pypi", ".org/project"),
        ("--index", "-url https://mirror.example"),
        ("https://mirror.example/sim", "ple/"),
        ('"resol', 'ved": "https://mirror.example/x.tgz"'),
        ("written by an age", "nt"),
        ("see /work/", "shared/x"),
        ("in the previous ", "session"),
    ],
)
def test_forbidden_words_are_found(words: tuple[str, ...]) -> None:
    assert tree.forbidden("".join(words)) != []


@pytest.mark.parametrize("text", ["the User-Agent header", "a PostgreSQL session", "a simple rule", "scope='session'"])
def test_ordinary_words_are_not_forbidden(text: str) -> None:
    assert tree.forbidden(text) == []


def test_sql_stands_in_the_store_alone() -> None:
    assert (
        named([path for path in tree.files(SOURCE) if path.suffix == ".sql" and SOURCE / "store" not in path.parents])
        == []
    )
