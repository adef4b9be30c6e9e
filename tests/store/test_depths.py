"""Queue depth and workflow types: what is counted where, and that counting has a bound."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.admin_pb2 import QueueDepth
from kagzi.store import depths, workers
from kagzi.store.roster import ServedType
from tests.store import given


async def counted(connection: Connection, **filters: Any) -> dict[tuple[str, str], QueueDepth]:
    found = await depths.depth(connection, "default", most=100, **filters)
    return {(depth.task_queue, depth.workflow_type): depth for depth in found}


async def register(
    connection: Connection, instance: str, *types: ServedType, queue: str = "default"
) -> workers.Registered:
    return await workers.register(
        connection, "default", instance=instance, task_queue=queue, types=types, concurrency=4
    )


async def test_each_run_is_counted_once_by_what_it_waits_for(connection: Connection) -> None:
    oldest = await given.run(connection, "SLEEPING", "-90 s", priority=0, version="2")
    await given.run(connection, "PENDING", "-5 s", priority=4)
    await given.run(connection, "PENDING", "-5 s", crashes=1)
    await given.run(connection, "PENDING", "1 h")
    await given.run(connection, "RUNNING", "30 s")
    await given.run(connection, "RUNNING", "-600 s")
    await given.run(connection, "SLEEPING", "1 h")
    await given.run(connection, "SLEEPING", "never")
    await given.run(connection, "COMPLETED")
    await given.run(connection, "SCHEDULED", external_id="nightly")
    await given.run(connection, "PENDING", namespace="another")
    [depth] = (await counted(connection)).values()
    assert (depth.pending_due, depth.pending_later, depth.running, depth.sleeping) == (3, 1, 2, 2)
    assert depth.oldest_run_id == oldest
    assert 89_000 < depth.oldest_due_ms < 150_000
    assert (depth.workers, depth.free_slots) == (0, 0)


async def test_a_total_counts_each_run_of_every_queue_once(connection: Connection) -> None:
    for queue in ("default", "slow"):
        await given.run(connection, "SLEEPING", "-90 s", priority=0, version="2", task_queue=queue)
        await given.run(connection, "PENDING", "-5 s", workflow_type="ship", task_queue=queue)
        await given.run(connection, "PENDING", "1 h", task_queue=queue)
        await given.run(connection, "RUNNING", "30 s", task_queue=queue)
        await given.run(connection, "RUNNING", "-600 s", task_queue=queue)
        await given.run(connection, "SLEEPING", "never", task_queue=queue)
    await given.run(connection, "COMPLETED")
    await given.run(connection, "SCHEDULED", external_id="nightly")
    await given.run(connection, "PENDING", namespace="another")
    total = await depths.total(connection, "default")
    assert (total.pending_due, total.running, total.sleeping) == (4, 4, 2)
    assert 89_000 < total.oldest_due_ms < 150_000
    assert await depths.total(connection, "nowhere") == depths.Total(0, 0, 0, 0)


async def test_a_pair_is_shown_where_something_is_or_an_online_worker_serves(connection: Connection) -> None:
    await given.run(connection, workflow_type="order")
    busy = await register(connection, "one", ServedType("order"), ServedType("ship"))
    await register(connection, "two", ServedType("ship"))
    gone = await register(connection, "gone", ServedType("bill"), queue="slow")
    await workers.deregister(connection, "default", gone.worker_id)
    await given.run(connection, "RUNNING", "30 s", locked_by=busy.worker_id)
    found = await counted(connection)
    assert {pair: (depth.workers, depth.free_slots) for pair, depth in found.items()} == {
        ("default", "order"): (1, 3),
        ("default", "ship"): (2, 7),
    }
    assert list(await counted(connection, workflow_type="ship")) == [("default", "ship")]
    assert await counted(connection, task_queue="slow") == {}


async def test_pairs_are_paged_by_queue_and_type(connection: Connection) -> None:
    pairs = [(queue, name) for queue in ("a", "b", "c") for name in ("x", "y")]
    for queue, name in pairs:
        await given.run(connection, task_queue=queue, workflow_type=name)
    seen: list[tuple[str, str]] = []
    while page := await depths.depth(connection, "default", most=4, after=seen[-1] if seen else ("", "")):
        seen += [(depth.task_queue, depth.workflow_type) for depth in page]
    assert seen == pairs


async def test_counts_stop_and_what_is_not_due_never_hides_what_is(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depths, "MOST", 5)
    monkeypatch.setattr(depths, "_LATER", 15)
    for number in range(20):
        await given.run(connection, "SLEEPING", f"{number + 10} s", priority=4)
    for _ in range(3):
        await given.run(connection, "PENDING", "-1 s", priority=0)
    [depth] = (await counted(connection)).values()
    assert (depth.pending_due, depth.sleeping) == (3, 5)
    for _ in range(3):
        await given.run(connection, "PENDING", "-1 s", priority=1)
    [depth] = (await counted(connection)).values()
    assert depth.pending_due == 5


async def test_the_cost_of_a_count_does_not_grow_with_what_is_stored(connection: Connection) -> None:
    async def buffers() -> int:
        query = depths._depth
        values = dict.fromkeys(("task_queue", "workflow_type", "after_queue", "after_type"), "")
        limits = {"most": 50, "most_due": 50, "most_later": 150}
        given_values = [{"namespace": "default", **values, **limits}[name] for name in query.parameters]
        plan = json.loads(
            await connection.fetchval(f"explain (analyze, buffers, format json) {query.text}", *given_values)
        )
        read: int = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
        return read

    async def fill(count: int) -> None:
        await connection.execute(
            """insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, priority,
                                                available_at)
               select 'default', gen_random_uuid(), 'default', 'type-' || number % 3, 'PENDING', number % 5,
                      kagzi.now() + interval '1 s' * (number % 2000 - 1000)
               from generate_series(1, $1::integer) as number""",
            count,
        )
        await connection.execute("analyze kagzi.workflow_runs")

    await fill(10_000)
    small = await buffers()
    await fill(30_000)
    assert await buffers() < 1.3 * small


async def test_types_are_shown_with_every_form_that_workers_have(connection: Connection) -> None:
    first = await register(connection, "one", ServedType("order", "", "h1"), ServedType("bill", "", "h9"))
    await register(connection, "two", ServedType("order", "", "h2"))
    await register(connection, "three", ServedType("order", "", "h2"))
    await register(connection, "slow", ServedType("order", "7", "h1"), queue="slow")
    await workers.deregister(connection, "default", first.worker_id)
    found = await depths.types(connection, "default", most=10)
    shown = {
        (one.workflow_type, one.task_queue): (
            one.workers,
            [(form.version, form.definition_hash, form.workers) for form in one.definitions],
        )
        for one in found
    }
    assert list(shown.items()) == [
        (("bill", "default"), (0, [("", "h9", 0)])),
        (("order", "default"), (2, [("", "h2", 2), ("", "h1", 0)])),
        (("order", "slow"), (1, [("7", "h1", 1)])),
    ]
    rest = await depths.types(connection, "default", most=10, after=("order", "default"))
    assert [one.task_queue for one in rest] == ["slow"]
    assert [one.task_queue for one in await depths.types(connection, "default", most=10, task_queue="slow")] == ["slow"]


async def test_types_of_who_is_here_are_found_however_many_left_since(connection: Connection) -> None:
    await register(connection, "here", ServedType("order", "", "h1"))
    for number in range(4):
        gone = await register(connection, f"gone-{number}", ServedType(f"old-{number}", "", "h"))
        await workers.deregister(connection, "default", gone.worker_id)
    found = await depths.types(connection, "default", most=10, look_at=2)
    assert [one.workflow_type for one in found] == ["old-2", "old-3", "order"]
