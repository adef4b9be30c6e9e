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

from kagzi.store import inputs, inspection
from kagzi.store.database import Database
from kagzi.store.queries import Query
from tests.dashboard import crowd
from tests.dashboard.crowd import PARENT, SPACE
from tests.dashboard.place import Place
from tests.dashboard.workflows import inbox
from tests.database import Databases

STATEMENTS = 8
ROWS = 1_000
# From the sixth time on PostgreSQL may keep a plan for values that it does not know.
TIMES = 8
BUSY = "00000000-0000-7000-9001-000000000001"


@pytest.fixture(scope="module")
def crowded(databases: Databases) -> Iterator[Place]:
    url = databases.create()
    # Whoever works in the background is not the page.
    place = Place(url, coordinator_interval_secs=3_600, dispatcher_interval_secs=60)
    place.do(crowd.fill(url))
    place.do(place.server.gauges.stop())
    yield place
    place.close()
    databases.drop(url)


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
        "input of two thousand events": "/automations/inbox/input?source=post&type=parcel&id=z-1",
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
    made = {}
    pages = _pages(crowded)
    for name, path in list(pages.items()):
        made[name], shown = _asked_by(space, name, path, asked)
        # The second pages of those that have one, as their links lead there.
        if link := re.search(r'href="([^"]*[?&;]page=[^"]*)"', shown):
            further = f"{name}, its second page"
            made[further], _ = _asked_by(space, further, html.unescape(link[1]), asked)
    assert len(made) > len(pages) + 10
    read = crowded.do(_rows_read(crowded.database_url, [each for statements in made.values() for each in statements]))
    wrong = []
    for name, statements in made.items():
        rows, read = read[: len(statements)], read[len(statements) :]
        print(f"{len(statements)} statements, at most {max(rows)} rows, {sum(rows)} in all: {name}")  # noqa: T201 - seen
        if len(statements) > STATEMENTS or max(rows) > ROWS:
            names = [f"{query.source}:{query.name} {many}" for (query, _), many in zip(statements, rows, strict=True)]
            wrong.append((name, names))
    assert wrong == []


def _address(path: str) -> str:
    return path if "namespace=" in path else path + ("&" if "?" in path else "?") + f"namespace={SPACE}"


def _asked_by(space: Any, name: str, path: str, asked: list[Asked]) -> tuple[list[Asked], str]:
    """What the server asked while a page was made, and the page. Now and then it asks for its own duties meanwhile, so
    a page that seems to cost too much is asked for again.
    """
    shown = ""
    for _ in range(3):
        asked.clear()
        answer = space.http.get(_address(path))
        assert answer.status_code == 200, (name, answer.text)
        shown = answer.text
        if len(asked) <= STATEMENTS:
            break
    return list(asked), shown


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
    place.do(crowd.letters(place.database_url))


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


async def test_small_tables_are_probed_and_not_read_for_every_probe(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute(crowd.FEW)
    await connection.execute("analyze kagzi.inputs, kagzi.handlers, kagzi.deliveries, kagzi.event_causes, kagzi.events")
    await connection.close()
    nothing = dict.fromkeys(inputs._list.parameters)
    values = {**nothing, "namespace": "default", "automation": "inbox", "look_at": 20, "count": 21}
    # Each input, ten causes and ten deliveries, and the handler.
    assert await _rows_read(database_url, [(inputs._list, values)]) == [20 * 21 + 1]


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
