"""Runs: starting them and looking at them. A start is recognised by its run id, whatever else it says; an external id
names at most one active run of its namespace. Ending runs is the business of `endings`, claiming them of `claims`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import FOREVER, REJECT, REPLACE, ErrorDetail
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest, StartWorkflowResponse, WorkflowRun
from kagzi.store import endings, errors, namespaces, rows
from kagzi.store.operation import Operation, Outcome
from kagzi.store.queries import Queries

_sql = Queries("runs.sql")
_start = _sql.bind("start", columns=("started", "now"))
_known = _sql.bind("known", columns=("run_id", "status", "claim_token", "started_at", "seed"))
_holders = _sql.bind("holders", columns=("run_id", "status", "external_id", "dedupe_forever"))
_forever_missed = _sql.bind("forever_missed", columns=("run_id",))
_get = _sql.bind("get", columns=(*rows.RUN_COLUMNS, *rows.PAYLOAD_COLUMNS))
_find_external = _sql.bind("find_external", columns=("run_id",))
_list = _sql.bind("list", columns=rows.RUN_COLUMNS)
_resume = _sql.bind("resume", columns=("status", "task_queue"))
_resumed = _sql.bind("resumed", columns=("status", "task_queue"))

DEFAULT_PRIORITY = 2
# Runs that ended between two looks make a start look again; more than a few times is a defect.
_LOOKS = 5


async def start(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    outcome: Outcome,
) -> None:
    """Stores the runs of these starts and answers each with the run that exists now."""
    left = sorted(operations, key=_insertion_order)
    for _ in range(_LOOKS):
        started = await _insert(connection, namespace, left, lease, outcome)
        external = [operation for operation in left if operation.body.external_id]
        if external:
            await _refuse_race(connection, namespace, external)
        if started == len(left):
            _answer_stored(left, outcome)
            return
        left = await _resolve(connection, namespace, left, outcome)
        if not left:
            return
    for operation in left:
        operation.answer = ErrorDetail(
            code=ErrorDetail.UNAVAILABLE,
            message=f"external id {operation.body.external_id!r} changed hands too often: start again",
            subject=operation.body.external_id,
            retry_after_ms=100,
        )


async def insert(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    outcome: Outcome,
) -> bool:
    """Stores the runs of these starts, which name neither external id nor parent. Answers all, or none when one of them
    was not stored; says which.
    """
    stored = await _insert(connection, namespace, operations, lease, outcome) == len(operations)
    if stored:
        _answer_stored(operations, outcome)
    return stored


def _answer_stored(operations: Sequence[Operation], outcome: Outcome) -> None:
    for operation in operations:
        _answer(operation, operation.run_id, "PENDING" if operation.slot is None else "RUNNING", outcome)
        _count(operation, outcome)


def _insertion_order(operation: Operation) -> tuple[str, str]:
    """Whoever inserts the same ids at the same moment does so in the same order, so that one waits for the other and
    never both. Of two starts with one external id the first stays the first.
    """
    external_id: str = operation.body.external_id
    return (external_id, "" if external_id else operation.run_id)


async def _insert(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    outcome: Outcome,
) -> int:
    bodies: list[StartWorkflowRequest] = [operation.body for operation in operations]
    for operation in operations:
        operation.seed = operation.seed or random.getrandbits(62) + 1
    slots = [operation.slot for operation in operations]
    inputs = [body.input if body.HasField("input") else None for body in bodies]
    row = await _start.first(
        connection,
        namespace=namespace,
        lease=lease,
        run_ids=[operation.run_id for operation in operations],
        external_ids=[body.external_id or None for body in bodies],
        task_queues=[body.task_queue for body in bodies],
        workflow_types=[body.workflow_type for body in bodies],
        versions=[body.version for body in bodies],
        priorities=[body.priority if body.HasField("priority") else DEFAULT_PRIORITY for body in bodies],
        delays_ms=[body.delay_ms or None for body in bodies],
        start_ats=[body.start_at.ToDatetime(UTC) if body.HasField("start_at") else None for body in bodies],
        timeouts_ms=[body.timeout_ms if body.HasField("timeout_ms") else None for body in bodies],
        retry_policies=[rows.retry_policy_text(body.retry) if body.HasField("retry") else None for body in bodies],
        labels=[rows.labels_text(dict(body.labels)) if body.labels else None for body in bodies],
        seeds=[operation.seed for operation in operations],
        parent_run_ids=[body.parent_run_id or None for body in bodies],
        parent_step_attempt_ids=[body.parent_step_attempt_id or None for body in bodies],
        detached=[body.detached for body in bodies],
        dedupe_forever=[body.dedupe == FOREVER for body in bodies],
        tokens=[None if slot is None else slot.token for slot in slots],
        worker_ids=[None if slot is None else slot.worker_id for slot in slots],
        inputs=[None if given is None else given.data for given in inputs],
        input_encodings=[None if given is None else given.encoding or None for given in inputs],
    )
    assert row is not None
    outcome.now = row["now"]
    return int(row["started"])


async def _refuse_race(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """A run that has an external id for ever may have come and gone while a start looked for it. The start sees it
    afterwards, and the whole transaction begins again, which then finds it at once.
    """
    run_ids = [operation.run_id for operation in operations]
    if await _forever_missed.fetch(connection, namespace=namespace, run_ids=run_ids):
        raise asyncpg.SerializationError("an external id was taken for ever while a start looked for it")


async def _resolve(
    connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome
) -> list[Operation]:
    """Answers the starts whose run exists or whose external id is taken; answers those that are to be tried again."""
    found = await _known.fetch(connection, namespace=namespace, run_ids=[operation.run_id for operation in operations])
    known = {str(row["run_id"]): row for row in found}
    unknown = [operation for operation in operations if operation.run_id not in known]
    for operation in operations:
        if operation.run_id in known:
            _answer_known(operation, known[operation.run_id], outcome)
    await _refuse_unfounded(connection, namespace, unknown)
    unknown = [operation for operation in unknown if not operation.refused]
    if not unknown:
        return []
    external_ids = [operation.body.external_id for operation in unknown if operation.body.external_id]
    held = await _holders.fetch(connection, namespace=namespace, external_ids=external_ids)
    holders = {row["external_id"]: row for row in held}
    again: list[Operation] = []
    for operation in unknown:
        holder = holders.get(operation.body.external_id)
        if holder is None:
            again.append(operation)
        elif operation.body.on_conflict == REJECT:
            operation.answer = errors.conflict(
                f"external id {operation.body.external_id!r} belongs to run {holder['run_id']}",
                operation.body.external_id,
                "external_id",
            ).detail
        elif operation.body.on_conflict == REPLACE and not holder["dedupe_forever"]:
            await endings.replace(connection, namespace, str(holder["run_id"]), operation.run_id, outcome)
            again.append(operation)
        else:
            operation.answer = StartWorkflowResponse(
                run_id=str(holder["run_id"]), status=rows.RUN_STATUS[holder["status"]], already_exists=True
            )
    return again


async def _refuse_unfounded(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Refuses starts in a namespace where nothing starts, and those whose parent does not exist."""
    if not operations:
        return
    try:
        await namespaces.require(connection, namespace)
    except errors.Refused as refused:
        for operation in operations:
            operation.answer = refused.detail
        return
    parents = [operation.body.parent_run_id for operation in operations if operation.body.parent_run_id]
    found = await _known.fetch(connection, namespace=namespace, run_ids=parents) if parents else []
    known = {"", *(str(row["run_id"]) for row in found if row["status"] not in ("SCHEDULED", "PAUSED"))}
    for operation in operations:
        parent = operation.body.parent_run_id
        if parent not in known:
            operation.answer = errors.not_found("run", parent, "parent_run_id").detail


