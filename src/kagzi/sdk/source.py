"""Where in the users' code something was asked for. Nothing is formatted until somebody wants to read it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType

# A piece of code, and a line of it.
Place = tuple[CodeType, int]

_OWN_CODE = str(Path(__file__).parent.parent)


def caller() -> Place:
    """The code and the line from which Kagzi was called."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller's line without building a traceback
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno
