"""A database with a million runs, and with more of everything else than any page reads: histories, workers, counts of
many servers, trouble, events and inputs. It is made by a few statements, and only looked at.
"""

from __future__ import annotations

import asyncpg

from kagzi.protocol.v1.automation_pb2 import InputKey
from kagzi.store import merges, publications, stats

SPACE = "crowded"
PARENT = "00000000-0000-7000-9000-000000000001"
# A long day of work: most of it done, a little failed, some of it under way, and far back something rare.
FILL = """
insert into kagzi.workflow_runs
    (namespace, run_id, task_queue, workflow_type, status, created_at, started_at, finished_at, available_at, labels,
     parent_run_id, locked_by, claim_token)
select 'crowded', ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'default', 'type-' || n % 20,
       s.status, kagzi.now() - (1000001 - n) * interval '0.08 s',
       case when s.status <> 'PENDING' then kagzi.now() - (1000001 - n) * interval '0.08 s' end,
       case when s.status in ('COMPLETED', 'FAILED') then kagzi.now() - (1000000 - n) * interval '0.08 s' end,
       case when s.status = 'PENDING' then kagzi.now() - interval '1 s'
            when s.status in ('RUNNING', 'SLEEPING') then kagzi.now() + interval '1 h' end,
       case when n = 77 then jsonb_build_object('customer', 'rare')
            when n % 100 = 0 then jsonb_build_object('customer', (n % 2000)::text) end,
       case when n % 100 = 3 then $1::uuid end,
       case when s.status = 'RUNNING' then $1::uuid end, case when s.status = 'RUNNING' then $1::uuid end
from generate_series(1, 1000000) n
cross join lateral (select case when n % 100 = 1 then 'FAILED' when n % 100 = 2 then 'SLEEPING'
                                when n % 10000 = 5 then 'RUNNING' when n % 400 = 4 then 'PENDING' else 'COMPLETED' end
                           as status) s
"""
# Histories of three steps, as most are; of some hundred; of three thousand; and one step that is tried again and again.
STEPS = """
insert into kagzi.step_runs
    (namespace, run_id, step_id, attempt_number, is_latest, attempt_id, position, completed_seq, status, kind, output,
     error, started_at, finished_at)
select 'crowded', h.run_id, 'step-' || p, a, a = h.attempts, gen_random_uuid(), p, p,
       case when a = h.attempts then 'COMPLETED' else 'FAILED' end, 'FUNCTION', '"done"'::bytea,
       case when a < h.attempts then '{"type": "ValueError", "message": "no"}'::jsonb end, kagzi.now(), kagzi.now()
from (select r.run_id, 3 as steps, 1 as attempts
      from kagzi.workflow_runs r where r.namespace = 'crowded' and r.status = 'COMPLETED' limit 30000) h
cross join lateral generate_series(1, h.steps) p
cross join lateral generate_series(1, h.attempts) a
union all
select 'crowded', h.run_id::uuid, 'step-' || p, a, a = h.attempts, gen_random_uuid(), p, p,
       case when a = h.attempts then 'COMPLETED' else 'FAILED' end, 'FUNCTION', '"done"'::bytea,
       case when a < h.attempts then '{"type": "ValueError", "message": "no"}'::jsonb end, kagzi.now(), kagzi.now()
from (values ('00000000-0000-7000-8000-000000000065', 3000, 1), ('00000000-0000-7000-8000-0000000000c9', 440, 2),
             ('00000000-0000-7000-8000-0000000000ca', 3000, 1), ('00000000-0000-7000-8000-00000000012d', 1, 3000))
    as h(run_id, steps, attempts)
cross join lateral generate_series(1, h.steps) p
cross join lateral generate_series(1, h.attempts) a
"""
# What five servers have counted, of three types and all together: eight hours by the minute, eight days by the hour;
# and what three hundred servers count right now, which is not merged yet.
COUNTS = """
insert into kagzi.stats
    (namespace, span, minute, server_id, workflow_type, started, completed, pickup, duration, counted_at, running)
select 'crowded', span.minutes, date_trunc(span.name, kagzi.now()) - n * span.minutes * interval '1 minute',
       ('00000000-0000-7000-8000-00000000000' || s)::uuid, t.name, 5, 5, array_fill(1, array[65]),
       array_fill(1, array[65]), case when t.name = '' and s = 1 then kagzi.now() end, case when t.name = '' then s end
from (values (1, 'minute', 480), (60, 'hour', 192)) as span(minutes, name, many)
cross join lateral generate_series(0, span.many - 1) n
cross join generate_series(1, 5) s
cross join (values (''), ('type-1'), ('type-2'), ('type-3')) as t(name)
union all
select 'crowded', span.minutes, date_trunc(span.name, kagzi.now()) - n * span.minutes * interval '1 minute',
       gen_random_uuid(), '', 1, 1, '{}', '{}', null, null
from (values (1, 'minute', 5), (60, 'hour', 2)) as span(minutes, name, many)
cross join lateral generate_series(0, span.many - 1) n
cross join generate_series(1, 300) s
"""
# Twelve hundred workers of six kinds, the newest sixty with fifty runs each, one with two thousand; they registered
# before five thousand that are gone.
WORKERS = """
insert into kagzi.workers
    (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes, concurrency, status, registered_at)
select 'crowded', ('00000000-0000-7000-9001-' || lpad(to_hex(n), 12, '0'))::uuid, 'i' || n, 'default',
       array['type-1', 'other-' || n % 3], array['', '1'], array['', ''], case when n = 1 then 2000 else 50 end,
       case when n > 1200 then 'OFFLINE' when n % 2 = 0 then 'DRAINING' else 'ONLINE' end,
       kagzi.now() - (case when n <= 1200 then 10000 else 0 end + n) * interval '1 s'
from generate_series(1, 6200) n
"""
# More than is counted of everything that needs a person; kinds of runs, too, of which nobody serves most.
TROUBLE = """
insert into kagzi.workflow_runs
    (namespace, run_id, task_queue, workflow_type, status, created_at, available_at, parked_hash, waiting, external_id,
     schedule_id, schedule_error)
select 'crowded', gen_random_uuid(), 'default', 'kind-' || n % 150, s.status, kagzi.now() - interval '3 days',
       case when s.status = 'PENDING' then kagzi.now() - interval '1 s' else 'infinity'::timestamptz end,
       case when s.name = 'parked' then 'h' end,
       case when s.name = 'doubtful' then '[{"step": "pay", "doubt": true}]'::jsonb end,
       case when s.name = 'broken' then 'broken-' || n end, null,
       case when s.name = 'broken' then 'no such zone' end
from (values ('due', 'PENDING'), ('parked', 'SLEEPING'), ('doubtful', 'SLEEPING'), ('broken', 'SCHEDULED'))
    as s(name, status)
cross join generate_series(1, 150) n
"""
BLOCKED = """
insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments, blocked_code, blocked_at)
select 'crowded', 'other-' || n, '', 'default', '{}', case when n % 10 = 0 then 'DEFECT' end,
       case when n % 10 = 0 then kagzi.now() end
from generate_series(1, 1500) n
"""
HELD = """
insert into kagzi.workflow_runs
    (namespace, run_id, task_queue, workflow_type, status, created_at, started_at, available_at, locked_by, claim_token)
select 'crowded', gen_random_uuid(), 'default', 'type-1', 'RUNNING', kagzi.now() - interval '2 days', kagzi.now(),
       kagzi.now() + interval '1 h',
       ('00000000-0000-7000-9001-' || lpad(to_hex(case when n <= 3000 then n % 60 + 1 else 1 end), 12, '0'))::uuid,
       gen_random_uuid()
from generate_series(1, 4950) n
"""
LETTERS = """
with came as (
    insert into kagzi.inputs (namespace, automation, input_id, source, type, key, title)
    select 'crowded', 'inbox', case when n = 1500 then $1::uuid else gen_random_uuid() end, 'post', 'letter', 'x-' || n,
           'a letter'
    from generate_series(1, 3000) n
    returning input_id, key
), told as (
    insert into kagzi.events (namespace, automation, topic, event_id)
    select 'crowded', 'inbox', 'mail', c.key from came c
    returning topic, event_id, arrival, created_at
), caused as (
    insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
    select 'crowded', 'inbox', 'mail', c.key, c.input_id from came c
)
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at)
select 'crowded', 'inbox', 'File', t.topic, t.event_id, 'PENDING', t.arrival, t.created_at from told t
"""
# Events that came of a hundred inputs each.
GATHERED = """
with came as (
    insert into kagzi.inputs (namespace, automation, input_id, source, type, key, title, created_at)
    select 'crowded', 'inbox', case when n = 1 then $1::uuid else gen_random_uuid() end, 'post', 'letter', 'y-' || n,
           'a letter', kagzi.now() - interval '1 day'
    from generate_series(1, 100) n
    returning input_id
), told as (
    insert into kagzi.events (namespace, automation, topic, event_id)
    select 'crowded', 'inbox', 'mail', 'of-many-' || n from generate_series(1, 60) n
    returning topic, event_id
)
insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
select 'crowded', 'inbox', t.topic, t.event_id, c.input_id from told t cross join came c
"""


