"""A bounded look finds what is wanted, in the order of every list, and says where to look on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.workflow_pb2 import WorkflowRun
from kagzi.store.searches import Key, Wanted, search
from tests.store import given

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


async def stored(connection: Connection, number: int, status: str = "COMPLETED", **columns: Any) -> str:
    """The run of one minute."""
    return await given.run(connection, status, "1 h", created_at=NOON + timedelta(minutes=number), **columns)


async def every(connection: Connection, wanted: Wanted, *, count: int, look_at: int) -> tuple[list[str], int]:
    """All that is found by looking on, and how many looks that took."""
    found: list[WorkflowRun] = []
    rest: Key | None = None
    for looks in range(1, 100):
        some, rest = await search(connection, "default", wanted, count=count, look_at=look_at, after=rest)
        assert len(some) <= count
        found += some
        if rest is None:
            return [run.run_id for run in found], looks
    raise AssertionError("it never ends")


async def test_every_run_is_found_once_newest_first(connection: Connection) -> None:
    runs = [await stored(connection, number) for number in range(10)]
    await given.run(connection, "SCHEDULED", external_id="a-template")
    assert await every(connection, Wanted(), count=3, look_at=100) == (runs[::-1], 4)
    assert await every(connection, Wanted(), count=100, look_at=4) == (runs[::-1], 3)
    span = Wanted(since=NOON + timedelta(minutes=2), until=NOON + timedelta(minutes=5))
    assert (await every(connection, span, count=2, look_at=100))[0] == runs[2:5][::-1]


@pytest.mark.parametrize("look_at", [3, 100])
async def test_a_rare_one_is_found_whatever_lies_before_it(connection: Connection, look_at: int) -> None:
    parent, schedule = given.new_id(), given.new_id()
    rare = {
        "failed": await stored(connection, 0, "FAILED"),
        "sleeping": await stored(connection, 1, "SLEEPING"),
        "labelled": await stored(connection, 2, labels='{"customer": "7", "region": "eu"}'),
        "child": await stored(connection, 3, parent_run_id=parent),
        "fired": await stored(connection, 4, schedule_id=schedule, scheduled_for=NOON),
        "typed": await stored(connection, 5, workflow_type="rare"),
        "queued": await stored(connection, 6, task_queue="rare"),
    }
    for number in range(7, 27):
        await stored(connection, number)
    wanted = {
        "failed": Wanted(statuses=["FAILED"]),
        "sleeping": Wanted(statuses=["SLEEPING", "RUNNING"]),
        "labelled": Wanted(labels='{"customer": "7"}'),
        "child": Wanted(parent_run_id=parent),
        "fired": Wanted(schedule_id=schedule),
        "typed": Wanted(workflow_type="rare"),
        "queued": Wanted(task_queue="rare"),
    }
    for name, which in wanted.items():
        assert (await every(connection, which, count=2, look_at=look_at))[0] == [rare[name]], name
    # What has an index of its own is found at the first look.
    for name in ("failed", "sleeping", "labelled", "child", "fired"):
        found, _ = await search(connection, "default", wanted[name], count=2, look_at=3)
        assert [run.run_id for run in found] == [rare[name]], name


async def test_filters_hold_together(connection: Connection) -> None:
    labels = '{"customer": "7"}'
    both = await stored(connection, 1, "FAILED", labels=labels, workflow_type="ship")
    await stored(connection, 2, "FAILED", labels=labels)
    await stored(connection, 3, labels=labels, workflow_type="ship")
    await stored(connection, 4, "FAILED", workflow_type="ship")
    wanted = Wanted(statuses=["FAILED"], workflow_type="ship", labels=labels)
    assert (await every(connection, wanted, count=5, look_at=100))[0] == [both]
    assert (await every(connection, wanted, count=5, look_at=2))[0] == [both]


async def test_many_active_ones_are_walked(connection: Connection) -> None:
    active = [await stored(connection, number, "PENDING") for number in range(9)]
    found, looks = await every(connection, Wanted(statuses=["PENDING"]), count=2, look_at=5)
    assert found == active[::-1]
    assert looks > 1
