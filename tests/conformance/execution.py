"""One run in the hands of a worker of unary calls. A workflow is a plain function over `Run`; it begins at the top on
every delivery, and each thing it asks for is answered from the record if there is one. What gives the run back leaves
the function with an exception that only the worker catches.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    CANCEL,
    COMPLETED,
    FUNCTION,
    STEP_COMPLETED,
    STEP_FAILED,
    Failure,
    Payload,
    RetryPolicy,
    Step,
)
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from tests.conformance.contract import Contract, patiently

Body = Callable[[], Awaitable[Any]]


class GivenBack(BaseException):
    """The run is not this worker's any more: nothing may be written for it."""


class StepFailed(Exception):
    """A step, or a child, has failed for good."""

    def __init__(self, step_id: str, failure: Failure) -> None:
        super().__init__(f"{failure.type}: {failure.message}")
        self.step_id = step_id
        self.failure = failure


class Cancelled(Exception):
    """Somebody asked the run to end."""


class Fatal(Exception):
    """A body raises this to say that trying again is pointless."""


def new_id() -> str:
    return str(uuid.uuid4())


def encoded(value: Any) -> Payload:
    return Payload(data=json.dumps(value).encode())


def decoded(payload: Payload) -> Any:
    return json.loads(payload.data) if payload.data else None