# The newest inputs, which caused forty events each, and one that caused two thousand; all of them are consumed.
BUSY_INPUTS = """
with came as (
    insert into kagzi.inputs (namespace, automation, input_id, source, type, key, title, created_at)
    select 'crowded', 'inbox', case when n = 1 then $1::uuid else gen_random_uuid() end, 'post', 'parcel', 'z-' || n,
           'a parcel', kagzi.now() + n * interval '1 s'
    from generate_series(1, 45) n
    returning input_id, key
), told as (
    insert into kagzi.events (namespace, automation, topic, event_id)
    select 'crowded', 'inbox', 'mail', c.key || '-' || n
    from came c cross join lateral generate_series(1, case when c.key = 'z-1' then 2000 else 40 end) n
    returning topic, event_id, arrival, created_at
), caused as (
    insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
    select 'crowded', 'inbox', t.topic, t.event_id, c.input_id
    from told t join came c on c.key = substring(t.event_id from '^z-[0-9]+')
)
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, run_id, arrival, published_at)
select 'crowded', 'inbox', 'File', t.topic, t.event_id, 'CONSUMED', gen_random_uuid(), t.arrival, t.created_at
from told t
"""


# An automation as most are: twenty inputs with ten events each.
FEW = """
with consumer as (
    insert into kagzi.handlers (namespace, automation, name, kind) values ('default', 'inbox', 'File', 'CONSUMER')
), came as (
    insert into kagzi.inputs (namespace, automation, input_id, source, type, key, title)
    select 'default', 'inbox', gen_random_uuid(), 'post', 'letter', 'x-' || n, 'a letter' from generate_series(1, 20) n
    returning input_id, key
), told as (
    insert into kagzi.events (namespace, automation, topic, event_id)
    select 'default', 'inbox', 'mail', c.key || '-' || n from came c cross join generate_series(1, 10) n
    returning topic, event_id, arrival, created_at
), caused as (
    insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
    select 'default', 'inbox', t.topic, t.event_id, c.input_id
    from told t join came c on c.key = substring(t.event_id from '^x-[0-9]+')
)
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at)
select 'default', 'inbox', 'File', t.topic, t.event_id, 'PENDING', t.arrival, t.created_at from told t
"""
# Indexes of the runs that hold no rule.
INDEXES = """
select i.indexrelid::regclass::text as name, pg_get_indexdef(i.indexrelid) as made
from pg_index i
where i.indrelid = 'kagzi.workflow_runs'::regclass
  and not exists (select 1 from pg_constraint c where c.conindid = i.indexrelid)
"""


