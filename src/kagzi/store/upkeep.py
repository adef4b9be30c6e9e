"""What the coordinator does to rows: silent workers, deadlines, and the removal of what was kept long
enough. Each duty first reads across namespaces without a lock, then writes one namespace at a time,
checking again under the lock, so that any number of servers may do it at once. It never removes a run that
lives, whose parent does, from which an automation has yet to go on, or whose mutation's outcome is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import endings
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("upkeep.sql")
_silent = _sql.bind("silent", columns=("namespace", "worker_id"))
_silence = _sql.bind("silence", columns=("worker_id",))
_late = _sql.bind("late", columns=("namespace", "run_id"))
_lock_late = _sql.bind("lock_late", columns=("run_id", "expires"))
_next_deadline = _sql.bind("next_deadline", columns=("seconds",))
_outlived = _sql.bind("outlived", columns=("namespace", "status", "keep_ms"))
_remove = _sql.bind("remove", columns=("run_id",))
_left_workers = _sql.bind("left_workers", columns=("namespace",))
_forget_workers = _sql.bind("forget_workers", columns=("worker_id",))
_old_stats = _sql.bind("old_stats", columns=("namespace",))
_forget_stats = _sql.bind("forget_stats", columns=("minute",))

TIME_IS_UP = "its time is up"


@dataclass(frozen=True, slots=True)
class Outlived:
    """Ended runs of one status that a namespace keeps no longer."""

    namespace: str
    status: str
    keep_ms: int


async def silent(connection: Connection, threshold: timedelta, batch: int) -> dict[str, list[str]]:
    """Workers that fell silent, by namespace."""
    found = await _silent.fetch(connection, threshold=threshold, batch=batch)
    return _by_namespace(found, "worker_id")


async def silence(connection: Connection, namespace: str, worker_ids: Sequence[str], threshold: timedelta) -> list[str]:
    """Marks workers OFFLINE that are still silent; answers which. Their runs stay theirs until the leases
    end.
    """
    found = await _silence.fetch(connection, namespace=namespace, worker_ids=worker_ids, threshold=threshold)
    return [str(row["worker_id"]) for row in found]


async def late(connection: Connection, grace: timedelta, batch: int) -> dict[str, list[str]]:
    """Runs past their deadline that are to be asked to end, or have had `grace` since, by namespace."""
    return _by_namespace(await _late.fetch(connection, grace=grace, batch=batch), "run_id")


async def expire(
    connection: Connection, namespace: str, run_ids: Sequence[str], grace: timedelta
) -> tuple[list[str], Outcome]:
    """Asks late runs to end, and ends those that never started or did not end within `grace`. Answers which
    ended.
    """
    locked = await _lock_late.fetch(connection, namespace=namespace, run_ids=run_ids, grace=grace)
    ending = [str(row["run_id"]) for row in locked if row["expires"]]
    asking = [str(row["run_id"]) for row in locked if not row["expires"]]
    outcome = Outcome()
    if asking:
        await endings.request_cancel(connection, namespace, asking, TIME_IS_UP, outcome)
    if ending:
        await endings.expire(connection, namespace, ending, outcome)
    return ending, outcome


async def next_deadline(connection: Connection) -> float | None:
    """Seconds until the next deadline; None when there is none."""
    row = await _next_deadline.first(connection)
    return None if row is None else row["seconds"]


async def outlived(connection: Connection, keep: timedelta) -> list[Outlived]:
    """Where ended runs are kept no longer; `keep` is for namespaces that say nothing, 0 for ever."""
    found = await _outlived.fetch(connection, keep_ms=keep // timedelta(milliseconds=1))
    return [Outlived(row["namespace"], row["status"], row["keep_ms"]) for row in found]


async def remove(connection: Connection, what: Outlived, batch: int) -> int:
    """Deletes at most `batch` of these runs with all of theirs and the mutations they hold; answers how many."""
    found = await _remove.fetch(
        connection, namespace=what.namespace, status=what.status, keep_ms=what.keep_ms, batch=batch
    )
    return len(found)


async def left_workers(connection: Connection, keep: timedelta) -> list[str]:
    """Namespaces with workers that are gone for longer than `keep`."""
    return [row["namespace"] for row in await _left_workers.fetch(connection, keep=keep)]


async def forget_workers(connection: Connection, namespace: str, keep: timedelta, batch: int) -> int:
    """Deletes workers that are gone for longer than `keep`; answers how many."""
    return len(await _forget_workers.fetch(connection, namespace=namespace, keep=keep, batch=batch))


async def old_stats(connection: Connection, keep: timedelta) -> list[str]:
    """Namespaces with counts older than `keep`."""
    return [row["namespace"] for row in await _old_stats.fetch(connection, keep=keep)]


async def forget_stats(connection: Connection, namespace: str, keep: timedelta, batch: int) -> int:
    """Deletes counts older than `keep`; answers how many."""
    return len(await _forget_stats.fetch(connection, namespace=namespace, keep=keep, batch=batch))


def _by_namespace(found: Iterable[Record], column: str) -> dict[str, list[str]]:
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for row in found:
        grouped[row["namespace"]].append(str(row[column]))
    return dict(grouped)
