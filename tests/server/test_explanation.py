"""Why a run is where it is: every situation a run can be in, written as it would stand there, and what is said."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest_asyncio

from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.server.explanation import explain
from kagzi.store import explanations, workers
from kagzi.store.database import Database
from kagzi.store.roster import ServedType
from tests.store import given

HEARTBEAT = timedelta(seconds=10)


class Scene:
    """A database with a run, and whatever stands around it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, status: str = "PENDING", due: str = "0 s", **columns: Any) -> str:
        run_id: str = await self._database.transact(lambda c: given.run(c, status, due, **columns))
        return run_id

    async def step(self, run_id: str, step_id: str, **columns: Any) -> None:
        await self._database.transact(lambda c: given.step(c, run_id, step_id, **columns))

    async def worker(self, *types: ServedType, queue: str = "default", concurrency: int = 1) -> str:
        made = await self._database.transact(
            lambda c: workers.register(
                c,
                "default",
                instance=given.new_id(),
                task_queue=queue,
                types=types,
                concurrency=concurrency,
                hostname="box",
                pid=7,
            )
        )
        return made.worker_id

    async def sql(self, text: str, *values: Any) -> None:
        await self._database.transact(lambda c: c.execute(text, *values))

    async def told(self, run_id: str) -> pb.ExplainRunResponse:
        return explain(await self._database.read(lambda c: explanations.facts(c, "default", run_id)), HEARTBEAT)

    async def codes(self, run_id: str) -> list[str]:
        told = await self.told(run_id)
        assert told.summary.startswith(told.reasons[0].sentence)
        assert all(reason.sentence.endswith(".") for reason in told.reasons)
        return [pb.ExplainCode.Name(reason.code).removeprefix("EXPLAIN_") for reason in told.reasons]


@pytest_asyncio.fixture
async def scene(database_url: str) -> AsyncIterator[Scene]:
    database = await Database(database_url).open()
    yield Scene(database)
    await database.close()


async def test_a_due_run_waits_for_a_worker_of_its_queue_type_and_version(scene: Scene) -> None:
    run = await scene.run(version="2")
    assert await scene.codes(run) == ["NO_WORKER"]
    assert (await scene.told(run)).reasons[0].suggestion == "Start one: `kagzi worker MODULE --queue default`."
    await scene.worker(ServedType("order", "2"), queue="elsewhere")
    assert await scene.codes(run) == ["NO_WORKER"]
    await scene.worker(ServedType("other"))
    assert await scene.codes(run) == ["NO_WORKER_OF_TYPE"]
    await scene.worker(ServedType("order", "1"))
    assert await scene.codes(run) == ["NO_WORKER_OF_VERSION"]
    await scene.worker(ServedType("order", "2"))
    assert await scene.codes(run) == ["DUE"]


async def test_a_due_run_waits_for_a_slot_and_for_its_turn(scene: Scene) -> None:
    run = await scene.run()
    busy = await scene.worker(ServedType("order"))
    await scene.run("RUNNING", "30 s", locked_by=busy)
    assert await scene.codes(run) == ["WORKERS_FULL"]
    await scene.run(priority=3)
    await scene.run(due="-1 h")
    await scene.run(workflow_type="other", priority=4)
    told = await scene.told(run)
    assert [reason.sentence for reason in told.reasons][1].startswith("2 due runs of order come first")
    await scene.sql("update kagzi.workers set status = 'DRAINING'")
    assert await scene.codes(run) == ["WORKERS_DRAIN"]


async def test_a_run_that_lost_its_worker_says_when_it_goes_on(scene: Scene) -> None:
    holder = await scene.worker(ServedType("order"))
    run = await scene.run("RUNNING", "20 s", locked_by=holder)
    told = await scene.told(run)
    assert (told.summary, told.reasons[0].subject) == ("It is running on box (process 7).", holder)
    await scene.sql("update kagzi.workers set last_heartbeat_at = kagzi.now() - interval '26 s'")
    told = await scene.told(run)
    assert told.reasons[0].code == pb.EXPLAIN_WORKER_SILENT
    assert told.reasons[0].HasField("until")
    await scene.sql("update kagzi.workers set status = 'OFFLINE'")
    assert await scene.codes(run) == ["WORKER_SILENT"]
    lost = await scene.run("RUNNING", "-1 s", locked_by=holder, crashes=1)
    assert await scene.codes(lost) == ["LEASE_ENDED", "NO_WORKER"]
    await scene.worker(ServedType("order"))
    assert await scene.codes(lost) == ["LEASE_ENDED", "SUSPECT"]


async def test_a_run_that_sleeps_says_what_for(scene: Scene) -> None:
    child = await scene.run("SLEEPING", "never", workflow_type="ship")
    waits: list[tuple[str, dict[str, Any]]] = [
        ("nap", {"kind": "SLEEP", "status": "RUNNING"}),
        ("approve", {"kind": "SIGNAL", "status": "RUNNING", "target": "approved"}),
        ("ship", {"kind": "CHILD_WORKFLOW", "status": "RUNNING", "target": "ship", "child_run_id": child}),
        ("charge", {"status": "FAILED", "error": json.dumps({"type": "Declined", "message": "no funds"})}),
        ("mail", {"status": "UNKNOWN", "effect": True}),
    ]
    waiting = json.dumps([{"step": name} for name, _ in waits])
    run = await scene.run("SLEEPING", "1 h", waiting=waiting)
    for place, (name, columns) in enumerate(waits, 1):
        await scene.step(run, name, position=place, **columns)
    await scene.sql(
        "update kagzi.step_runs set wake_at = kagzi.now() + interval '1 h' where step_id = 'nap'",
    )
    told = await scene.told(run)
    assert await scene.codes(run) == [
        "WAITS_TIMER",
        "WAITS_SIGNAL",
        "WAITS_CHILD",
        "STEP_RETRIES_LATER",
        "WAITS_RESOLUTION",
    ]
    timer, signal, of_child, failed, unknown = told.reasons
    assert timer.HasField("until")
    assert not signal.HasField("until")
    assert (signal.subject, signal.suggestion) == ("approved", "Send the signal approved.")
    assert (of_child.subject, of_child.sentence) == (
        child,
        "It waits for the end of its child ship, which is sleeping.",
    )
    assert "Declined: no funds, attempt 1" in failed.sentence
    assert unknown.subject == "mail"