async def fill(url: str) -> None:
    """Everything that needs no server."""
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    await connection.execute("insert into kagzi.namespaces (namespace) values ($1)", SPACE)
    # A million rows are put into their indexes faster at once than one by one.
    indexes = await connection.fetch(INDEXES)
    await connection.execute(";".join(f"drop index {row['name']}" for row in indexes))
    await connection.execute(FILL, PARENT, timeout=300)
    await connection.execute(";".join(["set maintenance_work_mem = '256MB'", *(row["made"] for row in indexes)]))
    await connection.execute(
        "insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at)"
        " values ($1, $2::uuid, 'default', 'parent', 'SLEEPING', 'infinity')",
        SPACE,
        PARENT,
    )
    await connection.execute(WORKERS)
    await connection.execute(HELD)
    await connection.execute(TROUBLE)
    await connection.execute(STEPS, timeout=300)
    await connection.execute(COUNTS, timeout=300)
    for span in (stats.MINUTE, stats.HOUR):
        # As it is done every minute.
        await merges.merge(connection, SPACE, span, stretches=1_000)
    await connection.execute("analyze")
    await connection.close()


async def letters(url: str) -> None:
    """Events and inputs of the automation `inbox`, which is deployed by then; and many that are blocked."""
    connection = await asyncpg.connect(url)
    await connection.execute(LETTERS, publications.input_id(InputKey(source="post", type="letter", id="x-1500")))
    await connection.execute(GATHERED, publications.input_id(InputKey(source="post", type="letter", id="y-1")))
    await connection.execute(BUSY_INPUTS, publications.input_id(InputKey(source="post", type="parcel", id="z-1")))
    await connection.execute(BLOCKED)
    await connection.execute(
        "analyze kagzi.automations, kagzi.events, kagzi.deliveries, kagzi.inputs, kagzi.event_causes"
    )
    await connection.close()
