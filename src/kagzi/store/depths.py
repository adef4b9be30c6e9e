"""What waits and what runs, by queue and workflow type, and which types workers serve. Reads alone. Counts
stop at 10,000, and where more rows stand than are looked at the smaller counts are lower bounds: the cost of
an answer does not grow with what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import QueueDepth, WorkflowType
from kagzi.store import rows
from kagzi.store.queries import Queries

_sql = Queries("depths.sql")
_depth = _sql.bind(
    "depth",
    columns=(
        "task_queue",
        "workflow_type",
        "pending_due",
        "pending_later",
        "running",
        "sleeping",
        "oldest_due_ms",
        "oldest_run_id",
        "workers",
        "free_slots",
    ),
)
_types = _sql.bind(
    "types",
    columns=("workflow_type", "task_queue", "workers", "version", "hash", "form_workers", "last_seen_at"),
)
_total = _sql.bind("total", columns=("pending_due", "running", "sleeping", "oldest_due_ms"))

MOST = 10_000
# Three counts share these rows: when they do not suffice, at least one of the three has reached 10,000.
_LATER = 3 * MOST
_FORMS = 20
# Kinds of runs, by queue, type, version and priority, that a total looks at.
_LANES = 1_000


@dataclass(frozen=True, slots=True)
class Total:
    """What stands in a namespace."""

    pending_due: int
    running: int
    sleeping: int
    oldest_due_ms: int


async def total(connection: Connection, namespace: str) -> Total:
    """What stands in all queues together. It reads at most 40,000 rows, however much is stored."""
    [row] = await _total.fetch(connection, namespace=namespace, most_lanes=_LANES, most_due=MOST, most_later=_LATER)
    return Total(
        pending_due=row["pending_due"],
        running=min(row["running"], MOST),
        sleeping=min(row["sleeping"], MOST),
        oldest_due_ms=row["oldest_due_ms"] or 0,
    )


async def depth(
    connection: Connection,
    namespace: str,
    *,
    most: int,
    task_queue: str = "",
    workflow_type: str = "",
    after: tuple[str, str] = ("", ""),
) -> list[QueueDepth]:
    """How much of each type is in each queue, by queue and type after the pair `after`. What is due is
    counted apart from the rest, which therefore never hides it.
    """
    found = await _depth.fetch(
        connection,
        namespace=namespace,
        task_queue=task_queue,
        workflow_type=workflow_type,
        after_queue=after[0],
        after_type=after[1],
        most=most,
        most_due=MOST,
        most_later=_LATER,
    )
    return [
        QueueDepth(
            task_queue=row["task_queue"],
            workflow_type=row["workflow_type"],
            pending_due=min(row["pending_due"], MOST),
            pending_later=min(row["pending_later"], MOST),
            running=min(row["running"], MOST),
            sleeping=min(row["sleeping"], MOST),
            oldest_due_ms=row["oldest_due_ms"] or 0,
            oldest_run_id=rows.identity(row["oldest_run_id"]),
            workers=row["workers"],
            free_slots=row["free_slots"],
        )
        for row in found
    ]


async def types(
    connection: Connection,
    namespace: str,
    *,
    most: int,
    task_queue: str = "",
    after: tuple[str, str] = ("", ""),
    look_at: int | None = None,
) -> list[WorkflowType]:
    """The types that workers have registered, by type and queue after the pair `after`; of `look_at` workers that are
    there and of those gone among the `look_at` last, unless it is None.
    """
    found = await _types.fetch(
        connection,
        namespace=namespace,
        task_queue=task_queue,
        after_type=after[0],
        after_queue=after[1],
        most=most,
        most_forms=_FORMS,
        look_at=look_at,
    )
    answer = []
    for (name, queue, workers), forms in groupby(
        found, lambda row: (row["workflow_type"], row["task_queue"], row["workers"])
    ):
        one = WorkflowType(workflow_type=name, task_queue=queue, workers=workers)
        for form in forms:
            one.definitions.add(
                version=form["version"],
                definition_hash=form["hash"],
                workers=form["form_workers"],
                last_seen_at=rows.timestamp(form["last_seen_at"]),
            )
        answer.append(one)
    return answer
