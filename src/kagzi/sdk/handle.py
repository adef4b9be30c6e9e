"""A handle to one run: waits for its result, looks at it, and changes it. It holds nothing but the run's id, so handles
are free to make and to forget. Every change is recognised when it is repeated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import uuid_utils

from kagzi.protocol.v1 import workflow_pb2 as pb
from kagzi.protocol.v1.admin_pb2 import ExplainRunRequest, GetStepRequest, ListStepsRequest
from kagzi.protocol.v1.common_pb2 import CANCELLED, COMPLETED, Payload, Step
from kagzi.sdk import duration, option
from kagzi.sdk.codec import Role
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import (
    Decode,
    Explanation,
    RunInfo,
    RunStatus,
    StepInfo,
    error_info,
    explanation,
    run_info,
    run_status,
    step_info,
)
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError, RunCancelled, RunFailed
from kagzi.sdk.reach import Reach
from kagzi.sdk.values import binding_of

O = TypeVar("O")  # noqa: E741 - a workflow's output

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PAGE = 100
_RESOLUTIONS = {
    "applied": pb.ResolveStepRequest.APPLIED,
    "not_applied": pb.ResolveStepRequest.NOT_APPLIED,
    "fail": pb.ResolveStepRequest.FAIL,
}


class Handle(Generic[O]):
    """One run. Made by `client.start(...)` and `client.handle(run_id)`."""

    def __init__(
        self, reach: Reach, run_id: str, workflow: Workflow[Any, O] | str | None = None, *, already_exists: bool = False
    ) -> None:
        self.run_id = str(run_id).lower()
        if not _UUID.fullmatch(self.run_id):
            raise ConfigError(
                f"{run_id!r} is no run id: that is a UUID, as handle.run_id of a run that was started. "
                "A run is found by the id its caller gave it with `await client.find(id)`."
            )
        # No run was started: this one had the `id` already.
        self.already_exists = already_exists
        self._reach = reach
        self._workflow = workflow if isinstance(workflow, Workflow) else None
        self._type = workflow.name if isinstance(workflow, Workflow) else workflow or ""

    def __repr__(self) -> str:
        return f"<Handle of run {self.run_id}{f' of {self._type}' if self._type else ''}>"

    async def result(self, *, timeout: Duration | None = None) -> O:
        """What the run returns, once it has ended; where it continued as another run, what that returns.

        Raises RunFailed or RunCancelled, and TimeoutError after `timeout`, which leaves the run alone.
        """
        limit = None if timeout is None else duration.named(timeout, "timeout")
        timer = asyncio.timeout(None if limit is None else limit.total_seconds())
        try:
            async with timer:
                ended = await self._reach.watch.ended(self.run_id)
        except TimeoutError:
            if limit is None or not timer.expired():
                raise
            raise TimeoutError(
                f"Run {self.run_id} has not ended within {duration.format(limit)}. It goes on: wait for it again with "
                "result(), or end it with cancel()."
            ) from None
        if ended.status == COMPLETED:
            output = ended.output if ended.HasField("output") else None
            if output is not None and "+" in output.encoding:
                await self._know_type()
            result: O = self._reach.decode(output, self._output, self._type, "output")
            return result
        if ended.status == CANCELLED:
            raise RunCancelled(ended.final_run_id, ended.failure.message)
        raise RunFailed(ended.final_run_id, error_info(ended.failure))

    async def describe(self) -> RunInfo:
        """How the run is now, with its input and output."""
        request = pb.GetWorkflowRequest(namespace=self._reach.namespace, run_id=self.run_id)
        run = (await self._reach.look(lambda server: server.workflows.GetWorkflow, request)).run
        self._type = run.workflow_type
        decode = partial(self._reach.decode, workflow_type=run.workflow_type)
        return run_info(
            run,
            partial(decode, annotation=self._workflow.input if self._workflow else None, role="input"),
            partial(decode, annotation=self._output, role="output"),
        )

    async def steps(self) -> list[StepInfo]:
        """The run's steps in the order its code asked for them, each with its latest attempt."""
        await self._know_type()
        request = ListStepsRequest(
            namespace=self._reach.namespace, run_id=self.run_id, include_outputs=True, page_size=_PAGE, by_step_id=True
        )
        found: list[StepInfo] = []
        while True:
            page = await self._reach.look(lambda server: server.admin.ListSteps, request)
            found += [step_info(step, self._decoder(step)) for step in page.steps]
            if not page.next_page_token:
                return sorted(found, key=lambda step: step.position)
            request.page_token = page.next_page_token

    async def step(self, step_id: str, *, attempt_id: str | None = None) -> StepInfo:
        """The latest attempt of one step, or an earlier one by its id."""
        await self._know_type()
        request = GetStepRequest(namespace=self._reach.namespace, run_id=self.run_id)
        if attempt_id:
            request.attempt_id = attempt_id
        else:
            request.step_id = step_id
        found = (await self._reach.look(lambda server: server.admin.GetStep, request)).step
        return step_info(found, self._decoder(found))

    def _decoder(self, step: Step) -> Decode:
        role, workflow_type = binding_of(step, self._type)
        return partial(self._reach.decode, annotation=None, workflow_type=workflow_type, role=role)

    async def explain(self) -> Explanation:
        """Why the run is where it is, and what to do if that is not wanted."""
        request = ExplainRunRequest(namespace=self._reach.namespace, run_id=self.run_id)
        return explanation(await self._reach.look(lambda server: server.admin.ExplainRun, request))

    async def state(self) -> Any:
        """The document the run last published with `ctx.set_state`; None when it has published none."""
        return (await self.describe()).state

    async def signal(self, name: str, value: Any = None, *, id: str | None = None) -> None:
        """Sends a message, kept until the run receives it. With the same `id` (a UUID) it is one message."""
        request = pb.SignalWorkflowRequest(
            namespace=self._reach.namespace,
            run_id=self.run_id,
            name=option.text(name, "name"),
            signal_id=str(id) if id is not None else str(uuid_utils.uuid7()),
        )
        if value is not None:
            await self._know_type()
            request.payload.CopyFrom(self._reach.encode(value, None, self._type, "signal"))
        await self._reach.change(lambda server: server.workflows.SignalWorkflow, request)

    async def cancel(self, reason: str = "") -> RunStatus:
        """Asks the run to end; its cleanup runs. Answers its status now: CANCELLED if it had never started."""
        why = option.text(reason, "reason")
        request = pb.CancelWorkflowRequest(namespace=self._reach.namespace, run_id=self.run_id, reason=why)
        answer = await self._reach.change(lambda server: server.workflows.CancelWorkflow, request)
        return run_status(answer.status)

    async def terminate(self, reason: str = "") -> RunStatus:
        """Ends the run now, whatever it does. Answers its status: CANCELLED, or how it had ended before."""
        why = option.text(reason, "reason")
        request = pb.TerminateWorkflowRequest(namespace=self._reach.namespace, run_id=self.run_id, reason=why)
        answer = await self._reach.change(lambda server: server.workflows.TerminateWorkflow, request)
        return run_status(answer.status)

    async def retry(self) -> Handle[O]:
        """A new run with the history before the failed step of this FAILED or CANCELLED one."""
        request = pb.RetryWorkflowRequest(
            namespace=self._reach.namespace, run_id=self.run_id, new_run_id=str(uuid_utils.uuid7())
        )
        answer = await self._reach.change(lambda server: server.workflows.RetryWorkflow, request)
        return Handle(self._reach, answer.run_id, self._workflow or self._type)

    async def fork(self, step: str, *, outputs: Mapping[str, Any] | None = None, input: Any = None) -> Handle[O]:
        """A new run with the history before `step`, with other outputs of earlier steps or another input if given."""
        changed = option.outputs(outputs)
        request = pb.ForkWorkflowRequest(
            namespace=self._reach.namespace,
            run_id=self.run_id,
            step_id=option.text(step, "step"),
            new_run_id=str(uuid_utils.uuid7()),
        )
        await self._know_type()
        for step_id, value in changed.items():
            request.outputs[step_id].CopyFrom(await self._output_of(step_id, value))
        if input is not None:
            annotation = self._workflow.input if self._workflow else None
            request.input.CopyFrom(self._reach.encode(input, annotation, self._type, "input"))
        answer = await self._reach.change(lambda server: server.workflows.ForkWorkflow, request)
        return Handle(self._reach, answer.run_id, self._workflow or self._type)

    async def _output_of(self, step_id: str, value: Any) -> Payload:
        """A value as the run's code will read it: what a signal or a child gave is bound otherwise than a step's."""
        role: Role = "step"
        workflow_type = self._type
        if self._reach.codecs:
            request = GetStepRequest(namespace=self._reach.namespace, run_id=self.run_id, step_id=step_id)
            found = await self._reach.look(lambda server: server.admin.GetStep, request)
            role, workflow_type = binding_of(found.step, self._type)
        return self._reach.encode(value, None, workflow_type, role)

    async def resume(self) -> RunStatus:
        """Lets a run go on that stands still because its code no longer matched its history."""
        request = pb.ResumeWorkflowRequest(
            namespace=self._reach.namespace, run_id=self.run_id, resume_id=str(uuid_utils.uuid7())
        )
        answer = await self._reach.change(lambda server: server.workflows.ResumeWorkflow, request)
        return run_status(answer.status)

    async def resolve(
        self,
        step: str,
        resolution: Literal["applied", "not_applied", "fail"],
        result: Any = None,
        *,
        reason: str = "",
        attempt_id: str = "",
        id: str | None = None,
    ) -> RunStatus:
        """Says what became of an effect whose outcome is UNKNOWN: it happened with this result, it did not and may run
        again, or the step has failed. With `attempt_id` it is said of that attempt alone, and refused when another one
        has come into doubt since. With the same `id` (a UUID) it is said once.
        """
        if resolution not in _RESOLUTIONS:
            raise ConfigError(f"resolution={resolution!r} must be one of {', '.join(map(repr, _RESOLUTIONS))}.")
        request = pb.ResolveStepRequest(
            namespace=self._reach.namespace,
            run_id=self.run_id,
            step_id=option.text(step, "step"),
            resolution=_RESOLUTIONS[resolution],
            reason=option.text(reason, "reason"),
            attempt_id=option.text(attempt_id, "attempt_id"),
            resolution_id=str(id) if id is not None else str(uuid_utils.uuid7()),
        )
        if resolution == "applied":
            await self._know_type()
            request.result.CopyFrom(self._reach.encode(result, None, self._type, "step"))
        answer = await self._reach.change(lambda server: server.workflows.ResolveStep, request)
        return run_status(answer.status)

    @property
    def _output(self) -> Any:
        return self._workflow.output if self._workflow else None

    async def _know_type(self) -> None:
        """Codecs bind a value to the workflow's type, which a handle made from an id alone does not know."""
        if not self._type:
            await self.describe()
