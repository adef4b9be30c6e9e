"""How an execution ends: each function answers the operation that gives the run away. Nothing here changes the run;
it is the list of endings that `Execution` chooses from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uuid_utils

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import KagziError, PayloadError, RunCancelled, RunFailed, StepFailed
from kagzi.sdk.failure import ErrorInfo
from kagzi.sdk.history import Mismatch
from kagzi.sdk.pending import Pending
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

Ending = tuple[str, "pb.Complete | pb.Fail | pb.ContinueAsNew | pb.Suspend | pb.Release"]


class ContinueAsNew(BaseException):
    """Leaves a workflow to go on as another run; code with `except Exception` cannot swallow it."""

    def __init__(self, given: Any) -> None:
        super().__init__("the workflow continues as a new run")
        self.given = given


class Stuck(KagziError):
    """The code waits for something that nothing will ever bring."""


def of(root: asyncio.Task[Any], run: Execution) -> Ending:
    """The code has ended: with a result, with an error, cancelled, or to go on as another run."""
    if root.cancelled():
        return "fail", pb.Fail(failure=_cancelled(run), operation_id=_operation_id())
    error = root.exception()
    continued = _continues(error)
    if continued is not None:
        return _continued(continued, run)
    if error is not None:
        return failed(error, run)
    try:
        output = run.values.encode(root.result(), run.definition.output, "output")
    except PayloadError as refused:
        return failed(refused, run)
    return "complete", pb.Complete(output=output, operation_id=_operation_id())


def _cancelled(run: Execution) -> Failure:
    if run.waits.cancelled:
        return Failure(type="Cancelled", message=run.waits.cancel_reason or "the run was asked to cancel")
    return Failure(
        type="CancelledError",
        message="the code ended with asyncio.CancelledError, although nobody asked the run to cancel",
    )


def failed(error: BaseException, run: Execution) -> Ending:
    """An error left the code."""
    return "fail", pb.Fail(
        failure=failure_of(error), failed_step_id=_failed_step(error, run), operation_id=_operation_id()
    )


def _failed_step(error: BaseException, run: Execution) -> str:
    """The step whose error left the workflow; of several in a group the one that was asked for first."""
    positions = {request.step_id: request.position for request in run.ledger.requests}
    known = [step_id for step_id in _steps_behind(error) if step_id in positions]
    return min(known, key=positions.__getitem__, default="")


def _steps_behind(error: BaseException) -> Iterator[str]:
    """Steps that an error stands for: its own, those in a group, or those it was raised for."""
    if isinstance(error, StepFailed | RunFailed | RunCancelled):
        yield getattr(error, "step", "")
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _steps_behind(inner)
    else:
        reason = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if reason is not None:
            yield from _steps_behind(reason)


def undecodable(error: PayloadError) -> Ending:
    """The input is no such value: the run fails before any of its code runs."""
    return "fail", pb.Fail(failure=failure_of(error), operation_id=_operation_id())


def _continues(error: BaseException | None) -> ContinueAsNew | None:
    """Whether the code asked to go on as another run, also from inside a TaskGroup."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ContinueAsNew) else None


def _continued(ending: ContinueAsNew, run: Execution) -> Ending:
    message = pb.ContinueAsNew(new_run_id=str(uuid_utils.uuid7()), operation_id=_operation_id())
    if run.definition.takes_input and not run.definition.leaves_out(ending.given):
        try:
            message.input.CopyFrom(run.values.encode(ending.given, run.definition.input, "input"))
        except PayloadError as refused:
            return failed(refused, run)
    return "continue_as_new", message


def explained(mismatch: Mismatch, root: asyncio.Task[Any]) -> Mismatch:
    """With what the code ended with, which may be why it did not reach the rest: a recorded result that no longer
    decodes, an error before the first step.
    """
    error = root.exception() if root.done() and not root.cancelled() else None
    if error is None:
        return mismatch
    return replace(mismatch, message=f"{mismatch.message}; the code ended with {ErrorInfo.from_exception(error)}")


def parked(mismatch: Mismatch, definition: Workflow[Any, Any]) -> Ending:
    """The code does not fit its history: the run stands still until other code, or a person, helps it."""
    document = {
        "reason": "nondeterminism",
        "message": mismatch.message,
        "recorded": list(mismatch.recorded),
        "requested": list(mismatch.requested),
    }
    return "suspend", pb.Suspend(
        parked_json=json.dumps(document), parked_hash=definition.definition_hash, operation_id=_operation_id()
    )


def suspended(held: Iterable[Pending], *, kept: bool) -> pb.Suspend:
    """Everything waits: the run is given back with what it waits for."""
    return pb.Suspend(step_ids=[pending.step_id for pending in held], operation_id=_operation_id(), kept=kept)


def stuck(run: Execution) -> Ending:
    """The code rests and waits for nothing that could come."""
    error = Stuck(
        f"Workflow {run.workflow_type!r} waits for something that nothing will bring: an event, a queue or a lock of "
        "asyncio that no other branch of it will set. Wait for a step, a timer, a signal or a child instead."
    )
    return failed(error, run)


def release() -> pb.Release:
    """The worker stops: anybody may go on."""
    return pb.Release(operation_id=_operation_id())


def _operation_id() -> str:
    return str(uuid_utils.uuid4())
