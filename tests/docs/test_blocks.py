"""Every Python block of the documents runs as it stands; a fragment compiles. The README's first one has a test of its
own, against a server.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from itertools import chain
from pathlib import Path

import pytest

from kagzi.testing import Environments
from tests.docs.blocks import ROOT, blocks, documents

FOUND = [
    block
    for block in chain.from_iterable(map(blocks, documents()))
    if block.path != ROOT / "README.md" or block.mark == "fragment"
]
PROGRAMS = {block.name: block for block in FOUND if block.mark == ""}
FRAGMENTS = {block.name: block for block in FOUND if block.mark == "fragment"}


def test_a_block_is_a_program_or_a_fragment() -> None:
    assert [block.name for block in FOUND if block.mark not in ("", "fragment")] == []
    assert PROGRAMS
    assert FRAGMENTS


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_runs_as_it_stands(name: str, tmp_path: Path, kagzi_env: Environments) -> None:
    file = tmp_path / f"block_{list(PROGRAMS).index(name)}.py"
    file.write_text(PROGRAMS[name].code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and annotations look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if hasattr(module, "main"):
        await module.main()
    for found in [value for key, value in vars(module).items() if key.startswith("test_")]:
        await found(kagzi_env)


@pytest.mark.parametrize("name", FRAGMENTS)
def test_a_fragment_compiles(name: str) -> None:
    compile(FRAGMENTS[name].code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
