"""A template is no run: nothing that lists, counts, finds, changes, claims or removes runs sees one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store import attention, claims, depths, forks, inspection, namespaces, runs, upkeep, watches
from kagzi.store.errors import Refused
from kagzi.store.operation import Operation, Outcome
from kagzi.store.upkeep import Outlived
from tests.laws import operations
from tests.laws.operations import NAMESPACE, Run, new_id
from tests.laws.world import SERVED
from tests.schedules.calendar import Calendar

LISTED: dict[str, Any] = {
    "statuses": None,
    "workflow_type": None,
    "task_queue": None,
    "labels": None,
    "since": None,
    "until": None,
    "parent_run_id": None,
    "schedule_id": None,
    "after_created_at": None,
    "after_run_id": None,
}


@pytest_asyncio.fixture
async def templates(calendar: Calendar) -> list[str]:
    """A template that is due, and one that is paused; there is nothing else."""
    due = await calendar.create(timeout_ms=1)
    paused = await calendar.create("paused", paused=True)
    await calendar.skip(hours=3)
    return [due.template_run_id, paused.template_run_id]


async def test_no_list_of_runs_shows_one(calendar: Calendar, templates: list[str]) -> None:
    assert await runs.list_(calendar.connection, NAMESPACE, 10, **LISTED) == []


async def test_no_look_at_a_run_finds_one(calendar: Calendar, templates: list[str]) -> None:
    for template in templates:
        with pytest.raises(Refused) as refused:
            await runs.get(calendar.connection, NAMESPACE, template)
        assert refused.value.detail.code == ErrorDetail.NOT_FOUND
        with pytest.raises(Refused):
            await inspection.require_run(calendar.connection, NAMESPACE, template)
    for schedule in ("nightly", "paused"):
        with pytest.raises(Refused) as refused:
            await runs.get_by_external_id(calendar.connection, NAMESPACE, schedule)
        assert refused.value.detail.code == ErrorDetail.NOT_FOUND


async def test_no_count_counts_one(calendar: Calendar, templates: list[str]) -> None:
    assert await depths.depth(calendar.connection, NAMESPACE, most=10) == []
    assert await attention.attention(calendar.connection, NAMESPACE) == []
    _, running = await namespaces.disable(calendar.connection, NAMESPACE)
    assert running == 0


@pytest.mark.parametrize("make", [operations.cancel, operations.terminate, operations.signal])
async def test_no_client_can_change_one_as_a_run(
    calendar: Calendar, templates: list[str], make: Callable[[str], Operation]
) -> None:
    before = await calendar.contents()
    for template in templates:
        answer = await calendar.ask(make(template))
        assert isinstance(answer, ErrorDetail)
        assert answer.code == ErrorDetail.NOT_FOUND
        with pytest.raises(Refused):
            await forks.retry(calendar.connection, NAMESPACE, template, new_id(), Outcome())
    assert await calendar.contents() == before


async def test_no_worker_can_write_for_one(calendar: Calendar, templates: list[str]) -> None:
    before = await calendar.contents()
    for template in templates:
        answer = await calendar.ask(operations.complete(Run(template, new_id())))
        assert isinstance(answer, ErrorDetail)
    assert await calendar.contents() == before


async def test_no_worker_is_given_one(calendar: Calendar, templates: list[str]) -> None:
    assert await calendar.claim(10) == []
    next_due = await claims.next_due(calendar.connection, SERVED)
    assert (next_due.due, next_due.at) == (False, None)


async def test_no_run_can_have_one_as_its_parent_or_take_its_id(calendar: Calendar, templates: list[str]) -> None:
    before = await calendar.contents()
    for template in templates:
        answer = await calendar.ask(operations.start(parent_run_id=template))
        assert isinstance(answer, ErrorDetail)
        assert (answer.code, answer.field) == (ErrorDetail.NOT_FOUND, "parent_run_id")
        answer = await calendar.ask(operations.start(run_id=template))
        assert isinstance(answer, ErrorDetail)
        assert answer.code == ErrorDetail.CONFLICT
        with pytest.raises(asyncpg.NoDataFoundError, match=f"there is no run {template} to be the parent"):
            await calendar.connection.execute(
                "select kagzi.start_workflow('child', namespace => $1, parent_run_id => $2)", NAMESPACE, template
            )
    assert await calendar.contents() == before


async def test_a_run_may_have_the_id_of_a_schedule_as_its_own(calendar: Calendar, templates: list[str]) -> None:
    run_id = await calendar.start(external_id="nightly")
    assert (await runs.get_by_external_id(calendar.connection, NAMESPACE, "nightly")).run_id == run_id
    assert (await calendar.get()).template_run_id == templates[0]


async def test_no_deadline_and_no_retention_touches_one(calendar: Calendar, templates: list[str]) -> None:
    await calendar.skip(days=4_000)
    before = await calendar.contents()
    connection = calendar.connection
    assert await upkeep.late(connection, timedelta(), 10) == {}
    assert await upkeep.next_deadline(connection) is None
    assert await upkeep.outlived(connection, timedelta(seconds=1)) == []
    for status in ("COMPLETED", "FAILED", "CANCELLED", "SCHEDULED", "PAUSED"):
        assert await upkeep.remove(connection, Outlived(NAMESPACE, status, 1), 10) == 0
    assert await calendar.contents() == before


async def test_nobody_waits_for_one(calendar: Calendar, templates: list[str]) -> None:
    assert await watches.ends(calendar.connection, NAMESPACE, templates, live=True) == []
