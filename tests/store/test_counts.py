"""What stands in the queues is kept as it was counted, and read without counting."""

from __future__ import annotations

from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import QueueDepth
from kagzi.store import counts
from tests.store import given


async def test_a_count_is_kept_and_replaced_whole(connection: Connection) -> None:
    oldest = given.new_id()
    first = [
        QueueDepth(task_queue="a", workflow_type="x", pending_due=3, oldest_due_ms=9, oldest_run_id=oldest, workers=1),
        QueueDepth(task_queue="b", workflow_type="y", running=2, sleeping=1, pending_later=4, free_slots=5),
    ]
    await counts.keep(connection, "default", first)
    await counts.keep(connection, "another", first[:1])
    found = await counts.read(connection, "default", most=10)
    assert all(each.HasField("counted_at") for each in found)
    for each in found:
        each.ClearField("counted_at")
    assert found == first
    await counts.keep(connection, "default", first[1:])
    assert [each.task_queue for each in await counts.read(connection, "default", most=10)] == ["b"]
    assert [each.task_queue for each in await counts.read(connection, "another", most=10)] == ["a"]


async def test_counts_come_in_pages_and_by_queue_and_type(connection: Connection) -> None:
    pairs = [("a", "x"), ("a", "y"), ("b", "x")]
    await counts.keep(connection, "default", [QueueDepth(task_queue=q, workflow_type=t) for q, t in pairs])
    first = await counts.read(connection, "default", most=2)
    rest = await counts.read(connection, "default", most=2, after=("a", "y"))
    assert [(each.task_queue, each.workflow_type) for each in (*first, *rest)] == pairs
    assert len(await counts.read(connection, "default", most=9, workflow_type="x")) == 2
    assert len(await counts.read(connection, "default", most=9, task_queue="b")) == 1


async def test_only_what_was_counted_lately_is_read_for_metrics(connection: Connection) -> None:
    await counts.keep(connection, "default", [QueueDepth(task_queue="a", workflow_type="x", pending_due=1)])
    await counts.keep(connection, "another", [QueueDepth(task_queue="b", workflow_type="y", pending_due=2)])
    since = timedelta(minutes=1)
    assert [row["namespace"] for row in await counts.everywhere(connection, since=since, most=9)] == [
        "another",
        "default",
    ]
    await connection.execute("update kagzi.queue_depths set counted_at = counted_at - interval '2 min'")
    assert await counts.everywhere(connection, since=since, most=9) == []
