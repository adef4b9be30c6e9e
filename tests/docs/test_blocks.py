"""Every Python program of the documents runs as it stands. Fragments, scripts and the README's program have tests of
their own, against servers.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from kagzi.testing import Environments
from tests.docs.blocks import ROOT, blocks, documents

FOUND = [block for block in chain.from_iterable(map(blocks, documents())) if block.path != ROOT / "README.md"]
# Who sets a tracer provider sets it for a whole process.
ALONE = {block.name: block for block in FOUND if block.path.name == "monitoring.md"}
PROGRAMS = {block.name: block for block in FOUND if block.mark == "" and block.name not in ALONE}


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


@pytest.mark.parametrize("name", ALONE)
def test_a_program_of_its_own_process_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(ALONE[name].code, encoding="utf-8")
    subprocess.run([sys.executable, str(file)], timeout=100, check=True)
