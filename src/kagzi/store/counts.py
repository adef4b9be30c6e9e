"""What stands in each queue as it was last counted. Counting reads as many rows as there are; reading a count does not,
so that pages and metrics may look as often as they like. Charts, not books: nothing is decided by what is kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import QueueDepth
from kagzi.store import rows
from kagzi.store.queries import Queries

_COUNTED = (
    "pending_due",
    "pending_later",
    "running",
    "sleeping",
    "oldest_due_ms",
)
_AUTOMATIONS = 1_000

_sql = Queries("counts.sql")
_keep = _sql.bind("keep")
_read = _sql.bind(
    "read",
    columns=("task_queue", "workflow_type", "counted_at", *_COUNTED, "oldest_run_id", "workers", "free_slots"),
)
_backlogs = _sql.bind("backlogs", columns=("namespace", "name", "blocked", "pending"))
_depths = _sql.bind("depths", columns=("namespace", "task_queue", "workflow_type", *_COUNTED, "workers", "free_slots"))


async def keep(connection: Connection, namespace: str, depths: Sequence[QueueDepth]) -> None:
    """Keeps what was counted just now; these are all pairs of queue and type."""
    await _keep.execute(
        connection,
        namespace=namespace,
        task_queues=[each.task_queue for each in depths],
        workflow_types=[each.workflow_type for each in depths],
        pending_due=[each.pending_due for each in depths],
        pending_later=[each.pending_later for each in depths],
        running=[each.running for each in depths],
        sleeping=[each.sleeping for each in depths],
        oldest_due_ms=[each.oldest_due_ms for each in depths],
        oldest_run_ids=[each.oldest_run_id or None for each in depths],
        workers=[each.workers for each in depths],
        free_slots=[each.free_slots for each in depths],
    )


async def read(
    connection: Connection,
    namespace: str,
    *,
    most: int,
    task_queue: str = "",
    workflow_type: str = "",
    after: tuple[str, str] = ("", ""),
) -> list[QueueDepth]:
    """What was last counted, by queue and type after the pair `after`."""
    found = await _read.fetch(
        connection,
        namespace=namespace,
        task_queue=task_queue,
        workflow_type=workflow_type,
        after_queue=after[0],
        after_type=after[1],
        most=most,
    )
    return [
        QueueDepth(
            task_queue=row["task_queue"],
            workflow_type=row["workflow_type"],
            pending_due=row["pending_due"],
            pending_later=row["pending_later"],
            running=row["running"],
            sleeping=row["sleeping"],
            oldest_due_ms=row["oldest_due_ms"],
            oldest_run_id=rows.identity(row["oldest_run_id"]),
            workers=row["workers"],
            free_slots=row["free_slots"],
            counted_at=rows.timestamp(row["counted_at"]),
        )
        for row in found
    ]


async def backlogs(connection: Connection) -> list[Record]:
    """Automations and how much waits in them; of the first thousand, by name."""
    return await _backlogs.fetch(connection, most=_AUTOMATIONS)


async def everywhere(connection: Connection, *, since: timedelta, most: int) -> list[Record]:
    """What was counted within `since` in every namespace, the deepest queues first."""
    return await _depths.fetch(connection, since=since, most=most)
