"""What is installed is what was pinned, and its code that of its wheels. Known vulnerabilities cannot be asked for
without a network; `pip-audit -r constraints.txt` does that where there is one.
"""

from __future__ import annotations

import ast
import base64
import hashlib
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.house.test_dependencies import PROJECT, pins
from tests.house.tree import SOURCE

# They make the environment and are no part of what runs in it.
TOOLS = {"pip", "setuptools", "wheel", "kagzi", "uv"}
_SOURCE_BYTES = 1_000_000


def installed() -> dict[str, Distribution]:
    found = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    return {name: one for name, one in found.items() if name not in TOOLS}


def test_everything_installed_is_pinned_to_its_version() -> None:
    pinned = pins()
    loose = {name: one.version for name, one in installed().items() if pinned.get(name) != Version(one.version)}
    assert loose == {}


def runtime() -> set[str]:
    """What users get: the server and all that it needs, by name."""
    wanted = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    extras = PROJECT["project"]["optional-dependencies"]
    wanted += [Requirement(line) for line in (*extras["server"], *extras["embedded"], "cryptography")]
    there = installed()
    found: set[str] = set()
    while wanted:
        name = canonicalize_name(wanted.pop().name)
        if name in there and name not in found:
            found.add(name)
            needs = [Requirement(line) for line in there[name].requires or ()]
            wanted += [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def test_the_code_of_what_users_get_is_that_of_its_wheels() -> None:
    changed = []
    for name in sorted(runtime()):
        for file in installed()[name].files or ():
            path = Path(str(file.locate()))
            if file.hash is None or path.suffix != ".py" or path.stat().st_size > _SOURCE_BYTES:
                continue
            data = hashlib.new(file.hash.mode, path.read_bytes()).digest()
            if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != file.hash.value:
                changed.append(str(file))
    assert changed == []


def test_nothing_is_read_that_could_run() -> None:
    """Never pickle, eval or marshal: what users store is data."""
    runs = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    guilty = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            calls = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"eval", "exec"}
            if calls or runs & {name.partition(".")[0] for name in names}:
                guilty.append(f"{path.name}:{getattr(node, 'lineno', 0)}")
    assert guilty == []
