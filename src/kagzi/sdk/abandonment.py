"""Steps that are given up: by the code, whose waiter was cancelled; by the end of the code; by the end of the
worker's time. The body is stopped. An attempt that is on record is closed there: ABANDONED or INTERRUPTED, which
count no failure, or UNKNOWN for an effect that may have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.protocol.v1.common_pb2 import (
    FUNCTION,
    STEP_ABANDONED,
    STEP_FAILED,
    STEP_INTERRUPTED,
    STEP_RUNNING,
    STEP_UNKNOWN,
)
from kagzi.sdk.pending import Pending, State

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution


def waiter_gone(run: Execution, pending: Pending) -> None:
    """The code cancelled what waited for the step."""
    if not (run.loop.dropped or run.over or pending.state is State.CLOSED):
        _abandon(run, pending)


def everything(run: Execution) -> None:
    """The code has ended and waits for nothing any more."""
    for pending in list(run.agenda.open.values()):
        _abandon(run, pending)


def interrupt(run: Execution) -> None:
    """The worker stops: bodies are cancelled, which is no failure of theirs."""
    for pending in list(run.agenda.open.values()):
        if pending.state is State.RUNNING and pending.stop is not None:
            pending.stop()
            if _left(pending):
                outcome = STEP_UNKNOWN if pending.effect else STEP_INTERRUPTED
                run.send("step_failed", pending.failed(0, None, outcome=outcome))


def _abandon(run: Execution, pending: Pending) -> None:
    record = pending.request.record
    on_record = record is not None and record.status in (STEP_RUNNING, STEP_FAILED) and not record.completed_seq
    left = _left(pending)
    if pending.stop is not None:
        pending.stop()
    # A failed attempt that waits for its next one is closed as it is.
    between_attempts = pending.state is State.HELD and pending.request.kind == FUNCTION
    if (left or on_record) and not between_attempts:
        if not pending.attempt_id and record is not None:
            pending.attempt_id, pending.attempt_number = record.attempt_id, record.attempt_number
        outcome = STEP_UNKNOWN if pending.effect and pending.state is State.RUNNING else STEP_ABANDONED
        run.send("step_failed", pending.failed(0, None, outcome=outcome))
    run.agenda.set(pending, State.CLOSED)


def _left(pending: Pending) -> bool:
    """Whether the attempt is on record, or on its way there."""
    return pending.recorded or (pending.withdraw is not None and not pending.withdraw())
