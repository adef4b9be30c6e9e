"""What the statements of claims, leases, schedules and upkeep promise by themselves, beside `test_guards.py`: what is
not theirs they neither take nor change, and it takes no place from what is.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asyncpg.connection import Connection

from tests.database import Databases
from tests.store import given
from tests.store.given import new_id
from tests.store.statements import STATEMENTS, look, run


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One for all: what a test looks at is its own."""
    url = databases.create()
    yield url
    databases.drop(url)


async def worker(connection: Connection, status: str, heard: timedelta = timedelta()) -> str:
    worker_id = new_id()
    await connection.execute(
        "insert into kagzi.workers (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes,"
        " status, last_heartbeat_at) values ('default', $1::uuid, $1::text, 'q', '{}', '{}', '{}', $2,"
        " kagzi.now() - $3::interval)",
        worker_id,
        status,
        heard,
    )
    return worker_id


async def claim(connection: Connection, queue: str, **values: Any) -> list[str]:
    """Claims one run."""
    asked = {"types": ["t"], "versions": [""], "suspects": False, "expired_too": True, "homes": [], "count": 1}
    asked |= {"tokens": [new_id()], "worker_ids": [new_id()], "poison_error": "{}", "poison_at": 5}
    asked |= {"lease": timedelta(seconds=30), "hold": timedelta(hours=1), "task_queue": queue}
    return [str(row["run_id"]) for row in await run(connection, "claims.claim", **asked | values)]


UNCLAIMABLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "not due": ("PENDING", "1 hour", {}),
    "held": ("RUNNING", "1 hour", {}),
    "held, and nobody may take what ran out": ("RUNNING", "-1 hour", {}),
    "a schedule": ("SCHEDULED", "-1 hour", {}),
    "kept by a worker that is there": ("SLEEPING", "-1 s", {"kept_by": "ONLINE"}),
}


@pytest.mark.parametrize("priority", [0, 4])
@pytest.mark.parametrize("case", UNCLAIMABLE)
async def test_what_cannot_be_claimed_takes_no_place_from_what_can(
    connection: Connection, case: str, priority: int
) -> None:
    status, due, columns = UNCLAIMABLE[case]
    queue = new_id()
    kept = {name: await worker(connection, value) for name, value in columns.items()}
    await given.run(connection, status, due, task_queue=queue, workflow_type="t", priority=priority, **kept)
    claimable = await given.run(connection, "PENDING", "-1 s", task_queue=queue, workflow_type="t", priority=0)
    asked = {"expired_too": False, "count": 2, "tokens": [new_id(), new_id()], "worker_ids": [new_id(), new_id()]}
    assert await claim(connection, queue, **asked if priority == 0 else {"expired_too": False}) == [claimable]
    assert (await look(connection, "workflow_runs", "run_id", claimable))["crashes"] == 0
    assert await claim(connection, queue, expired_too=False) == []


async def test_what_is_to_come_does_not_step_in_for_what_somebody_else_takes(
    connection: Connection, other: Connection
) -> None:
    queue = new_id()
    due = await given.run(connection, "PENDING", "-1 s", task_queue=queue, workflow_type="t")
    await given.run(connection, "PENDING", "1 hour", task_queue=queue, workflow_type="t")
    async with other.transaction():
        await other.execute("select from kagzi.workflow_runs where run_id = $1 for no key update", due)
        assert await claim(connection, queue) == []
    assert await claim(connection, queue) == [due]


async def test_a_run_whose_keeper_is_gone_is_anybodys(connection: Connection) -> None:
    queue, gone = new_id(), await worker(connection, "OFFLINE")
    kept = await given.run(connection, "SLEEPING", "-1 s", task_queue=queue, workflow_type="t", kept_by=gone)
    assert await claim(connection, queue) == [kept]


async def test_who_lost_a_run_is_not_told_that_it_is_cancelled(connection: Connection) -> None:
    run_id = await given.run(connection, "RUNNING", "1 hour")
    await connection.execute(
        "update kagzi.workflow_runs set cancel_requested_at = kagzi.now() where run_id = $1", run_id
    )
    [row] = await run(connection, "workers.renew", run_ids=[run_id], tokens=[new_id()], lease_ms=30_000)
    assert (row["verdict"], row["cancelled"]) == ("LOST", False)


async def test_only_what_is_parked_asleep_is_released_by_new_code(connection: Connection) -> None:
    queue = new_id()
    columns = {"task_queue": queue, "workflow_type": "t", "parked_hash": "old"}
    pending = await given.run(connection, "PENDING", "1 hour", **columns)
    parked = await given.run(connection, "SLEEPING", "never", **columns)
    served = {"types": ["t"], "type_versions": [""], "type_hashes": ["new"], "task_queue": queue, "most": 9}
    await run(connection, "workers.release_parked", **served)
    assert (await look(connection, "workflow_runs", "run_id", pending))["parked_hash"] == "old"
    assert (await look(connection, "workflow_runs", "run_id", parked))["parked_hash"] is None


