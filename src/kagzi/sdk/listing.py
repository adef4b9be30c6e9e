"""Which runs are listed: filters as users write them, as one request of the wire."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypedDict

from kagzi.protocol.v1 import common_pb2
from kagzi.protocol.v1.workflow_pb2 import ListWorkflowsRequest
from kagzi.sdk import duration, option
from kagzi.sdk.definition import Workflow
from kagzi.sdk.descriptions import RunStatus
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError

_PAGE = 100


class RunFilter(TypedDict, total=False):
    """The keyword arguments of `client.runs(...)`; what is left out, or None, does not filter."""

    status: str | Sequence[str] | None
    type: str | Workflow[Any, Any] | None
    queue: str | None
    # Runs that have all of these.
    labels: Mapping[str, str] | None
    # By the time they were created: at or after, and before. A time, or so long ago.
    since: datetime | Duration | None
    until: datetime | Duration | None
    # Children of the run with this id.
    parent: str | None


def runs(
    namespace: str,
    *,
    status: str | Sequence[str] | None = None,
    type: str | Workflow[Any, Any] | None = None,
    queue: str | None = None,
    labels: Mapping[str, str] | None = None,
    since: datetime | Duration | None = None,
    until: datetime | Duration | None = None,
    parent: str | None = None,
) -> ListWorkflowsRequest:
    """The request for the first page; ConfigError when a filter has no meaning."""
    request = ListWorkflowsRequest(
        namespace=namespace,
        statuses=statuses(status),
        workflow_type="" if type is None else option.workflow(type)[0],
        task_queue=option.name(queue, "queue"),
        labels=option.labels(labels),
        parent_run_id="" if parent is None else option.text(parent, "parent"),
        page_size=_PAGE,
    )
    if since is not None:
        request.since.FromDatetime(_moment("since", since))
    if until is not None:
        request.until.FromDatetime(_moment("until", until))
    return request


def statuses(given: str | Sequence[str] | None) -> list[common_pb2.RunStatus.ValueType]:
    """Statuses of the wire, from one name, several, or none."""
    if given is None:
        return []
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for name in several:
        if not isinstance(name, str) or name not in RunStatus.__members__:
            raise ConfigError(f"status={name!r} must be one of {', '.join(RunStatus)}.")
    return [common_pb2.RunStatus.Value(name) for name in several]


def _moment(name: str, given: datetime | Duration) -> datetime:
    if not isinstance(given, datetime):
        return datetime.now(UTC) - duration.named(given, name)
    if given.tzinfo is None:
        raise ConfigError(f"{name}={given!r} has no time zone: give one, as datetime(..., tzinfo=UTC).")
    return given
