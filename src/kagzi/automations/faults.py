"""What an error of a handler means for its automation: worth another try, a matter for a person, or a defect; and
where in the users' code it came from.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.sdk.errors import NeedsAttention, NotApplied, Transient

# This package, and Python's own library.
_NOT_THEIRS = (str(Path(__file__).parents[1]), str(Path(traceback.__file__).parent))


def fault_of(error: BaseException) -> pb.HandlerFault.ValueType:
    """Timeouts may pass as what is said to be transient may; of a group the worst counts."""
    if isinstance(error, BaseExceptionGroup):
        return max((fault_of(inner) for inner in error.exceptions), default=pb.FAULT_DEFECT)
    if isinstance(error, NeedsAttention):
        return pb.FAULT_NEEDS_ATTENTION
    if isinstance(error, Transient | TimeoutError | NotApplied):
        return pb.FAULT_TRANSIENT
    return pb.FAULT_DEFECT


def place_of(error: BaseException) -> str:
    """The line of the users' code that an error went through last, as "inbox.py:12 in prepare"; empty when there is
    none, as for what is found out after a phase has returned.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _hidden(frame.filename)]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""


def _hidden(filename: str) -> bool:
    """Whether it is our code, or a library's: what its users did not write."""
    return filename.startswith((*_NOT_THEIRS, "<")) or "site-packages" in filename
