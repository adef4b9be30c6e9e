"""What an error of a handler means for its automation: worth another try, a matter for a person, or a defect."""

from __future__ import annotations

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.sdk.errors import NeedsAttention, NotApplied, Transient


def fault_of(error: BaseException) -> pb.HandlerFault.ValueType:
    """Timeouts may pass as what is said to be transient may; of a group the worst counts."""
    if isinstance(error, BaseExceptionGroup):
        return max((fault_of(inner) for inner in error.exceptions), default=pb.FAULT_DEFECT)
    if isinstance(error, NeedsAttention):
        return pb.FAULT_NEEDS_ATTENTION
    if isinstance(error, Transient | TimeoutError | NotApplied):
        return pb.FAULT_TRANSIENT
    return pb.FAULT_DEFECT