def _answer_known(operation: Operation, row: Record, outcome: Outcome) -> None:
    if row["status"] in ("SCHEDULED", "PAUSED"):
        operation.answer = errors.conflict(
            f"run id {operation.run_id} belongs to a schedule", operation.run_id, "run_id"
        ).detail
        return
    # A token of our own means that the insert took effect although its answer was lost, or in this transaction.
    if operation.slot is not None and str(row["claim_token"]) != operation.slot.token:
        operation.slot = None
    _answer(operation, operation.run_id, row["status"], outcome)
    # The seed of this very start: so was this run made by it, now or in a commit that was not answered.
    if row["seed"] == operation.seed:
        _count(operation, outcome)
    # The lease runs from then.
    operation.now = row["started_at"]


def _answer(operation: Operation, run_id: str, status: str, outcome: Outcome) -> None:
    operation.answer = StartWorkflowResponse(run_id=run_id, status=rows.RUN_STATUS[status])
    body = operation.body
    outcome.deadline = outcome.deadline or body.HasField("timeout_ms")
    if operation.slot is not None:
        operation.now = outcome.now
        outcome.handed.append(operation)
    elif status == "PENDING":
        now = outcome.now
        assert now is not None
        at: datetime | None = None
        if body.HasField("start_at"):
            at = body.start_at.ToDatetime(UTC)
        elif body.delay_ms:
            at = now + timedelta(milliseconds=body.delay_ms)
        outcome.becomes_due(body.task_queue, at if at is not None and at > now else None)


