"""What a statement reads, when its plan was made while the tables were as good as empty and they have grown since: the
rows it is about, and not the others. Counted, never timed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import InputKey
from kagzi.store import batch, inputs, publications
from kagzi.store.database import Database, plan_anew
from kagzi.store.operation import Operation
from tests.automations.stage import LEASE, MAIL, NAMESPACE, RULES, SETTINGS, Held, Stage, consumer, event, producer
from tests.database import version

# As on the connections of the lanes.
PLANNED_ONCE = {**SETTINGS, "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}

_GROW = """
insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments)
select 'default', 'grown-' || i, '1', 'default', '{}' from generate_series(1, 3000) i;
insert into kagzi.handlers (namespace, automation, name, kind, subscribes)
select 'default', 'grown-' || i, 'add', 'CONSUMER', '{mail}' from generate_series(1, 3000) i;
insert into kagzi.events (namespace, automation, topic, event_id)
select 'default', 'grown-' || i % 3000, 'mail', 'e' || i from generate_series(1, 20000) i;
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at, run_id)
select 'default', 'grown-' || i % 3000, 'add', 'mail', 'e' || i,
       (array['PENDING', 'RESERVED', 'CONSUMED'])[1 + i % 3], i, kagzi.now(), md5(i::text)::uuid
from generate_series(1, 20000) i;
insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
select 'default', 'grown-' || i % 3000, 'mail', 'e' || i, md5(i::text)::uuid from generate_series(1, 20000) i;
insert into kagzi.mutations (namespace, mutation_id, automation, handler, run_id, holder_id, attempt_id, claim_token,
                             tool, idempotency_key, status, has_reconciler)
select 'default', md5(i::text)::uuid, 'grown', 'add', md5(i::text)::uuid, md5(i::text)::uuid, md5(i::text)::uuid,
       md5(i::text)::uuid, 'tool', 'key', 'IN_FLIGHT', true
from generate_series(1, 20000) i;
insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at, automation)
select 'default', md5(i::text)::uuid, 'elsewhere', 'x', 'SLEEPING', kagzi.now(), 'sleeping-' || i
from generate_series(1, 20000) i;
insert into kagzi.workflow_payloads (namespace, run_id)
select 'default', md5(i::text)::uuid from generate_series(1, 20000) i;
insert into kagzi.step_runs (namespace, run_id, step_id, attempt_number, attempt_id, position, status, kind)
select 'default', md5(i::text)::uuid, 'mutate', 1, md5(i::text)::uuid, 1, 'RUNNING', 'FUNCTION'
from generate_series(1, 20000) i;
"""

# What the automations have behind them and before them: many events of either topic, half of them consumed.
_OWN = """
insert into kagzi.events (namespace, automation, topic, event_id)
select 'default', a.name, t.topic, coalesce(nullif(t.first, 'm1'), 'x') || case when i < 500 then '-' || i else '' end
from kagzi.automations a, (values ('mail', 'm1'), ('row', 'r1')) as t(topic, first), generate_series(1, 500) i
where a.name like 'flow-%';
insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
select 'default', e.automation, e.topic, e.event_id, md5(e.event_id)::uuid
from kagzi.events e where e.automation like 'flow-%' and e.event_id <> 'm1';
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at, run_id)
select 'default', e.automation, case e.topic when 'mail' then 'add' else 'tell' end, e.topic, e.event_id,
       case when e.arrival % 2 = 0 and e.event_id <> 'r1' then 'CONSUMED' else 'PENDING' end, e.arrival, kagzi.now(),
       md5(e.event_id)::uuid
