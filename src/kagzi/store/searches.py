"""Runs as people look for them: a bounded look, however rare what is wanted and however many runs there are. What can
be found by an index of its own is: children, runs of a schedule, failed and cancelled ones; those with a label, and
those that have not ended, as long as they are few. Everything else is walked from the newest back, a stretch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.workflow_pb2 import WorkflowRun
from kagzi.store import rows
from kagzi.store.queries import Queries

_sql = Queries("searches.sql")
_KEYS = ("run_id", "created_at", "wanted")
_newest = _sql.bind("newest", columns=_KEYS)
_children = _sql.bind("children", columns=_KEYS)
_instances = _sql.bind("instances", columns=_KEYS)
_unlucky = _sql.bind("unlucky", columns=_KEYS)
_labelled = _sql.bind("labelled", columns=_KEYS)
_active = _sql.bind("active", columns=_KEYS)
_runs = _sql.bind("runs", columns=rows.RUN_COLUMNS)

_ACTIVE = {"PENDING", "RUNNING", "SLEEPING"}
_UNLUCKY = {"FAILED", "CANCELLED"}
# Before every run, and after every one.
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, tzinfo=UTC)
_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

# Time of creation and id: the place of a run in every list.
Key = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which runs are looked for; None leaves a filter out."""

    statuses: Sequence[str] | None = None
    workflow_type: str | None = None
    task_queue: str | None = None
    labels: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    parent_run_id: str | None = None
    schedule_id: str | None = None


async def search(
    connection: Connection, namespace: str, wanted: Wanted, *, count: int, look_at: int, after: Key | None = None
) -> tuple[list[WorkflowRun], Key | None]:
    """Up to `count` runs, newest first, and the place to look on from; None when everything was looked at."""
    before = _earlier(after, wanted.until)
    found = await _few(connection, namespace, wanted, look_at)
    if found is not None:
        keys = sorted(((row["created_at"], str(row["run_id"])) for row in found if row["wanted"]), reverse=True)
        keys = [key for key in keys if key < before and (wanted.since is None or key[0] >= wanted.since)]
        chosen, more = keys[:count], len(keys) > count
        rest = chosen[-1] if more else None
    else:
        walked = await _walk(connection, namespace, wanted, before, look_at)
        keys = [(row["created_at"], str(row["run_id"])) for row in walked if row["wanted"]]
        chosen = keys[:count]
        rest = None
        if len(keys) > count:
            rest = chosen[-1]
        elif len(walked) == look_at:
            rest = (walked[-1]["created_at"], str(walked[-1]["run_id"]))
    return await _fetch(connection, namespace, chosen), rest


async def _few(connection: Connection, namespace: str, wanted: Wanted, look_at: int) -> list[Record] | None:
    """Everything that an index finds without regard to age; None where there is no such index, or too much."""
    if wanted.parent_run_id or wanted.schedule_id:
        return None
    facts = {
        "namespace": namespace,
        "statuses": wanted.statuses,
        "workflow_type": wanted.workflow_type,
        "task_queue": wanted.task_queue,
        "most": look_at,
    }
    if wanted.labels is not None:
        found = await _labelled.fetch(connection, labels=wanted.labels, **facts)
    elif wanted.statuses and set(wanted.statuses) <= _ACTIVE:
        found = await _active.fetch(connection, **facts)
    else:
        return None
    return found if len(found) < look_at else None


async def _walk(connection: Connection, namespace: str, wanted: Wanted, before: Key, look_at: int) -> list[Record]:
    """A stretch of the list that the wanted ones are in, newest first."""
    facts: dict[str, Any] = {
        "namespace": namespace,
        "workflow_type": wanted.workflow_type,
        "task_queue": wanted.task_queue,
        "labels": wanted.labels,
        "since": wanted.since or _FIRST,
        "before_at": before[0],
        "before_id": before[1],
        "most": look_at,
    }
    statuses = wanted.statuses
    if wanted.parent_run_id:
        return await _children.fetch(connection, parent_run_id=wanted.parent_run_id, statuses=statuses, **facts)
    if wanted.schedule_id:
        return await _instances.fetch(connection, schedule_id=wanted.schedule_id, statuses=statuses, **facts)
    if statuses and len(statuses) == 1 and statuses[0] in _UNLUCKY:
        return await _unlucky.fetch(connection, status=statuses[0], **facts)
    return await _newest.fetch(connection, statuses=statuses, **facts)


async def _fetch(connection: Connection, namespace: str, keys: Sequence[Key]) -> list[WorkflowRun]:
    if not keys:
        return []
    found = await _runs.fetch(connection, namespace=namespace, run_ids=[run_id for _, run_id in keys])
    by_id = {str(row["run_id"]): rows.run(row) for row in found}
    # Retention may have removed one since.
    return [by_id[run_id] for _, run_id in keys if run_id in by_id]


def _earlier(after: Key | None, until: datetime | None) -> Key:
    """Where to begin: behind the last page, and before the time that is asked for."""
    ends: list[Key] = [(_LAST, _LAST_ID)]
    if after is not None:
        ends.append(after)
    if until is not None:
        ends.append((until, "00000000-0000-0000-0000-000000000000"))
    return min(ends)
