"""How an execution ends: each function answers the operation that gives the run away. Nothing here changes the run;
it is the list of endings that `Execution` chooses from.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import uuid_utils

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import KagziError, PayloadError, StepFailed
from kagzi.sdk.history import Mismatch
from kagzi.sdk.pending import Pending
from kagzi.sdk.values import failure_of

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# Ids of children derive from the attempt that starts them, so that a repeated attempt starts one child.
_CHILDREN = uuid.UUID("5a0c4bb8-5f0e-4b7d-9c39-7f0f6a0a7f11")

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
        failure = Failure(type="Cancelled", message=run.waits.cancel_reason)
        return "fail", pb.Fail(failure=failure, operation_id=_operation_id())
    error = root.exception()
    if isinstance(error, ContinueAsNew):
        return _continued(error, run)
    if error is not None:
        return failed(error)
    try:
        output = run.values.encode(root.result(), run.definition.output, "output")
    except PayloadError as refused:
        return failed(refused)
    return "complete", pb.Complete(output=output, operation_id=_operation_id())


def failed(error: BaseException) -> Ending:
    """An error left the code."""
    step = _left_by(error)
    return "fail", pb.Fail(
        failure=failure_of(error), failed_step_id=step.step if step else "", operation_id=_operation_id()
    )


def _left_by(error: BaseException) -> StepFailed | None:
    """The step whose error left the workflow, also out of a group."""
    if isinstance(error, StepFailed):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_left_by(inner) for inner in error.exceptions)), None)
    return None


def undecodable(error: PayloadError) -> Ending:
    """The input is no such value: the run fails before any of its code runs."""
    return "fail", pb.Fail(failure=failure_of(error), operation_id=_operation_id())


def _continued(ending: ContinueAsNew, run: Execution) -> Ending:
    message = pb.ContinueAsNew(new_run_id=str(uuid_utils.uuid7()), operation_id=_operation_id())
    if run.definition.takes_input:
        try:
            message.input.CopyFrom(run.values.encode(ending.given, run.definition.input, "input"))
        except PayloadError as refused:
            return failed(refused)
    return "continue_as_new", message


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


def suspended(held: Sequence[Pending]) -> pb.Suspend:
    """Everything waits: the run is given back with what it waits for."""
    return pb.Suspend(step_ids=[pending.step_id for pending in held], operation_id=_operation_id())


def stuck(run: Execution) -> Ending:
    """The code rests and waits for nothing that could come."""
    error = Stuck(
        f"Workflow {run.workflow_type!r} waits for something that nothing will bring: an event, a queue or a lock of "
        "asyncio that no other branch of it will set. Wait for a step, a timer, a signal or a child instead."
    )
    return "fail", pb.Fail(failure=failure_of(error), operation_id=_operation_id())


def release() -> pb.Release:
    """The worker stops: anybody may go on."""
    return pb.Release(operation_id=_operation_id())


def child_run_id(attempt_id: str) -> str:
    """The id of the child that an attempt starts."""
    return str(uuid.uuid5(_CHILDREN, attempt_id))


def _operation_id() -> str:
    return str(uuid_utils.uuid4())
