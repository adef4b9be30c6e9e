"""A queue of a test's own and what a test does there: start runs, look at them, take them by hand or with a worker."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeAlias

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, FAILED, FUNCTION, RunStatus
from tests.conformance.contract import Contract, eventually
from tests.conformance.execution import decoded, encoded, new_id
from tests.conformance.worker import Worker, Workflow

# As text: at run time it is an integer.
Status: TypeAlias = "RunStatus.ValueType"

ENDED = frozenset({COMPLETED, FAILED, CANCELLED})


class Place:
    """One queue. `type` is a workflow type that no other test uses."""

    def __init__(self, contract: Contract, namespace: str = "") -> None:
        self.contract = contract
        self.namespace = namespace
        self.queue = f"conformance-{secrets.token_hex(6)}"
        self.type = f"work-{secrets.token_hex(6)}"

    def request(self, value: Any = None, **fields: Any) -> wf.StartWorkflowRequest:
        """A start of this place's workflow in its queue, unless `fields` say otherwise."""
        given = {"namespace": self.namespace, "workflow_type": self.type, "task_queue": self.queue, **fields}
        return wf.StartWorkflowRequest(input=None if value is None else encoded(value), **given)

    async def start(self, value: Any = None, **fields: Any) -> str:
        """Starts a run and answers its id."""
        return (await self.contract.workflows.StartWorkflow(self.request(value, **fields))).run_id

    async def get(self, run_id: str) -> wf.WorkflowRun:
        request = wf.GetWorkflowRequest(namespace=self.namespace, run_id=run_id)
        return (await self.contract.workflows.GetWorkflow(request)).run

    async def status(self, run_id: str) -> Status:
        return (await self.get(run_id)).status

    async def ended(self, run_id: str, within: float = 20.0) -> wf.WorkflowRun:
        """The run once it has ended."""
        return await eventually(lambda: self.get(run_id), lambda run: run.status in ENDED, within)

    async def becomes(self, run_id: str, status: Status, within: float = 20.0) -> wf.WorkflowRun:
        """The run once it has this status."""
        return await eventually(lambda: self.get(run_id), lambda run: run.status == status, within)

    async def result(self, run_id: str) -> Any:
        """What a run returned; fails when it did not."""
        run = await self.ended(run_id)
        assert run.status == COMPLETED, f"{RunStatus.Name(run.status)}: {run.failure}"
        return decoded(run.output)

    async def signal(self, run_id: str, name: str, value: Any = None, **fields: Any) -> wf.SignalWorkflowResponse:
        request = wf.SignalWorkflowRequest(
            namespace=self.namespace, run_id=run_id, name=name, payload=encoded(value), **fields
        )
        return await self.contract.workflows.SignalWorkflow(request)

    async def cancel(self, run_id: str, reason: str = "") -> Status:
        request = wf.CancelWorkflowRequest(namespace=self.namespace, run_id=run_id, reason=reason)
        return (await self.contract.workflows.CancelWorkflow(request)).status

    async def terminate(self, run_id: str, reason: str = "") -> Status:
        request = wf.TerminateWorkflowRequest(namespace=self.namespace, run_id=run_id, reason=reason)
        return (await self.contract.workflows.TerminateWorkflow(request)).status

    def worker(self, workflow: Workflow, *, slots: int = 1, **others: Workflow) -> Worker:
        """A worker for this place's workflow, and for others by name."""
        workflows: Mapping[str, Workflow] = {self.type: workflow, **others}
        return Worker(self.contract, workflows, self.queue, namespace=self.namespace, slots=slots)

    async def hand(self, **fields: Any) -> Hand:
        """A worker whose every call the test makes itself."""
        registration = pb.RegisterRequest(
            namespace=self.namespace,
            task_queue=self.queue,
            instance=new_id(),
            types=fields.pop("types", [pb.ServedType(name=self.type)]),
            concurrency=1,
            **fields,
        )
        return Hand(self, (await self.contract.workers.Register(registration)).worker_id)


class Hand:
    """A registered worker, by hand."""

    def __init__(self, place: Place, worker_id: str) -> None:
        self.worker_id = worker_id
        self._place = place
        self._calls = place.contract.workers

    async def poll(self, wait_ms: int = 10_000) -> pb.Delivery | None:
        """The next run, or None when the time is up."""
        request = pb.PollTaskRequest(namespace=self._place.namespace, worker_id=self.worker_id, wait_ms=wait_ms)
        answer = await self._calls.PollTask(request)
        return answer.task if answer.HasField("task") else None

    async def take(self, run_id: str = "") -> pb.Delivery:
        """The next run, which must come, and be this one if one is named."""
        task = await self.poll()
        assert task is not None, "no run came"
        assert run_id in ("", task.run_id)
        return task

    async def beat(self, *held: pb.Held) -> pb.HeartbeatResponse:
        request = pb.HeartbeatRequest(namespace=self._place.namespace, worker_id=self.worker_id, held=held)
        return await self._calls.Heartbeat(request)

    async def deregister(self) -> int:
        request = pb.DeregisterRequest(namespace=self._place.namespace, worker_id=self.worker_id)
        return (await self._calls.Deregister(request)).released

    async def begin(self, run: pb.Held, step_id: str, **fields: Any) -> pb.BeginStepResponse:
        step = pb.StepStarted(step_id=step_id, **{"attempt_id": new_id(), "kind": FUNCTION, **fields})
        return await self._calls.BeginStep(pb.BeginStepRequest(namespace=self._place.namespace, run=run, step=step))

    async def complete_step(self, run: pb.Held, step_id: str, value: Any = None, **fields: Any) -> None:
        given = {"attempt_id": new_id(), "kind": FUNCTION, "output": encoded(value), **fields}
        step = pb.StepCompleted(step_id=step_id, **given)
        request = pb.CompleteStepRequest(namespace=self._place.namespace, run=run, step=step)
        await self._calls.CompleteStep(request)

    async def complete(self, run: pb.Held, value: Any = None) -> Status:
        body = pb.Complete(output=encoded(value), operation_id=new_id())
        request = pb.CompleteWorkflowRequest(namespace=self._place.namespace, run=run, complete=body)
        return (await self._calls.CompleteWorkflow(request)).status


def held(task: pb.Delivery) -> pb.Held:
    """The run and its token, for every write."""
    return pb.Held(run_id=task.run_id, claim_token=task.claim_token)
