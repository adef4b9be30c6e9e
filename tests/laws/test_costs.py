"""What a claim costs, counted in shared buffers and never timed: choosing 100 runs touches at most 400 and claiming
them at most 2,500, however many rows stand in the table, whatever else is due or to come, with fresh statistics or
none, and with a plan for these parameters as with one for any.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from asyncpg.connection import Connection

from kagzi.store import claims
from kagzi.store.claims import POISON_AT
from kagzi.store.queries import Query
from tests.database import Databases
from tests.laws.operations import NAMESPACE, QUEUE, TYPE, new_id
from tests.laws.world import SETTINGS

CHOOSING, CLAIMING = 400, 2_500

# What stands in the tables: type, status, priority (None: all five), seconds from now until the first is due, rows.
Rows = list[tuple[str, str, int | None, int, int]]
SMALL: Rows = [(TYPE, "PENDING", None, -3_600, 1_000)]
LARGE: Rows = [(TYPE, "PENDING", None, -3_600, 250_000)]
HOSTILE: Rows = [
    (TYPE, "PENDING", None, -3_600, 1_000),
    ("nobody serves this", "PENDING", None, -7_200, 50_000),
    (TYPE, "PENDING", 4, 3_600, 50_000),
    (TYPE, "SLEEPING", 4, 7_200, 20_000),
    (TYPE, "COMPLETED", None, 0, 20_000),
]
TABLES = {"1,000 rows": SMALL, "250,000 rows": LARGE, "hostile rows": HOSTILE}

_FILL = """
insert into kagzi.workflow_runs
    (namespace, run_id, task_queue, workflow_type, status, priority, available_at, finished_at)
select 'default', ('00000000-0000-7000-8000-' || lpad(to_hex($6 + i), 12, '0'))::uuid, 'default', $1::text, $2::text,
       coalesce($3::int, i % 5),
       case when $2 <> 'COMPLETED' then kagzi.now() + $4 * interval '1 s' + i * interval '1 ms' end,
       case when $2 = 'COMPLETED' then kagzi.now() end
from generate_series(1, $5::int) i
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tables(databases: Databases) -> AsyncIterator[dict[str, Connection]]:
    """Each of the tables in a database of its own, as they are right after they were filled."""
    opened = {}
    urls = []
    for name, stands in TABLES.items():
        urls.append(databases.create())
        connection = await asyncpg.connect(urls[-1], server_settings=SETTINGS)
        await connection.execute("alter table kagzi.workflow_runs set (autovacuum_enabled = off)")
        filled = 0
        for rows in stands:
            await connection.execute(_FILL, *rows, filled)
            filled += rows[-1]
        opened[name] = connection
    yield opened
    for connection in opened.values():
        await connection.close()
    for url in urls:
        databases.drop(url)


def _arguments(count: int, types: tuple[str, ...]) -> dict[str, Any]:
    return {
        "namespace": NAMESPACE,
        "task_queue": QUEUE,
        "types": list(types),
        "versions": [""] * len(types),
        "suspects": False,
        "expired_too": True,
        "count": count,
        "tokens": [new_id() for _ in range(count)],
        "worker_ids": [new_id() for _ in range(count)],
        "homes": [new_id()],
        "hold": claims.OFFERED_FIRST,
        "lease": timedelta(seconds=30),
        "poison_at": POISON_AT,
        "poison_error": "{}",
    }


def _literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case timedelta():
            return f"interval '{value.total_seconds()} s'"
        case list():
            return "array[" + ", ".join(f"'{one}'" for one in value) + "]::text[]::" + _array(value)
        case _:
            return f"'{value}'"


def _array(value: list[str]) -> str:
    return "uuid[]" if value and len(value[0]) == 36 else "text[]"


async def _explained(connection: Connection, query: Query, values: dict[str, Any]) -> dict[str, Any]:
    """The plan of the very statement the server runs, executed by name with the given parameters, and undone."""
    given = ", ".join(_literal(values[name]) for name in query.parameters)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"prepare counted as {query.text}")
        [[text]] = await connection.fetch(f"explain (analyze, buffers, format json) execute counted({given})")
    finally:
        await transaction.rollback()
        await connection.execute("deallocate counted")
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def _buffers(plan: dict[str, Any]) -> int:
    touched: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return touched


def _part(plan: dict[str, Any], name: str) -> dict[str, Any]:
    """The part of a plan that makes the named CTE."""
    for below in plan.get("Plans", ()):
        found: dict[str, Any] = below if below.get("Subplan Name") == f"CTE {name}" else _part(below, name)
        if found:
            return found
    return {}


@pytest.mark.parametrize("plans", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("stands", TABLES)
@pytest.mark.parametrize("statistics", ["no statistics", "fresh statistics"])
@pytest.mark.asyncio(loop_scope="module")
async def test_claiming_a_hundred_runs_touches_few_buffers(
    tables: dict[str, Connection], stands: str, plans: str, statistics: str
) -> None:
    connection = tables[stands]
    if statistics == "fresh statistics":
        await connection.execute("vacuum analyze kagzi.workflow_runs")
    await connection.execute(f"set jit = off; set plan_cache_mode = {plans}")
    plan = await _explained(connection, claims._claim, _arguments(100, (TYPE, "refund")))
    assert plan["Actual Rows"] == 100
    chosen = _part(plan, "chosen")
    assert _buffers(chosen) <= CHOOSING
    assert _buffers(plan) <= CLAIMING


@pytest.mark.parametrize("stands", TABLES)
@pytest.mark.asyncio(loop_scope="module")
async def test_looking_when_the_next_run_is_due_touches_one_row_a_probe(
    tables: dict[str, Connection], stands: str
) -> None:
    values = {name: value for name, value in _arguments(1, (TYPE,)).items() if name in claims._next_due.parameters}
    plan = await _explained(tables[stands], claims._next_due, values)
    assert _buffers(plan) <= 100


@pytest.mark.asyncio(loop_scope="module")
async def test_a_type_with_nothing_due_costs_a_probe_and_no_scan(tables: dict[str, Connection]) -> None:
    plan = await _explained(tables["hostile rows"], claims._claim, _arguments(100, ("refund",)))
    assert plan["Actual Rows"] == 0
    assert _buffers(plan) <= 50
