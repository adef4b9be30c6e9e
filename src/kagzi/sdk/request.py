"""The request that starts a run: what the caller said, completed by what the workflow declares. Everything is checked
here that can be without a server, so that a mistake is told where it was made. The run's id is made here too: however
often the request is sent, it starts one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypedDict

import uuid_utils

from kagzi.protocol.v1 import common_pb2
from kagzi.protocol.v1.common_pb2 import RetryPolicy
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.sdk import option
from kagzi.sdk.codec import Chain
from kagzi.sdk.current import current_step
from kagzi.sdk.definition import Workflow
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.retry import Retry
from kagzi.sdk.values import Values

OnConflict = Literal["return", "reject", "replace"]
Dedupe = Literal["active", "forever"]

_ON_CONFLICT = {
    "return": common_pb2.RETURN_EXISTING,
    "reject": common_pb2.REJECT,
    "replace": common_pb2.REPLACE,
}
_DEDUPE = {"active": common_pb2.ACTIVE, "forever": common_pb2.FOREVER}


class StartOptions(TypedDict, total=False):
    """The keyword arguments of every call that starts a run; `start` below gives their defaults."""

    # A name of the caller's own that at most one active run has.
    id: str | None
    # Where it waits for a worker; the workflow's own queue, or "default".
    queue: str | None
    # Starts no sooner than that: after a while, or at a time.
    delay: Duration | None
    at: datetime | None
    # 0 to 4, higher first.
    priority: int
    labels: Mapping[str, str] | None
    # Time limit of the whole run.
    timeout: Duration | None
    # How the whole workflow is tried again; the workflow's own policy, or not at all.
    retry: Retry | None
    # When `id` is taken: that run, a Conflict, or that run is terminated.
    on_conflict: OnConflict
    # Whether `id` is free again once the run has ended.
    dedupe: Dedupe
    # Only workers with this version of the workflow run it.
    version: str | None
    # Inside a step's body: the end of the run around it does not cancel this one.
    detached: bool
    # Made by the SDK unless given; starting twice with one run id is one run.
    run_id: str | None


def start(
    namespace: str,
    codecs: Chain,
    workflow: Workflow[Any, Any] | str,
    input: Any = None,
    *,
    id: str | None = None,
    queue: str | None = None,
    delay: Duration | None = None,
    at: datetime | None = None,
    priority: int = 2,
    labels: Mapping[str, str] | None = None,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    on_conflict: OnConflict = "return",
    dedupe: Dedupe = "active",
    version: str | None = None,
    detached: bool = False,
    run_id: str | None = None,
) -> StartWorkflowRequest:
    """The request; ConfigError or PayloadError when it cannot be made."""
    workflow_type, declared = option.workflow(workflow)
    request = StartWorkflowRequest(
        namespace=namespace,
        workflow_type=workflow_type,
        task_queue=option.name(queue, "queue") or (declared.queue if declared else None) or "",
        external_id=option.name(id, "id"),
        priority=option.priority(priority),
        labels=option.labels(labels),
        version=option.version(version) or (declared.version if declared else ""),
        detached=bool(detached),
    )
    request.on_conflict = _chosen("on_conflict", on_conflict, _ON_CONFLICT)
    request.dedupe = _chosen("dedupe", dedupe, _DEDUPE)
    _put_identity(request, namespace, run_id)
    _put_times(request, delay, at, timeout if timeout is not None else (declared.timeout if declared else None))
    policy = option.retry(retry) or (declared.retry if declared else None)
    if policy is not None:
        request.retry.CopyFrom(retry_policy(policy))
    _put_input(request, Values(codecs, namespace, request.workflow_type), declared, input)
    return request


def retry_policy(retry: Retry) -> RetryPolicy:
    """A retry policy of the wire."""
    return RetryPolicy(
        maximum_attempts=retry.max_attempts,
        # On the wire 0 leaves the default.
        initial_interval_ms=max(1, retry.initial_ms),
        backoff_coefficient=retry.backoff,
        maximum_interval_ms=retry.max_interval_ms,
    )


def _put_identity(request: StartWorkflowRequest, namespace: str, run_id: str | None) -> None:
    current = current_step.get()
    if current is None:
        request.run_id = run_id or str(uuid_utils.uuid7())
        return
    request.run_id = run_id or current.next_run_id()
    if current.namespace == namespace:
        request.parent_run_id = current.run_id
        request.parent_step_attempt_id = current.attempt_id


def _put_times(
    request: StartWorkflowRequest, delay: Duration | None, at: datetime | None, timeout: Duration | None
) -> None:
    if delay is not None and at is not None:
        raise ConfigError("A run starts after a `delay` or `at` a time: give one of them, not both.")
    if delay is not None:
        request.delay_ms = option.milliseconds(delay, "delay")
    if at is not None:
        request.start_at.FromDatetime(option.moment(at, "at"))
    if timeout is not None:
        request.timeout_ms = option.milliseconds(timeout, "timeout")


def _put_input(request: StartWorkflowRequest, values: Values, declared: Workflow[Any, Any] | None, given: Any) -> None:
    if declared is not None and not declared.takes_input:
        if given is not None:
            raise ConfigError(f"Workflow {declared.name!r} takes no input, and was given {type(given).__name__}.")
    elif declared is not None and not declared.leaves_out(given):
        annotation = declared.input
        request.input.CopyFrom(option.payload(declared, given, lambda: values.encode(given, annotation, "input")))
    elif declared is None and given is not None:
        request.input.CopyFrom(values.encode(given, None, "input"))


def _chosen(name: str, value: str, known: Mapping[str, Any]) -> Any:
    if value not in known:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(map(repr, known))}.")
    return known[value]
