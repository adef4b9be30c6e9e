"""Collects what a module holds for a worker, named by import path or by file. What goes wrong on the way, also inside
the module, is one ConfigError that says what to do. It imports the module and nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import ConfigError

T = TypeVar("T")


def collect(place: str) -> list[Workflow[Any, Any]]:
    """The workflows that a module declares or imports, in that order. `place` is as "shop.orders" or
    "shop/orders.py".
    """
    found = instances(place, Workflow)
    if not found:
        raise ConfigError(
            f"{place} holds no workflow: put @workflow on a function there, or import those of other modules into it."
        )
    return found


def instances(place: str, kind: type[T]) -> list[T]:
    """The objects of a class that a module declares or imports, in that order; each once."""
    found = {id(value): value for value in vars(load(place)).values() if isinstance(value, kind)}
    return list(found.values())


def source_of(place: str) -> Path:
    """The directory of the outermost package, or else the file, whose change may change the module. Imports nothing."""
    path = _file(place)
    if path is not None:
        return _package(path)[0]
    top, *_ = place.split(".")
    _see_here()
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None:
        raise _missing(place)
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    if spec.origin is None:
        raise _missing(place)
    return Path(spec.origin)


def load(place: str) -> ModuleType:
    """The module, imported."""
    path = _file(place)
    _see_here()
    try:
        return importlib.import_module(place) if path is None else _load_file(path)
    except ConfigError:
        raise
    except ModuleNotFoundError as error:
        if path is None and error.name is not None and f"{place}.".startswith(f"{error.name}."):
            raise _missing(place) from None
        raise _broken(place, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(place, error) from error


def _file(place: str) -> Path | None:
    """The file that `place` names; None when it is an import path."""
    path = Path(place)
    if not (place.endswith(".py") or "/" in place or path.is_dir()):
        return None
    if path.is_dir():
        path /= "__init__.py"
    if path.is_file() and path.suffix != ".py":
        raise ConfigError(f"{place} is no module: give a module's file, as shop/orders.py, or its import path.")
    if not path.is_file():
        raise ConfigError(f"There is no file {place}: give a module's file, as shop/orders.py, or its import path.")
    return path.resolve()


def _load_file(path: Path) -> ModuleType:
    root, name = _package(path)
    if str(root.parent) not in sys.path:
        sys.path.insert(0, str(root.parent))
    known = sys.modules.get(name)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() != path:
        raise ConfigError(f"{path} would be the module {name!r}, which is something else here: rename the file.")
    if "." in name or path.name == "__init__.py":
        return importlib.import_module(name)
    # By its file: the name alone may also be that of a module that is installed.
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _package(path: Path) -> tuple[Path, str]:
    """The outermost package that a file belongs to, or the file itself, and the file's name as a module."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    root = path
    while (root.parent / "__init__.py").is_file():
        root = root.parent
        parts.insert(0, root.name)
    return root, ".".join(parts)


def _see_here() -> None:
    """Modules beside the one who asks are found, as with `python -m`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


def _missing(place: str) -> ConfigError:
    return ConfigError(
        f"There is no module {place!r} in {Path.cwd()}: give an import path, as shop.orders, or a file, as "
        "shop/orders.py."
    )


def _broken(place: str, error: BaseException) -> ConfigError:
    """The error with the last line of the module's own code that led to it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames and not isinstance(error, SyntaxError) else ""
    return ConfigError(f"{place} cannot be imported: {type(error).__name__}: {error}{where}.")
