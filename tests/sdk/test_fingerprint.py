"""The fingerprint of a workflow's code: another one when its program changed, the same one otherwise."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from kagzi.sdk.fingerprint import neighbours

WORKFLOWS = """
from kagzi import Context, workflow
from {package}waits import steps

@workflow
async def order(ctx: Context) -> None:
    await steps(ctx)
"""
STEPS = """
async def steps(ctx):
    await ctx.sleep("{name}", 1)
"""


def fingerprint(folder: Path, module: str) -> str:
    program = f"import {module} as found; print(found.order.definition_hash)"
    # Bytecode stands for any source of the same size and second.
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("package", ["", "shop."], ids=["modules of one folder", "modules of one package"])
def test_a_change_in_a_module_of_the_same_program_is_another_definition(tmp_path: Path, package: str) -> None:
    folder = tmp_path / package.strip(".")
    folder.mkdir(exist_ok=True)
    (folder / "flows.py").write_text(WORKFLOWS.format(package=package))
    seen: list[str] = []
    for name in ("a", "a", "b"):
        (folder / "waits.py").write_text(STEPS.format(name=name))
        (folder / "never_imported.py").write_text(f"# {len(seen)}")
        seen.append(fingerprint(tmp_path, f"{package}flows"))
    assert seen[0] == seen[1] != seen[2]


def test_what_is_installed_beside_a_workflow_is_not_part_of_its_program() -> None:
    names = {name.partition(".")[0] for name, _ in neighbours(importlib.import_module("pytest_timeout"))}
    assert names == {"pytest_timeout"}
