"""What a change of a schedule leaves as it was, what it refuses, and what a backfill makes of one in between."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, ErrorDetail
from kagzi.sdk import schedule_request
from kagzi.sdk.errors import ConfigError
from tests.schedules.calendar import NOON, Calendar, refused, times

_STORED = "select interval, anchor_at from kagzi.workflow_runs where run_id = $1"


def seconds(**since_noon: float) -> dict[str, int]:
    return {"seconds": int((NOON + timedelta(**since_noon)).timestamp())}


async def test_a_paused_schedule_gets_no_end_that_has_passed(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.pause()
    before = await calendar.get()
    with refused(ErrorDetail.INVALID_ARGUMENT, "end_at") as said:
        await calendar.update(end_at=seconds(hours=-1))
    assert "lies in the past" in said.message
    assert await calendar.get() == before
    assert (await calendar.update(end_at=seconds(hours=5))).status == PAUSED
    # Said again when it has passed, it is no change.
    await calendar.skip(hours=6)
    assert (await calendar.update(end_at=seconds(hours=5), priority=3)).priority == 3


async def test_an_interval_finer_than_the_wire_survives_another_zone(calendar: Calendar) -> None:
    made = await calendar.create(timing=pb.ScheduleTiming(text="every 1.0005 seconds"))
    before = await calendar.connection.fetchrow(_STORED, made.template_run_id)
    assert before is not None
    assert before["interval"] == timedelta(seconds=1, microseconds=500)
    moved = await calendar.update(timezone="Asia/Tokyo")
    assert moved.timezone == "Asia/Tokyo"
    assert await calendar.connection.fetchrow(_STORED, made.template_run_id) == before
    await calendar.update(start_at=seconds(hours=2))
    after = await calendar.connection.fetchrow(_STORED, made.template_run_id)
    assert after is not None
    assert (after["interval"], after["anchor_at"]) == (before["interval"], NOON + timedelta(hours=2))


async def test_a_backfill_fills_the_slots_of_the_schedule_it_has_locked(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.skip(hours=2)
    change = "update kagzi.workflow_runs set cron_expr = '30 * * * *' where external_id = 'nightly'"
    async with calendar.connection.transaction():
        await calendar.connection.execute(change)
        backfill = asyncio.create_task(calendar.backfill(NOON, NOON + timedelta(hours=2)))
        # It has read the schedule as it was, and waits for the lock.
        await calendar.until("select count(*) > 0 from pg_locks where not granted")
    done = await backfill
    assert times(*(slot.scheduled_for for slot in done.slots)) == ["12:30:00", "13:30:00"]
    assert (done.started, done.total) == (2, 2)


@pytest.mark.parametrize("given", ["no", "yes", 0, 1, None])
def test_true_and_false_are_said_so(given: object) -> None:
    wrong: dict[str, object] = {"paused": given}
    with pytest.raises(ConfigError, match=f"paused={given!r} must be True or False"):
        schedule_request.create("default", "x", "order", None, None, every="1h", **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"enabled={given!r} must be True or False"):
        schedule_request.update("default", "x", "order", None, enabled=given)  # type: ignore[arg-type]
