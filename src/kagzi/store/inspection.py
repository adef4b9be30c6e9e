"""What an operator looks at one by one: the steps of a run, and the database itself. Reads alone, each of
bounded cost: a run has a limited number of steps, and a page a limited number of rows and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Step
from kagzi.store import migrate, namespaces, rows
from kagzi.store.errors import not_found
from kagzi.store.queries import Queries

_sql = Queries("inspection.sql")
_step_by_id = _sql.bind("step_by_id", columns=rows.STEP_COLUMNS)
_step_by_number = _sql.bind("step_by_number", columns=rows.STEP_COLUMNS)
_step_by_attempt = _sql.bind("step_by_attempt", columns=rows.STEP_COLUMNS)
_steps = _sql.bind("steps", columns=(*rows.STEP_COLUMNS, "found"))
_steps_by_id = _sql.bind("steps_by_id", columns=(*rows.STEP_COLUMNS, "found"))
_longer = _sql.bind("longer", columns=("longer",))
_run_exists = _sql.bind("run_exists", columns=("run_id",))
_database = _sql.bind("database", columns=("version", "now", "migration"))

# A page with outputs stays well below the size of a message.
PAGE_BYTES = 3 * 1024 * 1024

# Position, attempt number and id of a step: its place in the list of a run's steps.
Place = tuple[int, int, str]
BEGINNING: Place = (-1, -1, "")


@dataclass(frozen=True, slots=True)
class StepFilter:
    """Which steps of a run are listed; what is empty does not filter."""

    step_id: str = ""
    statuses: Sequence[str] = ()
    # Also earlier attempts, and steps that a retry of the whole workflow set aside.
    superseded: bool = False
    # Also what the steps returned.
    outputs: bool = False
    # By step id instead of position: a page then costs the same in a long history as in a short one.
    by_id: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseInfo:
    """What the database says of itself."""

    version: str
    now: datetime
    # Numbers of the last migration the database has, and of the last one this version of Kagzi knows.
    schema: int
    known_schema: int


async def step_by_id(
    connection: Connection, namespace: str, run_id: str, step_id: str, attempt_number: int | None = None
) -> Step:
    """One attempt of a step; the latest, unless its number is given."""
    named = {"namespace": namespace, "run_id": run_id, "step_id": step_id}
    if attempt_number is None:
        row = await _step_by_id.first(connection, **named)
    else:
        row = await _step_by_number.first(connection, **named, attempt_number=attempt_number)
    if row is None:
        await require_run(connection, namespace, run_id)
        if attempt_number is not None and await _step_by_id.first(connection, **named) is not None:
            raise not_found(f"attempt of step {step_id!r} with the number", str(attempt_number), "attempt_number")
        raise not_found("step", step_id, "step_id")
    return rows.step(row)


async def step_by_attempt(connection: Connection, namespace: str, run_id: str, attempt_id: str) -> Step:
    """One attempt of a step of this run."""
    row = await _step_by_attempt.first(connection, namespace=namespace, run_id=run_id, attempt_id=attempt_id)
    if row is None:
        await require_run(connection, namespace, run_id)
        raise not_found("attempt", attempt_id, "attempt_id")
    return rows.step(row)


async def steps(
    connection: Connection,
    namespace: str,
    run_id: str,
    wanted: StepFilter,
    *,
    most: int,
    after: Place = BEGINNING,
    most_bytes: int = PAGE_BYTES,
) -> tuple[list[Step], bool]:
    """Attempts of a run in the order the code asked for them, and whether more follow."""
    if wanted.by_id:
        found = await _steps_by_id.fetch(
            connection,
            namespace=namespace,
            run_id=run_id,
            step_id=wanted.step_id,
            statuses=wanted.statuses,
            superseded=wanted.superseded,
            outputs=wanted.outputs,
            after_attempt=after[1],
            after_step=after[2],
            most=most,
            most_bytes=most_bytes,
        )
    else:
        found = await _steps.fetch(
            connection,
            namespace=namespace,
            run_id=run_id,
            step_id=wanted.step_id,
            statuses=wanted.statuses,
            superseded=wanted.superseded,
            outputs=wanted.outputs,
            after_position=after[0],
            after_attempt=after[1],
            after_step=after[2],
            most=most,
            most_bytes=most_bytes,
        )
    if not found:
        await require_run(connection, namespace, run_id)
        return [], False
    return [rows.step(row) for row in found], found[0]["found"] > len(found)


async def bounded(connection: Connection, namespace: str, run_id: str, wanted: StepFilter, look_at: int) -> StepFilter:
    """The same filter, by step id where the run has more attempts than are to be looked at; 0 is for no bound. One
    step's attempts are found by its id either way.
    """
    if not look_at or wanted.by_id or wanted.step_id:
        return wanted
    [row] = await _longer.fetch(connection, namespace=namespace, run_id=run_id, look_at=look_at)
    return replace(wanted, by_id=True) if row["longer"] else wanted


async def require_run(connection: Connection, namespace: str, run_id: str) -> None:
    """Refused with NOT_FOUND when there is no such run."""
    if await _run_exists.first(connection, namespace=namespace, run_id=run_id) is None:
        raise await namespaces.absent(connection, namespace, "run", run_id, "run_id")


async def database(connection: Connection) -> DatabaseInfo:
    """What the database says of itself; also shows that it answers."""
    [row] = await _database.fetch(connection)
    known = [_number(migration.name) for migration in migrate.known()]
    return DatabaseInfo(row["version"], row["now"], _number(row["migration"] or ""), max(known, default=0))


def _number(migration: str) -> int:
    """`0012_name` is number 12; no migration is number 0."""
    digits = migration.partition("_")[0]
    return int(digits) if digits.isdigit() else 0
