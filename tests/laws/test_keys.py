"""Law 4, keys are immutable: a schedule's slot is (schedule, scheduled_for), whatever becomes of the run that fired for
it, and `available_at` is part of no key. Every key begins with the namespace.
"""

from __future__ import annotations

import asyncpg
import pytest

from tests.laws.operations import new_id
from tests.laws.world import World


async def _fire(world: World, schedule_id: str, slot: str, external_id: str | None = None) -> None:
    await world.connection.execute(
        "insert into kagzi.workflow_runs (namespace, run_id, external_id, task_queue, workflow_type, status,"
        " available_at, schedule_id, scheduled_for)"
        " values ('default', gen_random_uuid(), $3, 'q', 't', 'PENDING', kagzi.now(), $1, $2::text::timestamptz)",
        schedule_id,
        slot,
        external_id,
    )


async def test_a_slot_fires_once_whatever_became_of_its_run(world: World) -> None:
    schedule = new_id()
    await _fire(world, schedule, "2030-01-01 00:00Z")
    await _fire(world, schedule, "2030-01-01 00:05Z")
    await _fire(world, new_id(), "2030-01-01 00:00Z")
    changes = (
        "available_at = available_at + interval '1 hour'",
        "status = 'COMPLETED', available_at = null, finished_at = kagzi.now()",
    )
    for change in changes:
        await world.connection.execute(f"update kagzi.workflow_runs set {change}")  # noqa: S608
        with pytest.raises(asyncpg.UniqueViolationError, match="run_slot"):
            await _fire(world, schedule, "2030-01-01 00:00Z")


async def test_no_key_holds_a_time_that_moves(world: World) -> None:
    keys = await world.connection.fetch(
        "select indexdef from pg_indexes where schemaname = 'kagzi' and indexdef like 'CREATE UNIQUE%'"
        " and tablename <> 'migrations'"
    )
    assert len(keys) > 10
    for (definition,) in keys:
        columns = definition.partition("(")[2].partition(")")[0]
        assert columns.split(", ")[0] == "namespace", definition
        assert "available_at" not in columns, definition
