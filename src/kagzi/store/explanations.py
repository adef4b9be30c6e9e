"""The facts that say why a run is where it is: its own, those of what it waits for, and of who could take it. Reads
alone, of bounded cost whatever is stored; the words are `server.explanation`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import namespaces, rows
from kagzi.store.errors import not_found
from kagzi.store.queries import Queries

_sql = Queries("explanations.sql")
_facts = _sql.bind(
    "facts",
    columns=(
        "status",
        "task_queue",
        "workflow_type",
        "version",
        "priority",
        "suspect",
        "crashes",
        "attempts",
        "available_at",
        "due",
        "locked_by",
        "cancel_requested_at",
        "deadline_at",
        "waiting",
        "parked",
        "error",
        "schedule_id",
        "continued_as",
        "created_at",
        "started_at",
        "finished_at",
        "enabled",
        "hostname",
        "pid",
        "worker_status",
        "last_heartbeat_at",
        "now",
    ),
)
_waits = _sql.bind(
    "waits",
    columns=(
        "step_id",
        "kind",
        "status",
        "until",
        "target",
        "child_run_id",
        "attempt_number",
        "error",
        "created_at",
        "child_status",
        "child_type",
    ),
)
_fleet = _sql.bind("fleet", columns=("workers", "know", "suit", "take", "free"))
_ahead = _sql.bind("ahead", columns=("ahead",))

# Of a run that waits for a thousand things, a person reads the first few.
_WAITS = 10
_AHEAD = 500
# Workers of a queue that are counted, those that are asked for a free slot, those whose runs are counted, and how many
# runs of each: less than a thousand rows in all.
SEEN = 200
ASKED = 100
_COUNTED = 10
_HELD = 50


@dataclass(frozen=True, slots=True)
class Wait:
    """One step that a suspended run waits for."""

    step_id: str
    kind: str
    status: str
    # When it ends by itself; None when it does not.
    until: datetime | None
    target: str
    child_run_id: str
    child_status: str
    child_type: str
    attempt_number: int
    error: str
    since: datetime


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who could take a due run, and who comes first."""

    # Counted up to SEEN.
    workers: int
    # Whether one knows the type, has the version, takes runs; and whether one of ASKED that do has a free slot.
    know: bool
    suit: bool
    take: bool
    free: bool
    # Due runs of the same kind that come first; counted up to 500.
    ahead: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A run as far as it says why it is where it is."""

    run: Record
    waits: Sequence[Wait]
    fleet: Fleet | None
    # The mutation of unknown outcome that a handler's run is parked over.
    mutation_id: str = ""


async def facts(connection: Connection, namespace: str, run_id: str) -> Facts:
    """What is known of a run; NOT_FOUND when there is none. Three statements at most."""
    run = await _facts.first(connection, namespace=namespace, run_id=run_id)
    if run is None:
        await namespaces.get(connection, namespace)
        raise not_found("run", run_id, "run_id")
    if run["due"]:
        return Facts(run, (), await _served(connection, namespace, run))
    waiting: Any = msgspec.json.decode(run["waiting"]) if run["waiting"] else None
    if isinstance(waiting, dict):
        return Facts(run, (), None, str(waiting.get("mutation_id", "")))
    named = [each["step"] for each in waiting or () if isinstance(each, dict) and "step" in each]
    return Facts(run, await _waited(connection, namespace, run_id, named[:_WAITS]) if named else (), None)


async def _waited(connection: Connection, namespace: str, run_id: str, steps: Sequence[str]) -> list[Wait]:
    found = await _waits.fetch(connection, namespace=namespace, run_id=run_id, step_ids=steps, most=_WAITS)
    return [
        Wait(
            step_id=row["step_id"],
            kind=row["kind"],
            status=row["status"],
            until=row["until"],
            target=row["target"] or "",
            child_run_id=rows.identity(row["child_run_id"]),
            child_status=row["child_status"] or "",
            child_type=row["child_type"] or row["target"] or "",
            attempt_number=row["attempt_number"],
            error=_type_of(row["error"]),
            since=row["created_at"],
        )
        for row in found
    ]


async def _served(connection: Connection, namespace: str, run: Record) -> Fleet:
    kind = {"task_queue": run["task_queue"], "workflow_type": run["workflow_type"], "version": run["version"]}
    bounds = {"most_seen": SEEN, "most": ASKED, "most_counted": _COUNTED, "most_held": _HELD}
    [fleet] = await _fleet.fetch(connection, namespace=namespace, **kind, **bounds)
    [before] = await _ahead.fetch(
        connection,
        namespace=namespace,
        **kind,
        suspect=run["suspect"],
        priority=run["priority"],
        available_at=run["available_at"],
        most=_AHEAD,
    )
    return Fleet(fleet["workers"], fleet["know"], fleet["suit"], fleet["take"], fleet["free"], before["ahead"])


def _type_of(error: str | None) -> str:
    failure = rows.failure(error)
    return "" if failure is None else f"{failure.type}: {failure.message}" if failure.message else failure.type
