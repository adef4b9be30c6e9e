"""Lines out of a program, run where it would have come to them."""

from __future__ import annotations

import ast
import importlib.util
import types
from pathlib import Path
from typing import Any

import kagzi


def names(program: str, file: Path) -> dict[str, Any]:
    """What a program declares, which is written to `file` and not started, and what Kagzi offers."""
    file.write_text(program, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    offered = {name: getattr(kagzi, name) for name in ("Client", "Worker")}
    return {**offered, **vars(module)}


async def executed(code: str, known: dict[str, Any]) -> None:
    """Runs lines that may await, as if they stood in a function."""
    made = types.FunctionType(compile(code, "fragment", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), known)
    waiting = made()
    if waiting is not None:
        await waiting
