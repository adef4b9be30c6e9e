"""The workers of a namespace as people and the dispatcher look at them. Reads alone: what changes a worker is
in `workers`. Load is counted from the leases on record, as far as is asked for; beyond that it is what the worker last
said with its heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import namespaces, rows
from kagzi.store.queries import Queries

# Leases of one worker that are counted where nobody asks for less.
COUNTED = 10_000

_WORKER = (
    "worker_id",
    "instance",
    "task_queue",
    "hostname",
    "pid",
    "version",
    "types",
    "type_versions",
    "type_hashes",
    "concurrency",
    "labels",
    "status",
    "registered_at",
    "last_heartbeat_at",
    "drain_requested_at",
    "deregistered_at",
    "running",
)

_sql = Queries("roster.sql")
_get = _sql.bind("get", columns=_WORKER)
_list = _sql.bind("list", columns=_WORKER)
_held = _sql.bind("held", columns=("run_id", "workflow_type", "lease_until", "crashes"))


@dataclass(frozen=True, slots=True)
class ServedType:
    """A workflow that a worker can run."""

    name: str
    version: str = ""
    definition_hash: str = ""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, as stored. `running` is counted from leases, up to what was asked for."""

    worker_id: str
    instance: str
    task_queue: str
    hostname: str
    pid: int
    version: str
    types: tuple[ServedType, ...]
    concurrency: int
    labels: dict[str, str]
    status: str
    running: int
    registered_at: datetime
    last_heartbeat_at: datetime
    drain_requested_at: datetime | None
    deregistered_at: datetime | None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run that a worker holds."""

    run_id: str
    workflow_type: str
    lease_until: datetime
    crashes: int


@dataclass(frozen=True, slots=True)
class Filter:
    """Which workers a list shows; what is empty does not filter."""

    statuses: Sequence[str] = ()
    task_queue: str = ""
    workflow_type: str = ""


async def get(connection: Connection, namespace: str, worker_id: str, *, look_at: int = COUNTED) -> Worker:
    """One worker with its load, for which at most `look_at` leases are counted."""
    row = await _get.first(connection, namespace=namespace, worker_id=worker_id, look_at=look_at)
    if row is None:
        raise await namespaces.absent(connection, namespace, "worker", worker_id, "worker_id")
    return _worker(row)


async def list_page(
    connection: Connection,
    namespace: str,
    wanted: Filter,
    *,
    most: int,
    after: tuple[datetime, str] | None = None,
    look_at: int = COUNTED,
) -> list[Worker]:
    """Workers, the newest first, after the one registered at `after[0]` with the id `after[1]`. At most `look_at`
    leases of each are counted.
    """
    found = await _list.fetch(
        connection,
        namespace=namespace,
        after_at=after[0] if after else None,
        after_id=after[1] if after else None,
        statuses=wanted.statuses,
        task_queue=wanted.task_queue,
        workflow_type=wanted.workflow_type,
        most=most,
        look_at=look_at,
    )
    return [_worker(row) for row in found]


async def held_runs(
    connection: Connection, namespace: str, worker_id: str, *, most: int, look_at: int = COUNTED
) -> list[HeldRun]:
    """The runs a worker holds, by the end of their leases; at most `look_at` are compared."""
    found = await _held.fetch(connection, namespace=namespace, worker_id=worker_id, most=most, look_at=look_at)
    return [HeldRun(str(row["run_id"]), row["workflow_type"], row["lease_until"], row["crashes"]) for row in found]


def _worker(row: Record) -> Worker:
    served = zip(row["types"], row["type_versions"], row["type_hashes"], strict=True)
    return Worker(
        worker_id=str(row["worker_id"]),
        instance=row["instance"],
        task_queue=row["task_queue"],
        hostname=row["hostname"],
        pid=row["pid"],
        version=row["version"],
        types=tuple(ServedType(*one) for one in served),
        concurrency=row["concurrency"],
        labels=rows.labels(row["labels"]),
        status=row["status"],
        running=row["running"],
        registered_at=row["registered_at"],
        last_heartbeat_at=row["last_heartbeat_at"],
        drain_requested_at=row["drain_requested_at"],
        deregistered_at=row["deregistered_at"],
    )
