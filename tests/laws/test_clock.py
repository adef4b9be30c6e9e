"""Law 5, the database's clock: every time the engine stores or compares comes from `kagzi.now()`. The tests move it; a
time from any other clock would stand out by years, and what was due by it would not be.
"""

from __future__ import annotations

import re
from datetime import timedelta
from importlib.resources import files

import pytest

from kagzi.store import namespaces, upkeep, workers
from kagzi.store.roster import ServedType
from tests.laws import operations
from tests.laws.operations import NAMESPACE, new_id
from tests.laws.world import World

_OTHER_CLOCK = re.compile(
    r"(?<!kagzi\.)\bnow\s*\(|\b(statement|transaction|clock)_timestamp\b|\bcurrent_(date|time|timestamp)\b"
    r"|\blocaltime(stamp)?\b|\btimeofday\b|'now'",
    re.IGNORECASE,
)


async def _move(world: World, by: str) -> None:
    await world.connection.execute(
        "create or replace function kagzi.now() returns timestamptz language sql stable parallel safe"
        f" as $$ select statement_timestamp() + interval '{by}' $$"
    )


async def _live(world: World) -> None:
    """A bit of everything that stores a time."""
    run = await world.running(timeout_ms=60_000, delay_ms=0)
    waits = operations.await_signal(run, "paid", 2, duration_ms=60_000)
    child = operations.start_child(run, "ship", 3)
    await world.flush(
        operations.complete_step(run, elapsed_us=1_000),
        waits,
        child,
        operations.timer(run, "nap", 4, 60_000),
        operations.fail_step(run, "flaky", 5),
        operations.signal(run.run_id),
        operations.set_state(run),
        operations.suspend(run, "nap", "receive-paid"),
    )
    await world.flush(operations.cancel(run.run_id))
    [again, shipping] = sorted(await world.claim(2), key=lambda one: one.run_id != run.run_id)
    await world.flush(operations.complete(again), operations.fail(shipping))
    await world.flush(operations.cancel(await world.start()), operations.terminate(await world.start()))
    await world.start(delay_ms=60_000)
    await world.database.transact(lambda c: namespaces.create(c, "other"))
    registered = await world.database.transact(
        lambda c: workers.register(
            c, NAMESPACE, instance=new_id(), task_queue="default", types=[ServedType("order", "", "")]
        )
    )
    held = await world.running(worker_id=registered.worker_id)
    await world.database.transact(
        lambda c: workers.heartbeat(
            c, NAMESPACE, registered.worker_id, [(held.run_id, held.token)], lease_ms=30_000, interval_ms=10_000
        )
    )
    await world.database.transact(lambda c: workers.drain(c, NAMESPACE, registered.worker_id))
    await world.database.transact(lambda c: workers.deregister(c, NAMESPACE, registered.worker_id))


@pytest.mark.parametrize("by", ["20 years", "-20 years"])
async def test_every_time_that_is_stored_follows_the_one_clock(world: World, by: str) -> None:
    await world.connection.execute("delete from kagzi.namespaces")
    await _move(world, by)
    await world.database.transact(lambda c: namespaces.create(c, NAMESPACE))
    await _live(world)
    columns = await world.connection.fetch(
        "select table_name, column_name from information_schema.columns"
        " where table_schema = 'kagzi' and data_type like 'timestamp%' and table_name <> 'migrations'"
    )
    seen = set()
    for table, column in columns:
        strays = await world.connection.fetch(
            f"select {column} from kagzi.{table} where {column} < 'infinity'"  # noqa: S608
            f" and abs(extract(epoch from {column} - kagzi.now())) > 3600"
        )
        assert not strays, f"{table}.{column} holds times of another clock"
        if await world.connection.fetchval(f"select count({column}) from kagzi.{table}"):  # noqa: S608
            seen.add(f"{table}.{column}")
    assert {
        "workflow_runs.available_at",
        "workflow_runs.created_at",
        "workflow_runs.started_at",
        "workflow_runs.finished_at",
        "workflow_runs.deadline_at",
        "workflow_runs.cancel_requested_at",
        "workflow_payloads.created_at",
        "step_runs.created_at",
        "step_runs.started_at",
        "step_runs.finished_at",
        "step_runs.wake_at",
        "step_runs.retry_at",
        "signals.created_at",
        "workers.last_heartbeat_at",
        "workers.drain_requested_at",
        "workers.deregistered_at",
        "namespaces.created_at",
    } <= seen, "the test no longer stores every kind of time"


async def test_moving_the_clock_makes_everything_due_that_waited_for_it(world: World) -> None:
    delayed = await world.start(delay_ms=3_000_000)
    sleeping = await world.running()
    await world.flush(operations.timer(sleeping), operations.suspend(sleeping, "nap"))
    held = await world.running()
    late = await world.running(timeout_ms=3_000_000)
    await world.flush(operations.timer(late, duration_ms=30_000_000), operations.suspend(late, "nap"))
    worker = await world.database.transact(
        lambda c: workers.register(
            c, NAMESPACE, instance=new_id(), task_queue="default", types=[ServedType("order", "", "")]
        )
    )
    assert await world.claim(9) == []

    await _move(world, "61 minutes")

    silent = await world.database.read(lambda c: upkeep.silent(c, timedelta(minutes=60), 9))
    assert silent == {NAMESPACE: [worker.worker_id]}
    assert await world.database.read(lambda c: upkeep.late(c, timedelta(seconds=30), 9)) == {NAMESPACE: [late.run_id]}
    assert {run.run_id for run in await world.claim(9)} == {delayed, sleeping.run_id, held.run_id}
    assert (await world.row(held.run_id))["crashes"] == 1


async def test_moving_the_clock_back_brings_nothing_forward(world: World) -> None:
    await world.start()
    await _move(world, "-10 minutes")
    assert await world.claim(9) == []


def test_no_statement_asks_another_clock() -> None:
    sources = [entry for entry in files("kagzi.store").iterdir() if entry.name.endswith(".sql")]
    assert sources
    for source in sources:
        code = "\n".join(line.partition("--")[0] for line in source.read_text().splitlines())
        assert not _OTHER_CLOCK.search(code), f"{source.name} reads a clock that is not kagzi.now()"


async def test_no_default_of_a_column_asks_another_clock(world: World) -> None:
    defaults = await world.connection.fetch(
        "select table_name, column_default from information_schema.columns"
        " where table_schema = 'kagzi' and table_name <> 'migrations' and column_default is not null"
    )
    assert defaults
    assert [row for row in defaults if _OTHER_CLOCK.search(row["column_default"])] == []


async def test_no_function_of_the_schema_asks_another_clock(world: World) -> None:
    functions = await world.connection.fetch(
        "select p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'kagzi' and p.proname <> 'now'"
    )
    assert [row["proname"] for row in functions if _OTHER_CLOCK.search(row["prosrc"])] == []
