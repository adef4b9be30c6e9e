"""Operations as a worker or a client would send them, one function for each, with defaults for all that a test does not
care about. `EVERY_WRITE` makes one of each kind that a worker can send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uuid_utils

from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1 import workflow_pb2 as workflow
from kagzi.protocol.v1.common_pb2 import FUNCTION, SIGNAL, SLEEP, Failure, Payload
from kagzi.store.operation import Kind, Operation

NAMESPACE = "default"
QUEUE = "default"
TYPE = "order"


def new_id() -> str:
    return str(uuid_utils.uuid7())


@dataclass(frozen=True, slots=True)
class Run:
    """A run and the token it was claimed with."""

    run_id: str
    token: str


def start(run_id: str | None = None, **fields: Any) -> Operation:
    request = workflow.StartWorkflowRequest(
        **{"run_id": run_id or new_id(), "workflow_type": TYPE, "task_queue": QUEUE, **fields}
    )
    return Operation(Kind.START, NAMESPACE, request.run_id, request)


def signal(run_id: str, name: str = "paid", **fields: Any) -> Operation:
    request = workflow.SignalWorkflowRequest(**{"name": name, "signal_id": new_id(), **fields})
    return Operation(Kind.SIGNAL, NAMESPACE, run_id, request)


def cancel(run_id: str, reason: str = "changed my mind") -> Operation:
    return Operation(Kind.CANCEL, NAMESPACE, run_id, workflow.CancelWorkflowRequest(reason=reason))


def terminate(run_id: str, reason: str = "enough") -> Operation:
    return Operation(Kind.TERMINATE, NAMESPACE, run_id, workflow.TerminateWorkflowRequest(reason=reason))


def _of(run: Run, kind: Kind, body: Any, operation_id: str | None = None) -> Operation:
    return Operation(kind, NAMESPACE, run.run_id, body, token=run.token, chained=True, operation_id=operation_id)


def _step(message: type[Any], step_id: str, **fields: Any) -> Any:
    return message(**{"step_id": step_id, "attempt_id": new_id(), "kind": FUNCTION, "attempt_number": 1, **fields})


def complete_step(run: Run, step_id: str = "charge", position: int = 1, **fields: Any) -> Operation:
    given = {"position": position, "completed_seq": position, "output": Payload(data=b'"done"'), **fields}
    return _of(run, Kind.COMPLETE_STEP, _step(worker.StepCompleted, step_id, **given))


def fail_step(run: Run, step_id: str = "charge", position: int = 1, **fields: Any) -> Operation:
    given = {"position": position, "failure": Failure(type="Declined", message="no money"), **fields}
    return _of(run, Kind.FAIL_STEP, _step(worker.StepFailed, step_id, **given))


def fail_step_and_give_back(run: Run, step_id: str = "charge", **fields: Any) -> Operation:
    given = {"failure": Failure(type="Declined", message="no money"), **fields}
    return _of(run, Kind.FAIL_STEP_AND_GIVE_BACK, _step(worker.StepFailed, step_id, **given), new_id())


def start_step(run: Run, step_id: str = "charge", position: int = 1, **fields: Any) -> Operation:
    return _of(run, Kind.START_STEP, _step(worker.StepStarted, step_id, position=position, **fields))


def await_signal(run: Run, name: str = "paid", position: int = 1, **fields: Any) -> Operation:
    return start_step(run, f"receive-{name}", position, kind=SIGNAL, target=name, **fields)


def timer(run: Run, step_id: str = "nap", position: int = 1, duration_ms: int = 3_600_000) -> Operation:
    return start_step(run, step_id, position, kind=SLEEP, duration_ms=duration_ms)


def begin_step(run: Run, step_id: str = "charge") -> Operation:
    return _of(run, Kind.BEGIN_STEP, _step(worker.StepStarted, step_id, attempt_number=0))


def start_child(run: Run, step_id: str = "ship", position: int = 1, **child: Any) -> Operation:
    request = workflow.StartWorkflowRequest(
        **{"run_id": new_id(), "workflow_type": "shipping", "task_queue": QUEUE, **child}
    )
    body = worker.StartChild(step_id=step_id, attempt_id=new_id(), position=position, child=request)
    return _of(run, Kind.START_CHILD, body)


def await_child(run: Run, step_id: str = "ship") -> Operation:
    body = start_child(run, step_id, position=0).body
    return _of(run, Kind.AWAIT_CHILD, body)


def set_state(run: Run, number: int = 1, state_json: str = '{"progress": 1}') -> Operation:
    return _of(run, Kind.SET_STATE, worker.SetState(state_json=state_json, number=number))


def wait(run: Run) -> Operation:
    return _of(run, Kind.WAIT, worker.Wait())


def receive_signal(run: Run, name: str = "paid") -> Operation:
    body = worker.ReceiveSignalRequest(step_id=f"receive-{name}", attempt_id=new_id(), name=name)
    return _of(run, Kind.RECEIVE_SIGNAL, body)


def sleep(run: Run, step_id: str = "nap", duration_ms: int = 3_600_000) -> Operation:
    body = worker.SleepRequest(step_id=step_id, attempt_id=new_id(), duration_ms=duration_ms)
    return _of(run, Kind.SLEEP, body, new_id())


def suspend(run: Run, *step_ids: str, **fields: Any) -> Operation:
    return _of(run, Kind.SUSPEND, worker.Suspend(step_ids=step_ids, **fields), new_id())


def release(run: Run) -> Operation:
    return _of(run, Kind.RELEASE, worker.Release(), new_id())


def complete(run: Run, output: bytes = b'"shipped"') -> Operation:
    return _of(run, Kind.COMPLETE, worker.Complete(output=Payload(data=output)), new_id())


def fail(run: Run, **fields: Any) -> Operation:
    given = {"failure": Failure(type="OutOfStock", message="sold out"), **fields}
    return _of(run, Kind.FAIL, worker.Fail(**given), new_id())


def continue_as_new(run: Run) -> Operation:
    body = worker.ContinueAsNew(new_run_id=new_id(), input=Payload(data=b'"more"'))
    return _of(run, Kind.CONTINUE_AS_NEW, body, new_id())


EVERY_WRITE: dict[Kind, Callable[[Run], Operation]] = {
    Kind.COMPLETE_STEP: complete_step,
    Kind.FAIL_STEP: fail_step,
    Kind.START_STEP: start_step,
    Kind.START_CHILD: start_child,
    Kind.SET_STATE: set_state,
    Kind.BEGIN_STEP: begin_step,
    Kind.RECEIVE_SIGNAL: receive_signal,
    Kind.AWAIT_CHILD: await_child,
    Kind.SLEEP: sleep,
    Kind.FAIL_STEP_AND_GIVE_BACK: fail_step_and_give_back,
    Kind.SUSPEND: lambda run: suspend(run, "nap"),
    Kind.RELEASE: release,
    Kind.COMPLETE: complete,
    Kind.FAIL: fail,
    Kind.CONTINUE_AS_NEW: continue_as_new,
}