class Run:
    """What a workflow sees of its run."""

    def __init__(self, contract: Contract, task: pb.Delivery, namespace: str = "") -> None:
        self.task = task
        self.input = decoded(task.input)
        self.namespace = namespace
        self.held = pb.Held(run_id=task.run_id, claim_token=task.claim_token)
        self.cancelled = any(fact.HasField("cancel_requested") for fact in task.facts)
        self._calls = contract.workers
        self._recorded = {step.step_id: step for step in task.history}
        self._asked: Counter[str] = Counter()
        # Where the code was told of a cancel.
        told = next((step for step in task.history if step.kind == CANCEL), None)
        self._cancel: str | None = decoded(told.output) if told else None
        self._states = task.state_number

    async def step(self, name: str, body: Body, retry: RetryPolicy | None = None, *, effect: bool = False) -> Any:
        """Runs the body once, or answers what came of it before."""
        step_id = await self._reach(name)
        recorded = self._recorded.get(step_id)
        if recorded is None or recorded.status != STEP_COMPLETED:
            started = pb.StepStarted(step_id=step_id, attempt_id=new_id(), kind=FUNCTION, effect=effect)
            request = pb.BeginStepRequest(namespace=self.namespace, run=self.held, step=started)
            begun = await patiently(lambda: self._calls.BeginStep(request))
            if begun.should_execute:
                return await self._execute(begun.step, body, retry)
            recorded = begun.step
        if recorded.status == STEP_COMPLETED:
            return decoded(recorded.output)
        if recorded.status == STEP_FAILED and not recorded.HasField("retry_at"):
            raise StepFailed(step_id, recorded.failure)
        return await self._suspend(step_id)

    async def _execute(self, step: Step, body: Body, retry: RetryPolicy | None) -> Any:
        try:
            output = encoded(await body())
        except Exception as error:  # noqa: BLE001 - whatever a body raises is the failure of its step
            await self._fail_step(step, error, retry)
        completed = pb.StepCompleted(step_id=step.step_id, attempt_id=step.attempt_id, kind=FUNCTION, output=output)
        request = pb.CompleteStepRequest(namespace=self.namespace, run=self.held, step=completed)
        await patiently(lambda: self._calls.CompleteStep(request))
        return decoded(output)

    async def _fail_step(self, step: Step, error: Exception, retry: RetryPolicy | None) -> NoReturn:
        failure = Failure(type=type(error).__name__, message=str(error), non_retryable=isinstance(error, Fatal))
        failed = pb.StepFailed(
            step_id=step.step_id, attempt_id=step.attempt_id, kind=FUNCTION, failure=failure, retry=retry
        )
        request = pb.FailStepRequest(namespace=self.namespace, run=self.held, step=failed, operation_id=new_id())
        answer = await patiently(lambda: self._calls.FailStep(request))
        if answer.scheduled_retry:
            raise GivenBack
        raise StepFailed(step.step_id, failure) from error

    async def sleep(self, name: str, milliseconds: int) -> None:
        """A durable timer."""
        step_id = await self._reach(name)
        request = pb.SleepRequest(
            namespace=self.namespace,
            run=self.held,
            step_id=step_id,
            attempt_id=new_id(),
            duration_ms=milliseconds,
            operation_id=new_id(),
        )
        if not (await patiently(lambda: self._calls.Sleep(request))).elapsed:
            raise GivenBack

    async def receive(self, name: str, timeout_ms: int | None = None) -> Any:
        """The next signal of a name; None when the time is up."""
        step_id = await self._reach(f"receive {name}")
        request = pb.ReceiveSignalRequest(
            namespace=self.namespace,
            run=self.held,
            step_id=step_id,
            attempt_id=new_id(),
            name=name,
            timeout_ms=timeout_ms,
        )
        answer = await patiently(lambda: self._calls.ReceiveSignal(request))
        if answer.outcome == pb.ReceiveSignalResponse.WAITING:
            await self._suspend(step_id)
        return decoded(answer.signal.payload)

    async def child(self, name: str, child: StartWorkflowRequest) -> Any:
        """Starts a child and waits for its result."""
        step_id, answer = await self._start_child(name, child)
        if not answer.HasField("ended"):
            await self._suspend(step_id)
        if answer.ended.status != COMPLETED:
            raise StepFailed(step_id, answer.ended.failure)
        return decoded(answer.ended.output)

    async def start_child(self, name: str, child: StartWorkflowRequest) -> str:
        """Starts a child and goes on."""
        _, answer = await self._start_child(name, child, start_only=True)
        return answer.child_run_id

    async def _start_child(
        self, name: str, child: StartWorkflowRequest, *, start_only: bool = False
    ) -> tuple[str, pb.StartChildResponse]:
        step_id = await self._reach(name)
        recorded = self._recorded.get(step_id)
        child.run_id = recorded.child_run_id if recorded else new_id()
        body = pb.StartChild(step_id=step_id, attempt_id=new_id(), child=child, start_only=start_only)
        request = pb.StartChildRequest(namespace=self.namespace, run=self.held, start_child=body)
        return step_id, await patiently(lambda: self._calls.StartChild(request))

    async def set_state(self, document: Any) -> None:
        """Publishes a document."""
        self._states += 1
        body = pb.SetState(state_json=json.dumps(document), number=self._states)
        request = pb.SetStateRequest(namespace=self.namespace, run=self.held, set_state=body)
        await patiently(lambda: self._calls.SetState(request))

    async def continue_as_new(self, value: Any) -> NoReturn:
        """Ends this run and begins another with its name."""
        body = pb.ContinueAsNew(new_run_id=new_id(), input=encoded(value), operation_id=new_id())
        request = pb.ContinueAsNewRequest(namespace=self.namespace, run=self.held, continue_as_new=body)
        await patiently(lambda: self._calls.ContinueAsNew(request))
        raise GivenBack

    async def _suspend(self, *step_ids: str) -> NoReturn:
        body = pb.Suspend(step_ids=step_ids, operation_id=new_id())
        request = pb.SuspendRequest(namespace=self.namespace, run=self.held, suspend=body)
        await patiently(lambda: self._calls.Suspend(request))
        raise GivenBack

    async def _reach(self, name: str) -> str:
        """The id of the next thing the code asks for. A cancel is raised once, on replay at the same place."""
        self._asked[name] += 1
        step_id = name if self._asked[name] == 1 else f"{name}#{self._asked[name]}"
        recorded = self._recorded.get(step_id)
        waits = recorded is None or recorded.status not in (STEP_COMPLETED, STEP_FAILED)
        if self.cancelled and self._cancel is None and waits:
            self._cancel = step_id
            completed = pb.StepCompleted(step_id="cancel", attempt_id=new_id(), kind=CANCEL, output=encoded(step_id))
            request = pb.CompleteStepRequest(namespace=self.namespace, run=self.held, step=completed)
            await patiently(lambda: self._calls.CompleteStep(request))
            raise Cancelled
        if self._cancel == step_id:
            raise Cancelled
        return step_id
