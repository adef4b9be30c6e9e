"""Schedules: creating, showing and changing them. A schedule is a template row; whoever changes it holds its lock, so
that it is never changed while it fires. What a change means for its slots is decided by the caller. Deleting one
removes the template alone: its runs stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.protocol.v1.workflow_pb2 import WorkflowRun
from kagzi.store import errors, namespaces, rows, templates
from kagzi.store.queries import Queries
from kagzi.store.templates import Template

_sql = Queries("schedules.sql")
_clock = _sql.bind("clock", columns=("now",))
_create = _sql.bind("create", columns=("run_id",))
_known = _sql.bind("known", columns=("status", "external_id"))
_get = _sql.bind("get", columns=(*templates.COLUMNS, "input", "input_encoding", "now"))
_lock = _sql.bind("lock", columns=(*templates.COLUMNS, "now"))
_taken = _sql.bind("taken", columns=("run_id",))
_save = _sql.bind("save", columns=("updated_at",))
_delete = _sql.bind("delete", columns=("run_id",))
_list = _sql.bind("list", columns=templates.COLUMNS)
_history = _sql.bind("history", columns=rows.RUN_COLUMNS)


async def clock(connection: Connection) -> datetime:
    """The time."""
    row = await _clock.first(connection)
    assert row is not None
    now: datetime = row["now"]
    return now


async def create(connection: Connection, made: Template, given: Payload | None) -> Template:
    """Stores a schedule and answers it; one that was created with the same template run id is answered as it is."""
    stored = await _create.first(
        connection, run_id=made.run_id, schedule_id=made.schedule_id, **_written(made), **_input(given)
    )
    if stored is None:
        await _refuse_conflict(connection, made)
    found, _, _ = await get(connection, made.namespace, made.schedule_id)
    return found


async def _refuse_conflict(connection: Connection, made: Template) -> None:
    """Why nothing was stored; returns when this very schedule exists."""
    await namespaces.require(connection, made.namespace)
    known = await _known.first(connection, namespace=made.namespace, run_id=made.run_id)
    if known is None:
        raise errors.conflict(
            f"there is a schedule {made.schedule_id!r} already: update that one, or choose another id",
            made.schedule_id,
            "schedule_id",
        )
    if known["status"] not in ("SCHEDULED", "PAUSED") or known["external_id"] != made.schedule_id:
        whose = "another schedule" if known["status"] in ("SCHEDULED", "PAUSED") else "a run"
        message = f"template_run_id {made.run_id} belongs to {whose}: make a new one"
        raise errors.conflict(message, made.run_id, "template_run_id")


async def get(
    connection: Connection, namespace: str, schedule_id: str, field: str = "schedule_id"
) -> tuple[Template, Payload | None, datetime]:
    """One schedule with its input, and the time."""
    row = await _get.first(connection, namespace=namespace, schedule_id=schedule_id)
    if row is None:
        raise await _absent(connection, namespace, schedule_id, field)
    return templates.template(row), rows.payload(row["input"], row["input_encoding"]), row["now"]


async def lock(connection: Connection, namespace: str, schedule_id: str) -> tuple[Template, datetime]:
    """One schedule, locked for the rest of the transaction, and the time."""
    row = await _lock.first(connection, namespace=namespace, schedule_id=schedule_id)
    if row is None:
        raise await _absent(connection, namespace, schedule_id, "schedule_id")
    return templates.template(row), row["now"]


async def _absent(connection: Connection, namespace: str, schedule_id: str, field: str) -> errors.Refused:
    await namespaces.get(connection, namespace)
    taken = await _taken.first(connection, namespace=namespace, schedule_id=schedule_id, run_id=_uuid(schedule_id))
    missing = errors.not_found("schedule", schedule_id, field)
    if taken is not None:
        missing.detail.message += f": {schedule_id!r} is the id of a run, and schedules are known by ids of their own"
    return missing


async def save(connection: Connection, changed: Template, given: Payload | None = None, *, new_input: bool) -> Template:
    """Writes a schedule that its caller has locked; answers it as it is then."""
    written = _written(changed) | {"error": changed.error, "notice": changed.notice}
    row = await _save.first(connection, run_id=changed.run_id, new_input=new_input, **written, **_input(given))
    assert row is not None, "the caller holds the lock of a schedule that exists"
    return replace(changed, updated_at=row["updated_at"])


async def delete(connection: Connection, template: Template) -> None:
    """Removes a schedule that its caller has locked."""
    await _delete.fetch(connection, namespace=template.namespace, run_id=template.run_id)


async def list_(connection: Connection, namespace: str, count: int, **filters: Any) -> list[Template]:
    """Schedules by id. `filters` are the query's parameters; None leaves one out."""
    found = await _list.fetch(connection, namespace=namespace, count=count, **filters)
    return [templates.template(row) for row in found]


async def history(
    connection: Connection,
    namespace: str,
    template_id: str,
    count: int,
    *,
    statuses: Sequence[str] | None,
    after: tuple[datetime | None, str | None],
) -> list[WorkflowRun]:
    """Runs that the template has started, newest first."""
    found = await _history.fetch(
        connection,
        namespace=namespace,
        template_id=template_id,
        statuses=statuses,
        after_created_at=after[0],
        after_run_id=after[1],
        count=count,
    )
    return [rows.run(row) for row in found]


async def require_template(connection: Connection, namespace: str, template_id: str) -> None:
    """Refuses the id of a run where that of a template is asked for; one that was deleted cannot be told from none."""
    await namespaces.get(connection, namespace)
    known = await _known.first(connection, namespace=namespace, run_id=template_id)
    if known is not None and known["status"] not in ("SCHEDULED", "PAUSED"):
        raise errors.invalid("template_run_id", f"template_run_id {template_id} is a run, no schedule's template")


def _written(template: Template) -> dict[str, Any]:
    """The columns that people decide, as parameters."""
    return {
        "namespace": template.namespace,
        "status": template.status,
        "task_queue": template.task_queue,
        "workflow_type": template.workflow_type,
        "version": template.version,
        "priority": template.priority,
        "retry_policy": template.retry_policy,
        "labels": template.labels,
        "timeout": template.timeout,
        "cron": template.cron,
        "every": template.every,
        "anchor": template.anchor,
        "timezone": template.timezone,
        "starts_at": template.starts_at,
        "ends_at": template.ends_at,
        "jitter": template.jitter,
        "run_limit": template.run_limit,
        "overlap": template.overlap,
        "max_catchup": template.max_catchup,
        "words": template.words,
        "slot": template.slot,
        "available_at": template.available_at,
        "pause": template.pause,
        "pause_reason": template.pause_reason or None,
    }


def _input(given: Payload | None) -> dict[str, Any]:
    return {
        "input": None if given is None else given.data,
        "input_encoding": None if given is None else given.encoding or None,
    }


def _uuid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None
