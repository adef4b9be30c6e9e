"""Those who judge a campaign find what is wrong when something is: each is shown what is as it should be, and then the
same with one thing spoiled.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import Any

import asyncpg
import pytest

from tests.faults import books, conduct
from tests.faults.books import Books
from tests.survival.checker import Trouble
from tests.survival.effects import Entry

RUN, CANCELLED, JOURNEY = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
ATTEMPT = str(uuid.UUID(int=4))
SECOND = 1_000_000_000
STARTED = 100 * SECOND
_AS_IT_SHOULD_BE = f"""
insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, finished_at, automation, error)
values ('default', '{RUN}', 'default', 'handler', 'COMPLETED', now(), 'seeing', null),
       ('default', '{CANCELLED}', 'default', 'patrol', 'CANCELLED', now(), null, '{{"type": "Cancelled"}}'),
       ('default', '{JOURNEY}', 'default', 'journey', 'COMPLETED', now(), null, null);
insert into kagzi.workflow_payloads (namespace, run_id, input) values ('default', '{JOURNEY}', '{{"rest": "2100ms"}}');
insert into kagzi.events (namespace, automation, topic, event_id) values ('default', 'seeing', 'mail', 'letter');
insert into kagzi.deliveries
    (namespace, automation, consumer, topic, event_id, status, run_id, arrival, published_at)
values ('default', 'seeing', 'Add', 'mail', 'letter', 'CONSUMED', '{RUN}', 1, now());
insert into kagzi.mutations
    (namespace, mutation_id, automation, handler, run_id, holder_id, attempt_id, claim_token, tool, idempotency_key,
     status, has_reconciler, finished_at)
values ('default', '{RUN}', 'seeing', 'Add', '{RUN}', '{RUN}', '{RUN}', '{RUN}', 'append', 'key',
        'APPLIED', true, now());
insert into kagzi.step_runs
    (namespace, run_id, step_id, attempt_number, attempt_id, position, status, kind)
values ('default', '{CANCELLED}', 'cancel', 1, '{CANCELLED}', 2, 'COMPLETED', 'CANCEL'),
       ('default', '{CANCELLED}', 'home', 1, '{RUN}', 3, 'COMPLETED', 'FUNCTION'),
       ('default', '{JOURNEY}', 'part', 1, '{ATTEMPT}', 1, 'COMPLETED', 'FUNCTION');
