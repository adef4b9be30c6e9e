"""Steps that are given up: by the code, whose waiter was cancelled; by the end of the code; by the end of the
worker's time. The body is stopped. An attempt that is on record is closed there: ABANDONED or INTERRUPTED, which
count no failure, or UNKNOWN for an effect that may have happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kagzi.protocol.v1.common_pb2 import (
    FUNCTION,
    STEP_ABANDONED,
    STEP_INTERRUPTED,
    STEP_RUNNING,
    STEP_UNKNOWN,
    StepStatus,
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
        # A body that has ended is not interrupted: its result only waits for its turn.
        under_way = pending.stop is not None or (pending.effect and not pending.begun)
        if pending.state is State.RUNNING and under_way:
            pending.stop_body()
            _close(run, pending, STEP_INTERRUPTED)


def _abandon(run: Execution, pending: Pending) -> None:
    pending.stop_body()
    # A failed attempt that waits for the next is closed as it is, and so is doubt.
    if not (pending.state is State.HELD and pending.request.kind == FUNCTION):
        _close(run, pending, STEP_ABANDONED)
    run.agenda.set(pending, State.CLOSED)


def _close(run: Execution, pending: Pending, outcome: StepStatus.ValueType) -> None:
    """Closes the attempt that is on record, or on its way there: this one, or that of a worker before."""
    pending.take_back()
    record = pending.request.record
    if not pending.recorded and record is not None and record.status == STEP_RUNNING:
        pending.continue_attempt()
        pending.begun = True
    if pending.recorded and not pending.in_doubt:
        doubtful = pending.effect and pending.begun
        run.send("step_failed", pending.failed(0, None, outcome=STEP_UNKNOWN if doubtful else outcome))