async def test_a_worker_that_is_gone_is_neither_silenced_nor_drained(connection: Connection) -> None:
    worker_id = await worker(connection, "OFFLINE", timedelta(hours=1))
    assert await run(connection, "upkeep.silence", worker_ids=[worker_id], threshold=timedelta(minutes=1)) == []
    assert await run(connection, "workers.drain", worker_id=worker_id) == []


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "SCHEDULED"])
async def test_only_what_lives_is_late(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, status)
    await connection.execute(
        "update kagzi.workflow_runs set deadline_at = kagzi.now() - interval '1 hour' where run_id = $1", run_id
    )
    assert await run(connection, "upkeep.lock_late", run_ids=[run_id], grace=timedelta(seconds=1)) == []


async def test_a_run_that_is_due_is_no_schedule_to_fire(connection: Connection) -> None:
    run_id = await given.run(connection, "PENDING", "-1 s")
    assert await run(connection, "firing.lock", run_ids=[run_id]) == []
    again = {"errors": ["e"], "again": timedelta(minutes=5)}
    assert await run(connection, "firing.mark", run_ids=[run_id], **again) == []
    template = await given.run(connection, "SCHEDULED", "1 hour")
    assert await run(connection, "firing.lock", run_ids=[template]) == []
    assert await run(connection, "firing.mark", run_ids=[template], **again) == []


async def test_a_schedule_that_was_paused_is_not_moved_on(connection: Connection) -> None:
    template = await given.run(connection, "PAUSED")
    before = await look(connection, "workflow_runs", "run_id", template)
    moved = {"slots": [None], "pauses": ["finished"], "started": [1], "last_slots": [None], "notices": [None]}
    await run(connection, "firing.move_on", run_ids=[template], available_ats=[None], **moved)
    assert await look(connection, "workflow_runs", "run_id", template) == before


async def test_a_run_is_neither_changed_noted_on_nor_deleted_as_a_schedule(connection: Connection) -> None:
    run_id = await given.run(connection, "PENDING", "1 hour")
    before = await look(connection, "workflow_runs", "run_id", run_id)
    values: dict[str, Any] = dict.fromkeys(STATEMENTS["schedules", "save"].parameters)
    values |= {"run_id": run_id, "status": "SCHEDULED", "task_queue": "other", "workflow_type": "t", "version": ""}
    values |= {"priority": 2, "available_at": before["available_at"], "new_input": False}
    del values["namespace"]
    await run(connection, "schedules.save", **values)
    await run(connection, "launches.note", run_id=run_id, notice="no id")
    await run(connection, "schedules.delete", run_id=run_id)
    assert await look(connection, "workflow_runs", "run_id", run_id) == before


async def test_a_schedule_id_names_one_schedule(connection: Connection) -> None:
    name = new_id()
    values: dict[str, Any] = dict.fromkeys(STATEMENTS["schedules", "create"].parameters)
    values |= {"schedule_id": name, "status": "PAUSED", "task_queue": "q", "workflow_type": "t", "version": ""}
    values |= {"priority": 2, "labels": "{}", "timezone": "UTC", "overlap": "allow", "words": "", "max_catchup": 1}
    del values["namespace"]
    assert len(await run(connection, "schedules.create", **values | {"run_id": new_id()})) == 1
    assert await run(connection, "schedules.create", **values | {"run_id": new_id()}) == []


async def test_a_run_is_forked_once_under_one_id(connection: Connection) -> None:
    source, new_run_id = await given.run(connection, "FAILED"), new_id()
    values = {"take": False, "cancelled": False, "changed_bytes": 0, "changed": False}
    forked = {"run_id": source, "new_run_id": new_run_id, "input": None, "input_encoding": None, **values}
    assert len(await run(connection, "forks.store", **forked)) == 1
    assert await run(connection, "forks.store", **forked) == []


async def test_an_automation_that_is_known_is_introduced_no_more(connection: Connection) -> None:
    name = new_id()
    for queue in ("first", "second"):
        await run(connection, "deployments.introduce", name=name, task_queue=queue)
    assert (await look(connection, "automations", "name", name))["task_queue"] == "first"


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_what_has_ended_follows_no_deployment(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, status, task_queue="old")
    await run(connection, "deployments.follow", run_id=run_id, task_queue="new", gone=False)
    assert (await look(connection, "workflow_runs", "run_id", run_id))["task_queue"] == "old"


async def test_what_a_run_has_reserved_is_not_skipped_with_its_consumer(connection: Connection) -> None:
    name = new_id()
    await connection.execute(
        "insert into kagzi.handlers (namespace, automation, name, kind, removed_at)"
        " values ('default', $1, 'add', 'CONSUMER', kagzi.now())",
        name,
    )
    await connection.execute(
        "insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, run_id, arrival,"
        " published_at) values ('default', $1, 'add', 'mail', $1, 'RESERVED', $2, 1, kagzi.now())",
        name,
        new_id(),
    )
    await run(connection, "deployments.skip_undelivered", name=name)
    assert (await look(connection, "deliveries", "automation", name))["status"] == "RESERVED"
