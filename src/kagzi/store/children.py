"""Children: runs started by a step of another run. The child and the record of the step that started it are one
transaction; the child's id derives from the attempt, so a repeated operation starts it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, ErrorDetail
from kagzi.protocol.v1.worker_pb2 import StartChild, StartChildAnswer, StepCompleted, StepStarted
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest, StartWorkflowResponse
from kagzi.store import errors, runs, steps
from kagzi.store.operation import Kind, Operation, Outcome


async def start(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    outcome: Outcome,
) -> None:
    """Stores children and the steps that started them. A refused child refuses its operation and leaves no step."""
    starts = [_start(namespace, operation) for operation in operations]
    await runs.start(connection, namespace, starts, lease, outcome)
    waited: list[Operation] = []
    handed: list[Operation] = []
    for operation, started in zip(operations, starts, strict=True):
        if not isinstance(started.answer, StartWorkflowResponse):
            operation.answer = started.answer
            continue
        answer = StartChildAnswer(child_run_id=started.answer.run_id, already_exists=started.answer.already_exists)
        (handed if operation.body.start_only else waited).append(_step(operation, answer))
        operation.answer = answer
    if waited:
        await steps.start(connection, namespace, waited)
    if handed:
        await steps.complete(connection, namespace, handed)
    for step in (*waited, *handed):
        if isinstance(step.answer, ErrorDetail):
            # Its child may be stored already, by a step that is not on record.
            raise errors.Refused(step.answer)


def _start(namespace: str, operation: Operation) -> Operation:
    body: StartChild = operation.body
    child = StartWorkflowRequest()
    child.CopyFrom(body.child)
    child.parent_run_id = operation.run_id
    child.parent_step_attempt_id = body.attempt_id
    return Operation(Kind.START, namespace, child.run_id, child)


def _step(operation: Operation, answer: StartChildAnswer) -> Operation:
    """The record of the step: complete once the child exists, or RUNNING until its end is handed to the code."""
    body: StartChild = operation.body
    step: StepStarted | StepCompleted
    if body.start_only:
        step = StepCompleted(completed_seq=body.completed_seq)
        kind = Kind.COMPLETE_STEP
    else:
        step = StepStarted(target=body.child.workflow_type)
        kind = Kind.START_STEP
    step.step_id = body.step_id
    step.attempt_id = body.attempt_id
    step.kind = CHILD_WORKFLOW
    step.position = body.position
    step.input_hash = body.input_hash
    step.child_run_id = answer.child_run_id
    return Operation(kind, operation.namespace, operation.run_id, step, token=operation.token)