from kagzi.events e where e.automation like 'flow-%' and e.event_id <> 'm1';
"""
_LISTS = "select pg_stat_get_xact_numscans('kagzi.event_listed'::regclass)"


@pytest_asyncio.fixture
async def kept(database_url: str) -> AsyncIterator[Connection]:
    """A connection that keeps the plans it has made."""
    connection = await asyncpg.connect(database_url, server_settings=PLANNED_ONCE)
    await plan_anew(connection)
    yield connection
    await connection.close()


async def _read(kept: Connection, *operations: Operation) -> dict[str, int]:
    """Applies operations; gives the rows that were read in each table."""
    counted = "select relname, seq_tup_read + idx_tup_fetch as read from pg_stat_xact_user_tables"
    async with kept.transaction():
        before = {row["relname"]: row["read"] for row in await kept.fetch(counted)}
        listed = await kept.fetchval(_LISTS)
        await batch.apply(kept, NAMESPACE, operations, LEASE, RULES)
        assert await kept.fetchval(_LISTS) == listed, "an event is found by its key, not among all of its automation"
        after = {row["relname"]: row["read"] for row in await kept.fetch(counted)}
    assert not any(one.refused for one in operations), operations[0].answer
    return {table: read - before.get(table, 0) for table, read in after.items() if read}


async def _life(stage: Stage, kept: Connection, names: list[str]) -> dict[str, dict[str, int]]:
    """A run of each of these automations, phase by phase."""
    held = [one for one in await stage.claim_all() if one.task.automation in names]
    assert len(held) == len(names)
    begun = [stage.beginning(one) for one in held]
    phases: dict[str, list[Operation]] = {
        "peek": [stage.peeking(one, limit=5) for one in held],
        "prepare": [stage.preparing(one, {"mail": ["m1"]}) for one in held],
        "begin": begun,
        "finish": [_finish(stage, one, begin) for one, begin in zip(held, begun, strict=True)],
        "commit": [stage.committing(one, event("r1", "row")) for one in held],
    }
    return {phase: await _read(kept, *operations) for phase, operations in phases.items()}


def _finish(stage: Stage, held: Held, begin: Operation) -> Operation:
    return stage.finishing(held, begin.body.mutation_id, "APPLIED", step=begin.body.step)


async def _deployed(stage: Stage, names: list[str]) -> None:
    for name in names:
        await stage.deploy(consumer(publishes=["row"]), consumer("tell", ["row"]), producer(), name=name)
        await stage.publish(event("m1", input=MAIL), name=name)


async def test_plans_made_on_empty_tables_read_only_what_they_are_about_when_the_tables_have_grown(
    stage: Stage, kept: Connection
) -> None:
    await stage.connection.execute("alter table kagzi.deliveries set (autovacuum_enabled = off)")
    await _deployed(stage, ["first"])
    await _life(stage, kept, ["first"])
    await stage.connection.execute(_GROW)
    if version() < 17:
        # There plans are made anew and follow what is known of the tables, which autovacuum finds out within a minute.
        await stage.connection.execute("analyze")
    names = [f"flow-{number}" for number in range(10)]
    await _deployed(stage, names)
    await stage.connection.execute(_OWN)
    read = await _life(stage, kept, names)
    for phase, tables in read.items():
        for table, rows in tables.items():
            assert rows <= 20 * len(names), f"{phase} reads {rows} rows of {table}"


async def test_the_lanes_keep_their_plans_where_these_are_right_for_any_size(database_url: str) -> None:
    database = await Database(database_url, planned_once=True).open()
    try:
        kept = "force_generic_plan" if version() >= 17 else "force_custom_plan"
        assert await database.read(lambda c: c.fetchval("show plan_cache_mode")) == kept
        assert await database.read(lambda c: c.fetchval("show enable_seqscan")) == "off"
    finally:
        await database.close()


# One input, a file perhaps, that caused everything; the table is never analysed.
_FILE = """
alter table kagzi.event_causes set (autovacuum_enabled = off);
alter table kagzi.deliveries set (autovacuum_enabled = off);
insert into kagzi.inputs (namespace, automation, input_id, source, type, key)
values ('default', 'inbox', $1, 'folder', 'file', 'big');
insert into kagzi.events (namespace, automation, topic, event_id)
select 'default', 'inbox', 'mail', 'e' || i from generate_series(1, 20000) i;
insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
select 'default', 'inbox', 'mail', 'e' || i, $1 from generate_series(1, 20000) i;
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at)
select 'default', 'inbox', 'add', 'mail', 'e' || i, 'PENDING', i, kagzi.now() from generate_series(1, 20000) i;
"""


async def test_what_an_input_caused_is_not_read_again_for_each_of_it(stage: Stage, kept: Connection) -> None:
    await stage.deploy(consumer(publishes=["row"]), consumer("tell", ["row"]))
    key = InputKey(source="folder", type="file", id="big")
    await stage.connection.execute(_FILE.replace("$1", f"'{publications.input_id(key)}'"))
    await stage.publish(event("m1", input=MAIL))
    (held,) = await stage.claim_all()
    wanted = {"mail": [f"e{number}" for number in range(1, 21)]}
    await stage.ask(stage.preparing(held, wanted))
    committed = await _read(kept, stage.committing(held, event("r1", "row")))
    assert committed["event_causes"] <= 2 * 20

    async with kept.transaction():
        before = await kept.fetchrow(_READ)
        answer = await inputs.skip(kept, NAMESPACE, "inbox", key)
        # All that was not reserved, and the row.
        assert answer.skipped == 20_000 - 20 + 1
        after = await kept.fetchrow(_READ)
    assert before is not None
    assert after is not None
    assert after["causes"] - before["causes"] <= 6 * 20_000
    assert after["deliveries"] - before["deliveries"] <= 10 * 20_000


_READ = """
select sum(seq_tup_read + idx_tup_fetch) filter (where relname = 'event_causes') as causes,
       sum(seq_tup_read + idx_tup_fetch) filter (where relname = 'deliveries') as deliveries
from pg_stat_xact_user_tables where schemaname = 'kagzi'
"""
