"""Rows for the tests of the store, written as they would stand there, whoever had written them."""

from __future__ import annotations

from typing import Any

import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection


def new_id() -> str:
    return str(uuid_utils.uuid7())


async def run(connection: Connection, status: str = "PENDING", due: str = "0 s", **columns: Any) -> str:
    """A run in this status. `due` is the distance from now to the time it may be claimed (or its lease ends)."""
    run_id: str = columns.pop("run_id", None) or new_id()
    ended = status in ("COMPLETED", "FAILED", "CANCELLED")
    values = {
        "namespace": "default",
        "run_id": run_id,
        "task_queue": "default",
        "workflow_type": "order",
        "status": status,
        **({"claim_token": new_id(), "locked_by": new_id()} if status == "RUNNING" else {}),
        **columns,
    }
    names = ", ".join(values)
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    times = "null, kagzi.now()" if ended else f"kagzi.now() + interval '{due}', null"
    if status == "PAUSED":
        times = "null, null"
    if due == "never":
        times = "'infinity', null"
    names += ", available_at, finished_at"
    await connection.execute(
        f"insert into kagzi.workflow_runs ({names}) values ({places}, {times})",  # noqa: S608 - our own words
        *values.values(),
    )
    return run_id


async def step(connection: Connection, run_id: str, step_id: str, **columns: Any) -> str:
    """An attempt of a step."""
    attempt_id: str = columns.pop("attempt_id", None) or new_id()
    values = {
        "namespace": "default",
        "run_id": run_id,
        "step_id": step_id,
        "attempt_id": attempt_id,
        "attempt_number": 1,
        "position": 1,
        "status": "COMPLETED",
        "kind": "FUNCTION",
        **columns,
    }
    names = ", ".join(values)
    places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
    await connection.execute(
        f"insert into kagzi.step_runs ({names}) values ({places})",  # noqa: S608 - the tests' own words
        *values.values(),
    )
    return attempt_id


async def seen(connection: Connection, run_id: str) -> Record:
    """A run as it stands now; `lease_s` is the time from now to its available_at."""
    row = await connection.fetchrow(
        "select status, claim_token, locked_by, crashes, parked_hash, waiting, task_queue, cancel_requested_at,"
        " case when available_at < 'infinity' then extract(epoch from available_at - kagzi.now())::float8 end"
        " as lease_s from kagzi.workflow_runs where run_id = $1",
        run_id,
    )
    assert row is not None
    return row