"""  # noqa: S608 - the words are ours


@dataclasses.dataclass(slots=True)
class Scene:
    """Everything that is judged."""

    url: str
    rows: list[dict[str, Any]]
    marks: list[dict[str, Any]]
    published: list[tuple[str, str]]
    entries: list[Entry]
    deaths: dict[str, tuple[int, int]]
    troubles: list[Trouble]

    async def spoil(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute(statement)
        await connection.close()

    async def violations(self) -> list[str]:
        kept = Books(self.rows, self.marks)
        seen = await conduct.watch(self.url, self.entries, self.deaths, {"one"}, self.troubles, 6.0)
        return seen.violations + await books.audit(self.url, kept, self.published, self.troubles)


def mark(run: str, what: str) -> dict[str, Any]:
    return {"of": "seeing", "handler": "Add", "run": run, "what": what, "worker": "one", "at": time.time()}


def entry(seconds: float, step: str, what: str, run: str = JOURNEY, worker: str = "one") -> Entry:
    return Entry(STARTED + int(seconds * SECOND), what, worker, run, step, ATTEMPT)


@pytest.fixture
async def scene(database_url: str) -> Scene:
    row = {"of": "seeing", "event": "letter", "key": "key", "number": 1, "worker": "one", "at": time.time()}
    entries = [
        entry(0, "part", "begin"),
        entry(0.1, "part", "effect"),
        entry(2.3, "doomed", "begin"),
        entry(3, "round", "begin", CANCELLED),
        entry(4, "home", "begin", CANCELLED),
    ]
    marks = [mark(RUN, "begin"), mark(RUN, "end")]
    scene = Scene(database_url, [row], marks, [("seeing", "letter")], entries, {}, [])
    await scene.spoil(_AS_IT_SHOULD_BE)
    return scene


async def test_nothing_is_found_where_nothing_is_wrong(scene: Scene) -> None:
    assert await scene.violations() == []


SPOILED = {
    "an event is lost": ("delete from kagzi.events", "the acknowledged event letter of seeing is lost"),
    "its run did not end well": (
        "update kagzi.workflow_runs set status = 'FAILED' where automation = 'seeing'",
        "letter of seeing is CONSUMED to Add by a run FAILED",
    ),
    "it stayed reserved": (
        "update kagzi.deliveries set status = 'RESERVED'",
        "letter of seeing is RESERVED to Add",
    ),
    "it is not consumed": (
        "update kagzi.deliveries set status = 'PENDING', run_id = null",
        "letter of seeing has changed the outside and is not on record as consumed",
    ),
    "nobody knows of a change": (
        "update kagzi.mutations set status = 'INDETERMINATE', finished_at = null",
        f"mutation {RUN} of seeing is INDETERMINATE",
    ),
    "a cancelled run did not clean up": (
        "delete from kagzi.step_runs where step_id = 'home'",
        f"{CANCELLED} was told of its cancel and did not go home",
    ),
    "a body was interrupted": (
        "update kagzi.step_runs set status = 'INTERRUPTED' where step_id = 'part'",
        f"part of {JOURNEY} was interrupted in one with time to finish",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
async def test_what_the_database_says_is_held_against_what_happened(scene: Scene, what: str) -> None:
    statement, words = SPOILED[what]
    await scene.spoil(statement)
    assert [found for found in await scene.violations() if found.startswith(words)]


async def test_a_change_made_twice_or_never_is_found(scene: Scene) -> None:
    scene.rows.append(scene.rows[0] | {"number": 2})
    assert "letter of seeing has changed the outside 2 times" in (await scene.violations())[0]
    scene.rows.clear()
    assert await scene.violations() == ["letter of seeing was to change the outside and has not"]


async def test_what_a_worker_did_after_it_had_stood_still_is_not_held_against_it(scene: Scene) -> None:
    scene.rows.append(scene.rows[0] | {"number": 2, "worker": "stopped"})
    now = time.monotonic_ns()
    scene.troubles.append(Trouble("another", now - SECOND, now + SECOND))
    assert len(await scene.violations()) == 1
    scene.troubles.append(Trouble("stopped", now - SECOND, now + SECOND))
    assert await scene.violations() == []


async def test_two_handlers_at_a_time_are_found(scene: Scene) -> None:
    scene.marks.insert(1, mark("other", "begin"))
    assert await scene.violations() == [f"runs {RUN} and other of seeing ran at the same time"]


async def test_a_step_after_the_cleanup_is_found(scene: Scene) -> None:
    scene.entries.append(entry(5, "round#2", "begin", CANCELLED))
    assert await scene.violations() == [f"round#2 of {CANCELLED} began after its cleanup had"]


async def test_a_timer_that_is_early_is_found(scene: Scene) -> None:
    scene.entries[2] = entry(2.1, "doomed", "begin")
    assert await scene.violations() == [f"{JOURNEY} was to rest for 2100 ms and rested for 2000.0"]


async def test_what_a_worker_ends_that_has_lost_the_run_makes_no_timer_early(scene: Scene) -> None:
    late = entry(3, "part", "effect", worker="stopped")
    scene.entries.append(dataclasses.replace(late, attempt=str(uuid.UUID(int=5))))
    assert await scene.violations() == []


async def test_a_run_of_a_dead_worker_that_waits_too_long_is_found(scene: Scene) -> None:
    died = STARTED + SECOND // 2
    scene.deaths["one"] = (died, died)
    scene.entries.append(entry(25, "part", "begin", worker="two"))
    assert await scene.violations() == ["a run of a dead worker went on after 24.5 s, with a lease of 6"]
    scene.troubles.append(Trouble("", STARTED + 2 * SECOND, STARTED + 3 * SECOND))
    assert await scene.violations() == []
