"""What a page costs with a million runs in the table: a handful of statements, none of which reads more than a thousand
rows, whatever is looked for and however often it was asked before.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg
import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import InputKey
from kagzi.store import inspection, merges, publications, stats
from kagzi.store.database import Database
from kagzi.store.queries import Query
from tests.dashboard.place import Place
from tests.dashboard.workflows import inbox
from tests.database import Databases

STATEMENTS = 8
ROWS = 1_000
# From the sixth time on PostgreSQL may keep a plan for values that it does not know.
TIMES = 8
SPACE = "crowded"
BUSY = "00000000-0000-7000-9001-000000000001"
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
# What five servers have counted: eight hours by the minute, eight days by the hour, of three types and all together.
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
"""
# Three hundred workers, the newest sixty with fifty runs each, one with two thousand; they registered before five
# thousand that are gone.
WORKERS = """
insert into kagzi.workers
    (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes, concurrency, status, registered_at)
select 'crowded', ('00000000-0000-7000-9001-' || lpad(to_hex(n), 12, '0'))::uuid, 'i' || n, 'default',
       '{type-1}', '{""}', '{""}', case when n = 1 then 2000 else 50 end,
       case when n <= 300 then 'ONLINE' else 'OFFLINE' end,
       kagzi.now() - (case when n <= 300 then 10000 else 0 end + n) * interval '1 s'
from generate_series(1, 5300) n
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


@pytest.fixture(scope="module")
def crowded(databases: Databases) -> Iterator[Place]:
    url = databases.create()
    # Whoever works in the background is not the page.
    place = Place(url, coordinator_interval_secs=3_600, dispatcher_interval_secs=60)
    place.do(_fill(url))
    place.do(place.server.gauges.stop())
    yield place
    place.close()
    databases.drop(url)


async def _fill(url: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    await connection.execute("insert into kagzi.namespaces (namespace) values ($1)", SPACE)
    await connection.execute(FILL, PARENT, timeout=300)
    await connection.execute(
        "insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at)"
        " values ($1, $2::uuid, 'default', 'parent', 'SLEEPING', 'infinity')",
        SPACE,
        PARENT,
    )
    await connection.execute(WORKERS)
    await connection.execute(HELD)
    await connection.execute(STEPS, timeout=300)
    await connection.execute(COUNTS, timeout=300)
    for span in (stats.MINUTE, stats.HOUR):
        # As it is done every minute.
        await merges.merge(connection, SPACE, span, stretches=1_000)
    await connection.execute("analyze")
    await connection.close()


def _pages(place: Place) -> dict[str, str]:
    def run(number: int) -> str:
        return f"/runs/00000000-0000-7000-8000-{number:012x}"

    return {
        **{f"overview of {each}": f"/?range={each}" for each in ("1h", "6h", "24h", "7d")},
        "runs": "/runs",
        "completed runs": "/runs?status=COMPLETED",
        "failed runs": "/runs?status=FAILED",
        "sleeping runs": "/runs?status=SLEEPING",
        "running runs": "/runs?status=RUNNING",
        "cancelled runs, of which there are none": "/runs?status=CANCELLED",
        "runs of a type": "/runs?type=type-7",
        "runs of a type that nobody has": "/runs?type=nobody",
        "runs of a queue that nobody has": "/runs?queue=nobody&status=FAILED",
        "runs with a common label": "/runs?q=customer%3D100",
        "the one run with a rare label": "/runs?q=customer%3Drare",
        "runs with a label that nobody has": "/runs?q=customer%3Dnobody",
        "a run by its own name": "/runs?q=nobody",
        "children": f"/runs?parent={PARENT}",
        "a run with ten thousand children": f"/runs/{PARENT}",
        "a run of 3,000 steps that failed": run(101),
        "a run of 3,000 steps that sleeps": run(202),
        "a run of 440 steps that were tried twice": run(201),
        "one step of 3,000": f"{run(101)}?step=step-1500",
        "the page of one step of 3,000": f"{run(101)}/step?id=step-1500",
        "the page of an attempt of 3,000": f"{run(301)}/step?id=step-1&attempt=1500",
        "a run whose step was tried 3,000 times": run(301),
        "that step in its run": f"{run(301)}?step=step-1",
        "a run that is due": run(404),
        "a run that sleeps": run(302),
        "a run that runs": run(10_005),
        "schedules": "/schedules",
        "schedule": "/schedules/nightly",
        "automations": "/automations",
        "automation": "/automations/inbox",
        "events": "/automations/inbox/events",
        "pending events of a consumer": "/automations/inbox/events?topic=mail&consumer=File&status=PENDING",
        "events that were skipped, of which there are none": "/automations/inbox/events?status=SKIPPED",
        "input": "/automations/inbox/input?source=post&type=letter&id=x-1500",
        "input of events that came of a hundred": "/automations/inbox/input?source=post&type=letter&id=y-1",
        "workers": "/workers",
        "a worker that holds two thousand runs": f"/workers/{BUSY}",
        "workers that are gone": "/workers?show=all",
        "server": "/server",
        "namespaces": "/namespaces",
        "namespace": f"/namespaces/{SPACE}",
    }


# What this transaction has read of tables so far.
FETCHED = """
select coalesce(sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)), 0)::bigint
from pg_catalog.pg_stat_xact_user_tables
where schemaname = 'kagzi'
"""
# A statement with its parameters.
Asked = tuple[Query, dict[str, Any]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_page_costs_more_with_a_million_runs(crowded: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asked] = []
    _spy(monkeypatch, asked)
    space = crowded.space()
    _furnish(crowded)
    costs: dict[str, tuple[int, int]] = {}
    wrong = []
    pages = _pages(crowded)
    pages |= {f"{name}, its second page": path for name, path in _further(space, pages).items()}
    for name, path in pages.items():
        statements = min((_asked_by(space, name, path, asked) for _ in range(3)), key=len)
        read = crowded.do(_rows_read(crowded.database_url, statements))
        costs[name] = (len(statements), max(read))
        if len(statements) > STATEMENTS or max(read) > ROWS:
            names = [f"{query.source}:{query.name} {rows}" for (query, _), rows in zip(statements, read, strict=True)]
            wrong.append((name, names))
    for name, (statements_made, most) in costs.items():
        print(f"{statements_made} statements, at most {most} rows: {name}")  # noqa: T201 - what was seen
    assert wrong == []


def _further(space: Any, pages: dict[str, str]) -> dict[str, str]:
    """The second pages of those that have one, as their links lead there."""
    found = {}
    for name, path in pages.items():
        shown = space.http.get(_address(path)).text
        if link := re.search(r'href="([^"]*[?&;]page=[^"]*)"', shown):
            found[name] = html.unescape(link[1])
    assert len(found) > 10, found
    return found


def _address(path: str) -> str:
    return path if "namespace=" in path else path + ("&" if "?" in path else "?") + f"namespace={SPACE}"


def _asked_by(space: Any, name: str, path: str, asked: list[Asked]) -> list[Asked]:
    """What the server asked while a page was made: mostly for the page, now and then for its own duties."""
    asked.clear()
    answer = space.http.get(_address(path))
    assert answer.status_code == 200, (name, answer.text)
    return list(asked)


def _furnish(place: Place) -> None:
    """What else stands on pages besides runs."""
    space = place.space()
    space.name = SPACE
    schedule = {"workflow_type": "type-1", "timing": {"cron": "@daily"}}
    for name in ("nightly", *(f"s-{number}" for number in range(60))):
        space.api("POST", "/schedules", json={"schedule_id": name, **schedule})
    with space.worker(automations=[inbox()]):
        while not space.api("GET", "/automations")["automations"]:
            pass
    place.do(_letters(place.database_url))


async def _letters(url: str) -> None:
    """Events that nobody consumed yet, each with the input it came from."""
    connection = await asyncpg.connect(url)
    await connection.execute(LETTERS, publications.input_id(InputKey(source="post", type="letter", id="x-1500")))
    await connection.execute(GATHERED, publications.input_id(InputKey(source="post", type="letter", id="y-1")))
    await connection.execute("analyze kagzi.events, kagzi.deliveries, kagzi.inputs, kagzi.event_causes")
    await connection.close()


async def test_a_long_history_in_a_small_table_is_not_read_to_its_end(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "insert into kagzi.step_runs (namespace, run_id, step_id, attempt_number, attempt_id, position, status, kind)"
        " select 'default', ('00000000-0000-7000-8000-' || lpad((n % 5)::text, 12, '0'))::uuid, 'step-' || n, 1,"
        " gen_random_uuid(), n, 'COMPLETED', 'FUNCTION' from generate_series(1, 15000) n order by n % 5"
    )
    await connection.execute("analyze kagzi.step_runs")
    await connection.close()
    values = {"namespace": "default", "run_id": "00000000-0000-7000-8000-000000000004", "look_at": 900}
    assert await _rows_read(database_url, [(inspection._longer, values)]) == [901]


def test_what_is_rare_is_found_among_a_million(crowded: Place) -> None:
    space = crowded.space()
    page = space.http.get(f"/runs?q=customer%3Drare&namespace={SPACE}").text
    assert "00000000-0000-7000-8000-00000000004d" in page
    page = space.http.get(f"/runs?type=nobody&namespace={SPACE}").text
    assert "Look further back" in page


def _spy(monkeypatch: pytest.MonkeyPatch, asked: list[Asked]) -> None:
    """Every statement of the store passes its arguments here."""
    original = Query._arguments

    def noted(self: Query, values: dict[str, Any]) -> Any:
        asked.append((self, values))
        return original(self, values)

    monkeypatch.setattr(Query, "_arguments", noted)


async def _rows_read(url: str, asked: Sequence[Asked]) -> list[int]:
    """How many rows of tables each statement reads in the worst of many times, its filters' rejects included. It is
    asked as the server does, on one connection with its settings.
    """
    database = await Database(url, size=1).open()

    async def measure(connection: Connection) -> list[int]:
        async with connection.transaction():
            return [await _worst(connection, query, values) for query, values in asked]

    try:
        return await database.read(measure)
    finally:
        await database.close()


async def _worst(connection: Connection, query: Query, values: dict[str, Any]) -> int:
    arguments = [values[name] for name in query.parameters]
    # A look at an index alone is seen by the planner only.
    [row] = await connection.fetch(f"explain (analyze, format json) {query.text}", *arguments)
    seen = [_read(json.loads(row[0])[0]["Plan"])]
    for _ in range(TIMES):
        before = await connection.fetchval(FETCHED)
        await connection.fetch(query.text, *arguments)
        seen.append(await connection.fetchval(FETCHED) - before)
    return max(seen)


def _read(node: dict[str, Any]) -> int:
    own = 0
    if "Relation Name" in node:
        kept = (
            node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        )
        own = round(kept * node["Actual Loops"])
    return own + sum(_read(each) for each in node.get("Plans", ()))
