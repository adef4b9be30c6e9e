"""Where in the users' code something was asked for. Nothing is formatted until somebody wants to read it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import CodeType, FrameType

# A piece of code, and a line of it.
Place = tuple[CodeType, int]
# Places, each called from the next.
Standing = tuple[Place, ...]

_OWN_CODE = str(Path(__file__).parent.parent)
_EVENTS = asyncio.Handle._run.__code__.co_filename  # noqa: SLF001 - what a loop calls to run a callback
_TASK_STEP = asyncio.Handle._run.__code__  # noqa: SLF001 - as above
_NOT_THEIRS = (_OWN_CODE, _EVENTS, asyncio.sleep.__code__.co_filename)


def caller() -> Place:
    """The code and the line from which Kagzi was called."""
    frame = sys._getframe(2)  # noqa: SLF001 - the documented way to a caller's line without building a traceback
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_CODE):
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def standing() -> Standing:
    """Where the task that runs now stands in the users' code, from the innermost call outwards. The same line of a
    function that is called from two places is two places.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - as above
    places = []
    while frame is not None and frame.f_code is not _TASK_STEP:
        if not frame.f_code.co_filename.startswith(_NOT_THEIRS):
            places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(places)


def sleeps() -> bool:
    """Whether it is `asyncio.sleep` that begins or ends a timer."""
    frame = sys._getframe(2)  # noqa: SLF001 - as above
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OWN_CODE, _EVENTS)):
        frame = frame.f_back
    return frame.f_code is asyncio.sleep.__code__
