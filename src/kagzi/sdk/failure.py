"""What is kept of an exception: the name of its type, its message and its traceback as text.

The text is all that crosses processes, so that live and replayed code see the same. It is bounded, can be
stored in PostgreSQL (no NUL, no lone surrogate), holds no local variables, and leaves out Kagzi's own frames.
Describing an exception never raises one.
"""

import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Self

LONGEST_NAME = 255
LONGEST_MESSAGE = 4_000
LONGEST_TRACEBACK = 16_000

_OWN_CODE = f"{Path(__file__).resolve().parent.parent}{os.sep}"


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception as it is stored and shown; `str()` gives `Type: message`."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def from_exception(cls, error: BaseException) -> Self:
        return cls(
            type=_clean(type(error).__name__, LONGEST_NAME),
            message=_clean(_message(error), LONGEST_MESSAGE),
            traceback=_clean(_trace(error), LONGEST_TRACEBACK),
        )

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def _message(error: BaseException) -> str:
    try:
        if isinstance(error, BaseExceptionGroup):
            # Of itself a group says only how many there are.
            return f"{error}: {'; '.join(_line(one) for one in error.exceptions)}"
        return str(error)
    except Exception as second:  # noqa: BLE001 - `__str__` of a user's class may raise anything
        return f"<its message could not be read: {type(second).__name__}>"


def _line(error: BaseException) -> str:
    message = _message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _trace(error: BaseException) -> str:
    try:
        trace = traceback.TracebackException.from_exception(error, compact=True)
        _trim(trace)
        return "".join(trace.format())
    except Exception as second:  # noqa: BLE001 - it asks the exception and the source files
        return f"<its traceback could not be read: {type(second).__name__}>"


def _trim(trace: traceback.TracebackException) -> None:
    foreign = [frame for frame in trace.stack if not frame.filename.startswith(_OWN_CODE)]
    # When every frame is ours the defect is ours too, and the frames are all there is to find it by.
    if foreign:
        trace.stack = traceback.StackSummary.from_list(foreign)
    for inner in (trace.__cause__, trace.__context__, *(trace.exceptions or ())):
        if inner is not None:
            _trim(inner)


def _clean(text: str, longest: int) -> str:
    if len(text) > longest:
        # The first lines say where it began, the last what it was: the middle is what can be missed.
        head = longest // 4
        tail = longest - head - 40
        text = f"{text[:head]}\n... {len(text) - head - tail} characters left out ...\n{text[-tail:]}"
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\N{REPLACEMENT CHARACTER}")