async def test_a_run_for_later_says_when_and_why(scene: Scene) -> None:
    assert await scene.codes(await scene.run(due="1 h")) == ["STARTS_LATER"]
    assert await scene.codes(await scene.run(due="1 h", attempts=2)) == ["RETRIES_LATER"]
    assert await scene.codes(await scene.run("SLEEPING", "never", parked_hash="x", waiting="{}")) == ["PARKED"]
    assert await scene.codes(await scene.run(due="never", schedule_id=given.new_id())) == ["WAITS_PREVIOUS"]
    given_back = await scene.run(due="1 h")
    await scene.sql("update kagzi.workflow_runs set started_at = kagzi.now() where run_id = $1", given_back)
    assert await scene.codes(given_back) == ["STEP_RETRIES_LATER"]


async def test_a_handler_run_that_is_parked_over_its_mutation_says_so(scene: Scene) -> None:
    waiting = json.dumps({"reason": "indeterminate", "message": "", "mutation_id": "m-1"})
    run = await scene.run("SLEEPING", "never", waiting=waiting)
    told = await scene.told(run)
    assert (told.reasons[0].code, told.reasons[0].subject) == (pb.EXPLAIN_WAITS_MUTATION, "m-1")


async def test_a_run_that_has_ended_says_how(scene: Scene) -> None:
    assert (await scene.told(await scene.run("COMPLETED"))).summary == "It completed."
    failed = await scene.run("FAILED", error=json.dumps({"type": "ValueError", "message": "no"}))
    assert (await scene.told(failed)).summary == "It failed with ValueError: no."
    went_on = await scene.run("COMPLETED", continued_as=given.new_id())
    assert (await scene.told(went_on)).summary == "It went on as another run."
    poisoned = await scene.run("FAILED", crashes=5, error=json.dumps({"type": "Poisoned", "message": "x"}))
    assert await scene.codes(poisoned) == ["POISONED"]


async def test_a_disabled_namespace_and_a_cancel_stand_first(scene: Scene) -> None:
    run = await scene.run("SLEEPING", "never", waiting="[]")
    await scene.sql("update kagzi.workflow_runs set cancel_requested_at = kagzi.now()")
    await scene.sql("update kagzi.namespaces set enabled = false")
    assert (await scene.codes(run))[:2] == ["NAMESPACE_DISABLED", "CANCEL_REQUESTED"]
    # What a worker holds may finish.
    holder = await scene.worker(ServedType("order"))
    assert await scene.codes(await scene.run("RUNNING", "20 s", locked_by=holder)) == ["RUNNING"]


async def test_a_thousand_workers_are_asked_by_their_kinds(scene: Scene) -> None:
    many = (
        "insert into kagzi.workers (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes,"
        " concurrency, reported, status) select 'default', gen_random_uuid(), $1::text || n, 'default',"
        " array[$2::text], array[$3::text], array[''], 5, $4, $5 from generate_series(1, $6) n"
    )
    run = await scene.run(version="2")
    await scene.sql(many, "a", "other", "", 0, "ONLINE", 1_000)
    assert await scene.codes(run) == ["NO_WORKER_OF_TYPE"]
    assert (await scene.told(run)).reasons[0].sentence.startswith("200 or more workers serve the queue default")
    await scene.sql(many, "b", "order", "1", 0, "ONLINE", 200)
    assert await scene.codes(run) == ["NO_WORKER_OF_VERSION"]
    await scene.sql(many, "c", "order", "2", 0, "DRAINING", 200)
    assert await scene.codes(run) == ["WORKERS_DRAIN"]
    await scene.sql(many, "d", "order", "2", 5, "ONLINE", 99)
    full = await scene.worker(ServedType("order", "2"), concurrency=5)
    for _ in range(5):
        await scene.run("RUNNING", "1 h", locked_by=full)
    await scene.sql("update kagzi.workers set reported = 5 where worker_id = $1", full)
    # Counted are the leases on record; nobody but the last one holds any.
    assert await scene.codes(run) == ["DUE"]
    await scene.sql(
        "insert into kagzi.workflow_runs"
        " (namespace, run_id, task_queue, workflow_type, status, available_at, locked_by, claim_token)"
        " select 'default', gen_random_uuid(), 'default', 'order', 'RUNNING', kagzi.now() + interval '1 h',"
        " w.worker_id, gen_random_uuid()"
        " from kagzi.workers w cross join generate_series(1, 5) where w.instance like 'd%'"
    )
    assert await scene.codes(run) == ["WORKERS_FULL"]
    assert "none of 100 that were looked at has a free slot" in (await scene.told(run)).reasons[0].sentence
