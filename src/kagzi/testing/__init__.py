"""What users need to test their workflows: a real server and worker on a private PostgreSQL, with a clock that tests
move; and the replay of stored histories, which needs no server. Nothing is loaded before it is used, because pytest
opens this room in every project that has Kagzi installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kagzi.testing.harness import Environment as Environment
    from kagzi.testing.harness import EnvironmentOptions as EnvironmentOptions
    from kagzi.testing.harness import Standstill as Standstill
    from kagzi.testing.harness import environment as environment
    from kagzi.testing.plugin import Environments as Environments
    from kagzi.testing.rehearsal import Replay as Replay
    from kagzi.testing.rehearsal import replay as replay
    from kagzi.testing.transcript import history as history

__all__ = [
    "Environment",
    "EnvironmentOptions",
    "Environments",
    "Replay",
    "Standstill",
    "environment",
    "history",
    "replay",
]

_HOMES = {
    "Environment": "harness",
    "EnvironmentOptions": "harness",
    "Environments": "plugin",
    "Replay": "rehearsal",
    "Standstill": "harness",
    "environment": "harness",
    "history": "transcript",
    "replay": "rehearsal",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(__name__):
            raise
        raise ModuleNotFoundError(
            f"kagzi.testing.{name} needs {error.name!r}, which is not installed: pip install 'kagzi[all]'",
            name=error.name,
        ) from error
