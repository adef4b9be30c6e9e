"""What needs a person is named, and what does not is not."""

from __future__ import annotations

from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import (
    ATTENTION_BLOCKED_AUTOMATIONS,
    ATTENTION_BROKEN_SCHEDULES,
    ATTENTION_FAILED_RUNS,
    ATTENTION_PARKED_RUNS,
    ATTENTION_SILENT_WORKERS,
    ATTENTION_UNKNOWN_STEPS,
    ATTENTION_UNSERVED_RUNS,
)
from kagzi.store import workers
from kagzi.store.attention import attention
from kagzi.store.roster import ServedType
from tests.store import given


async def test_nothing_needs_attention_in_a_quiet_namespace(connection: Connection) -> None:
    await workers.register(
        connection, "default", instance="one", task_queue="default", types=[ServedType("order", "2")]
    )
    await given.run(connection)
    await given.run(connection, version="2")
    await given.run(connection, "COMPLETED", workflow_type="ship")
    await given.run(connection, "PENDING", "1 h", workflow_type="ship")
    await given.run(connection, "SLEEPING", "never", workflow_type="ship")
    assert await attention(connection, "default") == []


async def test_each_trouble_is_named_with_its_subjects(connection: Connection) -> None:
    registered = await workers.register(
        connection, "default", instance="one", task_queue="default", types=[ServedType("order")]
    )
    silent = await workers.register(
        connection, "default", instance="two", task_queue="default", types=[ServedType("order")]
    )
    await connection.execute("update kagzi.workers set status = 'OFFLINE' where instance = 'two'")
    gone = await workers.register(
        connection, "default", instance="three", task_queue="default", types=[ServedType("ship")]
    )
    await workers.deregister(connection, "default", gone.worker_id)

    parked = await given.run(connection, "SLEEPING", "never", parked_hash="h")
    doubtful = await given.run(connection, "SLEEPING", "never", waiting='[{"step": "pay", "doubt": true}]')
    await given.run(connection, "SLEEPING", "never", waiting='[{"step": "approve"}]')
    await connection.execute(
        "insert into kagzi.automations"
        " (namespace, name, definition_hash, task_queue, deployments, blocked_code, blocked_at)"
        " values ('default', 'inbox', '', 'default', '{}', 'DEFECT', kagzi.now()),"
        " ('default', 'fine', '', 'default', '{}', null, null)"
    )
    unserved = [
        await given.run(connection, due="-9 s", workflow_type="ship"),
        await given.run(connection, due="-8 s", version="3"),
        await given.run(connection, due="-7 s", task_queue="slow", priority=0, crashes=1),
    ]
    await given.run(connection, "SCHEDULED", external_id="nightly", schedule_error="no such zone")
    failed = await given.run(connection, "FAILED")
    repeated = await given.run(connection, "FAILED")
    await given.run(connection, "COMPLETED", retried_from=repeated)
    await given.run(connection, "RUNNING", "30 s", locked_by=registered.worker_id)

    found = await attention(connection, "default")
    assert [(one.code, one.count, list(one.subjects)) for one in found] == [
        (ATTENTION_UNKNOWN_STEPS, 1, [doubtful]),
        (ATTENTION_BLOCKED_AUTOMATIONS, 1, ["inbox"]),
        (ATTENTION_PARKED_RUNS, 1, [parked]),
        (ATTENTION_UNSERVED_RUNS, 3, unserved),
        (ATTENTION_BROKEN_SCHEDULES, 1, ["nightly"]),
        (ATTENTION_FAILED_RUNS, 1, [failed]),
        (ATTENTION_SILENT_WORKERS, 1, [silent.worker_id]),
    ]
    assert found[3].sentence.startswith("3 runs are due, and no worker serves")
    assert await attention(connection, "another") == []


async def test_a_few_subjects_stand_for_many(connection: Connection) -> None:
    for _ in range(12):
        await given.run(connection, "FAILED")
    [found] = await attention(connection, "default")
    assert (found.count, len(found.subjects)) == (12, 10)


async def test_a_count_stops_where_nobody_counts_on(connection: Connection) -> None:
    for _ in range(101):
        await given.run(connection, "FAILED")
    [found] = await attention(connection, "default")
    assert (found.count, found.sentence.startswith("100 or more runs failed")) == (100, True)


async def test_a_thousand_workers_of_one_deployment_hide_nobody_else(connection: Connection) -> None:
    await connection.execute(
        "insert into kagzi.workers"
        " (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes, status)"
        " select 'default', gen_random_uuid(), 'i' || n, 'default', array['order', 'last'], array['', n % 2 || ''],"
        " '{\"\", \"\"}', case when n = 7 then 'DRAINING' else 'ONLINE' end from generate_series(1, 1000) n"
    )
    await given.run(connection)
    await given.run(connection, workflow_type="last", version="1")
    unserved = await given.run(connection, workflow_type="last", version="2")
    [found] = await attention(connection, "default")
    assert (found.code, list(found.subjects)) == (ATTENTION_UNSERVED_RUNS, [unserved])


async def test_nobody_is_called_unserved_where_not_all_workers_were_seen(connection: Connection) -> None:
    await connection.execute(
        "insert into kagzi.workers"
        " (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes, status)"
        " select 'default', gen_random_uuid(), 'i' || n, 'queue', array['type-' || n], '{\"\"}', '{\"\"}', 'ONLINE'"
        " from generate_series(1, 120) n"
    )
    before = await given.run(connection, task_queue="nobody")
    await given.run(connection, task_queue="queue")
    await given.run(connection, task_queue="the-next")
    [found] = await attention(connection, "default")
    assert list(found.subjects) == [before]