def _count(operation: Operation, outcome: Outcome) -> None:
    outcome.started.append(operation.body.workflow_type)
    if operation.slot is not None:
        outcome.waited.append((operation.body.workflow_type, 0.0))


async def get(connection: Connection, namespace: str, run_id: str) -> WorkflowRun:
    """One run with its payloads."""
    row = await _get.first(connection, namespace=namespace, run_id=run_id)
    if row is None:
        raise await namespaces.absent(connection, namespace, "run", run_id, "run_id")
    return rows.run(row, payloads=True)


async def get_by_external_id(connection: Connection, namespace: str, external_id: str) -> WorkflowRun:
    """The active run with this external id, else the newest that had it."""
    row = await _find_external.first(connection, namespace=namespace, external_id=external_id)
    if row is None:
        raise await namespaces.absent(connection, namespace, "run with external id", external_id, "external_id")
    return await get(connection, namespace, str(row["run_id"]))


async def find(connection: Connection, namespace: str, external_id: str) -> str:
    """The id of the run that `get_by_external_id` would answer."""
    row = await _find_external.first(connection, namespace=namespace, external_id=external_id)
    if row is None:
        raise await namespaces.absent(connection, namespace, "run with external id", external_id, "external_id")
    return str(row["run_id"])


async def list_(connection: Connection, namespace: str, count: int, **filters: Any) -> list[WorkflowRun]:
    """Runs, newest first. `filters` are the query's parameters; None leaves one out."""
    found = await _list.fetch(connection, namespace=namespace, count=count, **filters)
    return [rows.run(row) for row in found]


async def resume(connection: Connection, namespace: str, run_id: str, resume_id: str) -> tuple[str, str]:
    """Makes a parked run due; answers its status and its queue. One that is not parked is left as it is; one that has
    ended is refused, unless it was resumed before under this very id.
    """
    row = await _resumed.first(connection, namespace=namespace, run_id=run_id, resume_id=resume_id)
    if row is None:
        row = await _resume.first(connection, namespace=namespace, run_id=run_id, resume_id=resume_id)
    if row is not None:
        return row["status"], row["task_queue"]
    run = await get(connection, namespace, run_id)
    status = rows.RUN_STATUS_NAME[run.status]
    if status in endings.TERMINAL:
        raise errors.precondition(f"run {run_id} has ended, it is {status}: there is nothing to resume", run_id)
    return status, run.task_queue
