"""The live runs of schedules, as far as they concern the next one. A run that waits for the end of the one before is
PENDING at `infinity`; whoever put it there has locked the live ones and marked them as awaited. Only the end of a
marked run looks for somebody to release, so that no other end pays for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from asyncpg.connection import Connection

from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("instances.sql")
_lock = _sql.bind("lock", columns=("run_id", "schedule_id", "waits", "locked"))
_await_ends = _sql.bind("await_ends")
_lock_waiting = _sql.bind("lock_waiting", columns=("run_id",))
_release = _sql.bind("release", columns=("run_id", "task_queue", "limited"))


@dataclass(frozen=True, slots=True)
class Instances:
    """The live runs of one schedule, all of them locked."""

    run_ids: tuple[str, ...] = ()
    # One of them waits for the end of the others.
    waiting: bool = False


NONE = Instances()


async def lock(connection: Connection, namespace: str, template_ids: Sequence[str]) -> dict[str, Instances | None]:
    """The live runs of these templates, whose locks the caller holds; None where somebody holds one of them."""
    found: dict[str, Instances | None] = dict.fromkeys(template_ids, NONE)
    if not template_ids:
        return found
    by_template = defaultdict(list)
    for row in await _lock.fetch(connection, namespace=namespace, template_ids=template_ids):
        by_template[str(row["schedule_id"])].append(row)
    for template_id, live in by_template.items():
        if all(row["locked"] for row in live):
            waiting = any(row["waits"] for row in live)
            found[template_id] = Instances(tuple(str(row["run_id"]) for row in live), waiting)
        else:
            found[template_id] = None
    return found


async def await_ends(connection: Connection, namespace: str, run_ids: Sequence[str]) -> None:
    """Marks locked runs whose end the next run of their schedule waits for."""
    await _await_ends.execute(connection, namespace=namespace, run_ids=run_ids)


async def release(connection: Connection, namespace: str, template_ids: Sequence[str], outcome: Outcome) -> None:
    """Awaited runs of these templates have ended: lets the next ones go."""
    waiting = await _lock_waiting.fetch(connection, namespace=namespace, template_ids=template_ids)
    if not waiting:
        return
    released = await _release.fetch(connection, namespace=namespace, run_ids=[str(row["run_id"]) for row in waiting])
    for row in released:
        outcome.becomes_due(row["task_queue"], None)
        outcome.deadline = outcome.deadline or row["limited"]
