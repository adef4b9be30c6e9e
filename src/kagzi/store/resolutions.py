"""Resolutions: what a person says became of a step whose outcome is unknown. One is stored beside the history and its
run made due, in one transaction; the holder of the lease records it when it gives it to the code. A step is resolved
once, and never while its outcome is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Failure, Step
from kagzi.protocol.v1.worker_pb2 import StepResolved
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest, ResolveStepResponse
from kagzi.store import errors, namespaces, rows
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("resolutions.sql")
_lock = _sql.bind("lock", columns=("status", "task_queue"))
_resolve = _sql.bind("resolve", columns=("step_id",))
_repeated = _sql.bind("repeated", columns=("status", "resolution"))
_recorded = _sql.bind("recorded", columns=("status", "resolution", "resolution_id", "attempt_id"))
_wake = _sql.bind("wake", columns=("task_queue",))
_waiting = _sql.bind(
    "waiting",
    columns=(
        "run_id",
        "step_id",
        "attempt_id",
        "attempt_number",
        "kind",
        "position",
        "effect",
        "resolution",
        "resolution_output",
        "resolution_encoding",
        "resolution_reason",
    ),
)

# What the step becomes with each resolution.
STATUS = {"APPLIED": "COMPLETED", "NOT_APPLIED": "FAILED", "FAIL": "FAILED"}


async def resolve(
    connection: Connection, namespace: str, request: ResolveStepRequest, outcome: Outcome
) -> ResolveStepResponse:
    """Resolves a step of a run, also of one that has ended: then a retry or fork of it takes the resolution along."""
    name = ResolveStepRequest.Resolution.Name(request.resolution)
    run = await _lock.first(connection, namespace=namespace, run_id=request.run_id)
    if run is None:
        raise await namespaces.absent(connection, namespace, "run", request.run_id, "run_id")
    status = STATUS[name]
    known = await _known(connection, namespace, request)
    if known is not None:
        return ResolveStepResponse(status=rows.RUN_STATUS[run["status"]], step_status=rows.STEP_STATUS[known])
    result = request.result if request.HasField("result") else None
    done = await _resolve.first(
        connection,
        namespace=namespace,
        run_id=request.run_id,
        step_id=request.step_id,
        resolution=name,
        output=None if result is None else result.data,
        output_encoding=None if result is None else result.encoding or None,
        reason=request.reason or None,
        resolution_id=request.resolution_id or None,
        attempt_id=request.attempt_id or None,
    )
    if done is None:
        status = await _standing(connection, namespace, request, name)
    elif run["status"] == "RUNNING":
        outcome.told.append(request.run_id)
    elif await _wake.first(connection, namespace=namespace, run_id=request.run_id) is not None:
        outcome.becomes_due(run["task_queue"], None)
    return ResolveStepResponse(status=rows.RUN_STATUS[run["status"]], step_status=rows.STEP_STATUS[status])


async def _known(connection: Connection, namespace: str, request: ResolveStepRequest) -> str | None:
    """The status of the attempt that this very request resolved before."""
    if not request.resolution_id:
        return None
    row = await _repeated.first(
        connection,
        namespace=namespace,
        run_id=request.run_id,
        step_id=request.step_id,
        resolution_id=request.resolution_id,
    )
    return None if row is None else _became(row)


def _became(row: Record) -> str:
    return STATUS[row["resolution"]] if row["status"] == "UNKNOWN" else str(row["status"])


async def _standing(connection: Connection, namespace: str, request: ResolveStepRequest, name: str) -> str:
    """The status of a step that was resolved like this before by a request without an id; refused otherwise."""
    row = await _recorded.first(connection, namespace=namespace, run_id=request.run_id, step_id=request.step_id)
    if row is None:
        raise errors.not_found("step", request.step_id, "step_id")
    if row["resolution"] == name and not (request.resolution_id and row["resolution_id"]):
        return _became(row)
    if request.attempt_id and str(row["attempt_id"]) != request.attempt_id:
        message = f"attempt {request.attempt_id} is not the latest of step {request.step_id!r}: look at it again"
        raise errors.precondition(message, request.step_id, "attempt_id")
    known = f"was resolved as {row['resolution']}" if row["resolution"] else f"is {row['status']}"
    message = f"step {request.step_id!r} {known}: only a step whose outcome is UNKNOWN can be resolved, and only once"
    raise errors.precondition(message, request.step_id)


async def waiting(connection: Connection, namespace: str, run_ids: Sequence[str]) -> list[tuple[str, StepResolved]]:
    """Resolutions that the runs have not put into their history, each with its run."""
    found = await _waiting.fetch(connection, namespace=namespace, run_ids=run_ids)
    return [(str(row["run_id"]), StepResolved(step_id=row["step_id"], step=_step(row))) for row in found]


def failure(resolution: str, reason: str | None) -> Failure | None:
    """The failure that a resolution means; None when the effect was applied."""
    if resolution == "APPLIED":
        return None
    if resolution == "NOT_APPLIED":
        return Failure(type="NotApplied", message=reason or "it was resolved as not applied")
    return Failure(type="ResolvedAsFailed", message=reason or "it was resolved as failed", non_retryable=True)


def _step(row: Record) -> Step:
    """The record as it will be once the resolution is in the history."""
    return Step(
        step_id=row["step_id"],
        attempt_id=str(row["attempt_id"]),
        attempt_number=row["attempt_number"],
        is_latest=True,
        kind=rows.STEP_KIND[row["kind"]],
        status=rows.STEP_STATUS[STATUS[row["resolution"]]],
        position=row["position"],
        effect=row["effect"],
        output=rows.payload(row["resolution_output"], row["resolution_encoding"]),
        failure=failure(row["resolution"], row["resolution_reason"]),
    )
