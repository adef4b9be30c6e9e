"""Children of a run: what is asked of the server to start one, and the handle to one that is not waited for yet. What
the server would refuse is refused here, where the code asks for it: a refused operation would cost the run its place.
"""

from __future__ import annotations

import uuid
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.sdk import option
from kagzi.sdk.definition import Workflow
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.pending import Pending
from kagzi.sdk.request import retry_policy
from kagzi.sdk.retry import Retry
from kagzi.sdk.source import caller
from kagzi.sdk.waits import bounded_ms

if TYPE_CHECKING:
    from types import CodeType

    from kagzi.sdk.execution import Execution

O = TypeVar("O")  # noqa: E741 - a workflow's output

# Ids of children derive from the attempt that starts them, so that a repeated attempt starts one child.
_CHILDREN = uuid.UUID("5a0c4bb8-5f0e-4b7d-9c39-7f0f6a0a7f11")


class ChildOptions(TypedDict, total=False):
    """The keyword arguments of `ctx.run_child` and `ctx.start_child`; each means what it means in `client.start`."""

    id: str | None
    queue: str | None
    priority: int | None
    labels: Mapping[str, str] | None
    timeout: Duration | None
    retry: Retry | None
    delay: Duration | None
    # The end of this run does not cancel the child.
    detached: bool
    version: str | None


class ChildHandle(Generic[O]):
    """A child that was started. `await handle.result()` waits for it durably."""

    __slots__ = ("_output", "_run", "name", "run_id", "workflow_type")

    def __init__(self, run: Execution, name: str, run_id: str, workflow: Workflow[Any, O] | str) -> None:
        declared = workflow if isinstance(workflow, Workflow) else run.host.workflow(workflow)
        self._run = run
        self._output = declared.output if declared is not None else None
        self.name = name
        self.run_id = run_id
        self.workflow_type = workflow.name if isinstance(workflow, Workflow) else workflow

    def result(self) -> Coroutine[Any, Any, O]:
        """The child's result. Raises RunFailed or RunCancelled."""
        return self._result(*caller())

    async def _result(self, code: CodeType, line: int) -> O:
        run = self._run
        pending = Pending(
            run.ledger.request(f"{self.name}.result", CHILD_WORKFLOW, code, line),
            run.loop.create_future(),
            lambda given: run.values.decode(given, self._output, "output", self.workflow_type),
            child_run_id=self.run_id,
            target=self.workflow_type,
        )
        result: O = await run.result(pending)
        return result


def child_run_id(attempt_id: str) -> str:
    """The id of the child that an attempt starts."""
    return str(uuid.uuid5(_CHILDREN, attempt_id))


def child_request(
    run: Execution, workflow: Workflow[Any, Any] | str, given: Any, options: Mapping[str, Any]
) -> tuple[StartWorkflowRequest, Any]:
    """What to start, and the annotation of its result. ConfigError or PayloadError when it cannot be started."""
    unknown = options.keys() - ChildOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(ChildOptions.__annotations__)
        raise ConfigError(f"a child takes the options {known}, not {', '.join(sorted(unknown))}")
    name, declared = option.workflow(workflow)
    declared = declared or run.host.workflow(name)
    request = StartWorkflowRequest(
        workflow_type=name,
        task_queue=option.name(options.get("queue"), "queue") or (declared.queue if declared else None) or run.queue,
        external_id=option.name(options.get("id"), "id"),
        version=option.version(options.get("version")) or (declared.version if declared else ""),
        labels=option.labels(options.get("labels")),
        detached=bool(options.get("detached")),
    )
    _set_input(request, run, declared, given)
    if options.get("priority") is not None:
        request.priority = option.priority(options["priority"])
    _set_times(request, options, declared)
    return request, declared.output if declared is not None else None


def _set_input(request: StartWorkflowRequest, run: Execution, declared: Workflow[Any, Any] | None, given: Any) -> None:
    if declared is not None and not declared.takes_input:
        if given is not None:
            raise ConfigError(f"Workflow {declared.name!r} takes no input, and was given {type(given).__name__}.")
    elif declared is not None and declared.leaves_out(given):
        return
    elif declared is not None:
        made = option.payload(declared, given, lambda: run.values.encode(given, declared.input, "input", declared.name))
        request.input.CopyFrom(made)
    elif given is not None:
        request.input.CopyFrom(run.values.encode(given, None, "input", request.workflow_type))


def _set_times(request: StartWorkflowRequest, options: Mapping[str, Any], declared: Workflow[Any, Any] | None) -> None:
    if options.get("delay") is not None:
        request.delay_ms = bounded_ms(options["delay"], "delay")
    timeout = options.get("timeout")
    if timeout is None and declared is not None:
        timeout = declared.timeout
    if timeout is not None:
        request.timeout_ms = max(1, bounded_ms(timeout, "timeout"))
    retry = option.retry(options.get("retry")) or (declared.retry if declared else None)
    if retry is not None:
        request.retry.CopyFrom(retry_policy(retry))
