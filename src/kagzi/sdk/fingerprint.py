"""The fingerprint of a workflow's code: another one means other code, with which a run may be tried that the old code
could not go on with. It is taken over the sources of the program the workflow belongs to, because what asks for the
steps is often a function in a module beside it. It reads files, and only those of modules that are loaded.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

# Where programs of others live: a module there has no neighbours that belong to it.
_INSTALLED = tuple({Path(path).resolve() for path in sysconfig.get_paths().values()})


@cache
def fingerprint(function: Callable[..., Any]) -> str:
    """Changes when the code of the function, or of the program around it, does. asyncio schedules differently between
    minor versions of Python, so the version is part of it.
    """
    digest = hashlib.sha256(f"{sys.version_info[:2]}\n{function.__module__}.{function.__qualname__}\n".encode())
    digest.update(_own(function).encode())
    for name, file in sorted(neighbours(sys.modules.get(function.__module__))):
        digest.update(f"\n{name}\n".encode())
        digest.update(_contents(file))
    return digest.hexdigest()[:16]


def _own(function: Callable[..., Any]) -> str:
    """The function's own source, or its code where it has none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return repr(function) if code is None else repr((code.co_code, code.co_names, code.co_consts))


def neighbours(module: ModuleType | None) -> Iterator[tuple[str, Path]]:
    """Loaded modules of the same program: of one package, or beside each other in one folder."""
    place = _file(module)
    if module is None or place is None:
        return
    package = module.__name__.partition(".")[0]
    folder = None if any(place.is_relative_to(path) for path in _INSTALLED) else place.parent
    for name, other in list(sys.modules.items()):
        file = _file(other)
        if file is not None and (name.partition(".")[0] == package or (folder and file.is_relative_to(folder))):
            yield name, file


def _file(module: ModuleType | None) -> Path | None:
    # Some modules are stand-ins that answer anything when asked.
    found = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return Path(found).resolve() if isinstance(found, str) and found.endswith(".py") else None


@cache
def _contents(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
