"""Children of a run: what is asked of the server to start one, and the handle to one that is not waited for yet."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kagzi.protocol.v1.common_pb2 import RetryPolicy
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.sdk import duration
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.retry import Retry

if TYPE_CHECKING:
    from kagzi.sdk.context import Context
    from kagzi.sdk.execution import Execution

O = TypeVar("O")  # noqa: E741 - a workflow's output

_OPTIONS = ("id", "queue", "priority", "labels", "timeout", "retry", "delay", "detached", "version")


class ChildHandle(Generic[O]):
    """A child that was started. `await handle.result()` waits for it durably."""

    __slots__ = ("_context", "name", "output", "run_id", "workflow_type")

    def __init__(self, context: Context, name: str, run_id: str, workflow: Workflow[Any, O] | str) -> None:
        self._context = context
        self.name = name
        self.run_id = run_id
        self.workflow_type = workflow.name if isinstance(workflow, Workflow) else workflow
        self.output = workflow.output if isinstance(workflow, Workflow) else None

    async def result(self) -> O:
        """The child's result. Raises RunFailed or RunCancelled."""
        return await self._context.wait_child(self)

    def __await__(self) -> Generator[Any, None, O]:
        return self.result().__await__()


def child_request(
    run: Execution, workflow: Workflow[Any, Any] | str, given: Any, options: dict[str, Any]
) -> tuple[StartWorkflowRequest, Any]:
    """What to start, and the annotation of its result."""
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise ConfigError(f"a child takes the options {', '.join(_OPTIONS)}, not {', '.join(sorted(unknown))}")
    declared = workflow if isinstance(workflow, Workflow) else run.host.workflow(workflow)
    name = declared.name if declared is not None else str(workflow)
    request = StartWorkflowRequest(
        workflow_type=name,
        task_queue=options.get("queue") or (declared.queue if declared else None) or run.queue,
        external_id=options.get("id") or "",
        version=options.get("version") or (declared.version if declared else ""),
        labels=options.get("labels") or {},
        detached=bool(options.get("detached")),
    )
    if declared is None or declared.takes_input:
        annotation = declared.input if declared is not None else None
        if given is not None or declared is not None:
            request.input.CopyFrom(run.values.encode(given, annotation, "input", name))
    if options.get("priority") is not None:
        request.priority = options["priority"]
    _set_times(request, options, declared)
    return request, declared.output if declared is not None else None


def _set_times(request: StartWorkflowRequest, options: dict[str, Any], declared: Workflow[Any, Any] | None) -> None:
    if options.get("delay") is not None:
        request.delay_ms = duration.milliseconds(options["delay"])
    timeout = options.get("timeout") or (declared.timeout if declared else None)
    if timeout is not None:
        request.timeout_ms = duration.milliseconds(timeout)
    retry: Retry | None = options.get("retry") or (declared.retry if declared else None)
    if retry is not None:
        request.retry.CopyFrom(
            RetryPolicy(
                maximum_attempts=retry.max_attempts,
                initial_interval_ms=retry.initial_ms,
                backoff_coefficient=retry.backoff,
                maximum_interval_ms=retry.max_interval_ms,
            )
        )
