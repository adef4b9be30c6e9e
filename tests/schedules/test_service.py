"""The service of schedules: creating, showing, changing and removing them, by hand runs and past slots, and what it
refuses. A refused request writes nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kagzi.protocol.v1 import schedule_pb2 as pb
from kagzi.protocol.v1.common_pb2 import PAUSED, PENDING, RUNNING, SCHEDULED, ErrorDetail, RetryPolicy
from kagzi.store import launches
from tests.laws import operations
from tests.laws.operations import TYPE, new_id
from tests.schedules.calendar import NOON, Calendar, cron, every, payload, refused, shown, times

INVALID = ErrorDetail.INVALID_ARGUMENT


async def test_a_schedule_is_shown_as_it_was_created(calendar: Calendar) -> None:
    request = calendar.request(
        template_run_id=new_id(),
        timing=cron("0 2 * * *"),
        timezone="Europe/Berlin",
        jitter_ms=500,
        max_runs=9,
        overlap=pb.OVERLAP_SKIP,
        max_catchup=3,
        version="2",
        priority=0,
        timeout_ms=60_000,
        retry=RetryPolicy(maximum_attempts=3),
        labels={"team": "a"},
        input=payload("7"),
    )
    request.start_at.FromDatetime(NOON)
    request.end_at.FromDatetime(NOON + timedelta(days=30))
    answer = (await calendar.api.CreateSchedule(request, None)).schedule  # type: ignore[arg-type]  # not looked at
    shown_ = await calendar.get()
    assert shown_.input == request.input
    shown_.ClearField("input")
    assert answer == shown_
    for field in (
        *("schedule_id", "template_run_id", "timing", "timezone", "start_at", "end_at", "jitter_ms", "max_runs"),
        *("overlap", "max_catchup", "workflow_type", "task_queue", "version", "priority", "timeout_ms", "labels"),
    ):
        assert getattr(shown_, field) == getattr(request, field), field
    assert shown_.retry.maximum_attempts == 3
    assert (shown_.namespace, shown_.status, shown_.runs_started) == ("default", SCHEDULED, 0)
    assert times(shown_.next_slot) == ["2026-06-02 00:00:00"]
    assert "Berlin" in shown_.words
    assert times(shown_.created_at, shown_.updated_at) == ["12:00:00", "12:00:00"]


async def test_defaults_are_those_of_the_contract(calendar: Calendar) -> None:
    request = pb.CreateScheduleRequest(schedule_id="bare", workflow_type=TYPE, timing=cron("@daily"))
    made = (await calendar.api.CreateSchedule(request, None)).schedule  # type: ignore[arg-type]  # not looked at
    assert (made.task_queue, made.timezone, made.priority, made.max_catchup) == ("default", "UTC", 2, 100)
    assert (made.overlap, made.max_runs, made.jitter_ms) == (pb.OVERLAP_ALLOW, 0, 0)
    assert not made.HasField("timeout_ms")
    assert not made.HasField("retry")


async def test_creating_twice_with_one_template_id_is_one_schedule(calendar: Calendar) -> None:
    request = calendar.request(template_run_id=new_id())
    first = (await calendar.api.CreateSchedule(request, None)).schedule  # type: ignore[arg-type]  # not looked at
    await calendar.go(hours=1)
    again = (await calendar.api.CreateSchedule(request, None)).schedule  # type: ignore[arg-type]  # not looked at
    assert again.template_run_id == first.template_run_id
    assert again.runs_started == 1


async def test_a_schedule_in_words_is_stored_as_what_they_mean(calendar: Calendar) -> None:
    often = await calendar.create(timing=pb.ScheduleTiming(text="every 90 minutes"))
    assert (often.timing, times(often.next_slot)) == (every(minutes=90), ["13:30:00"])
    weekly = await calendar.create(
        "weekly", timing=pb.ScheduleTiming(text="every friday at 5pm"), timezone="Asia/Tokyo"
    )
    assert (weekly.timing, times(weekly.next_slot)) == (cron("0 17 * * 5"), ["2026-06-05 08:00:00"])
    for made in (often, weekly):
        read_back = await calendar.preview(proposal={"timing": {"text": made.words}}, count=1)
        assert read_back.fires[0].scheduled_for == made.next_slot
    named = await calendar.create("named", timing=pb.ScheduleTiming(text=weekly.words))
    assert named.timezone == "Asia/Tokyo"


async def test_lists_show_paused_schedules_too_page_by_page_and_by_filter(calendar: Calendar) -> None:
    for number in range(5):
        await calendar.create(f"s{number}", labels={"odd": str(number % 2)}, paused=number == 3)
    await calendar.create("other", workflow_type="shipping", task_queue="far")
    first = await calendar.listed(page_size=4)
    second = await calendar.listed(page_size=4, page_token=first.next_page_token)
    names = [one.schedule_id for page in (first, second) for one in page.schedules]
    assert names == ["other", "s0", "s1", "s2", "s3", "s4"]
    assert second.next_page_token == ""
    for filters, found in (
        ({"status": PAUSED}, ["s3"]),
        ({"status": SCHEDULED, "labels": {"odd": "1"}}, ["s1"]),
        ({"workflow_type": "shipping"}, ["other"]),
        ({"task_queue": "far"}, ["other"]),
        ({"broken": True}, []),
    ):
        listed: Any = await calendar.listed(**filters)
        assert [one.schedule_id for one in listed.schedules] == found
    with refused(INVALID, "status"):
        await calendar.listed(status=RUNNING)


async def test_slots_of_a_pause_are_skipped_when_it_ends(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=1)
    paused = await calendar.pause(reason="holiday")
    assert (paused.status, paused.pause, paused.pause_reason) == (PAUSED, pb.SCHEDULE_PAUSE_ASKED, "holiday")
    assert not paused.HasField("next_slot")
    assert await calendar.pause(reason="again") == paused
    await calendar.go(hours=3, minutes=30)
    resumed = await calendar.resume()
    assert (resumed.status, resumed.pause_reason) == (SCHEDULED, "")
    assert (await calendar.resume()).next_slot == resumed.next_slot
    await calendar.go(hours=1)
    assert await calendar.slots() == ["13:00:00", "17:00:00"]


async def test_a_schedule_may_be_created_paused(calendar: Calendar) -> None:
    made = await calendar.create(paused=True)
    assert (made.status, made.pause) == (PAUSED, pb.SCHEDULE_PAUSE_ASKED)
    await calendar.go(hours=2)
    assert await calendar.slots() == []
    assert times((await calendar.update(enabled=True)).next_slot) == ["15:00:00"]
    assert (await calendar.update(enabled=False)).status == PAUSED


async def test_what_is_used_up_cannot_be_resumed_until_it_is_changed(calendar: Calendar) -> None:
    await calendar.create(max_runs=1)
    await calendar.go(hours=2)
    with refused(ErrorDetail.PRECONDITION_FAILED) as said:
        await calendar.resume()
    assert "max_runs" in said.message
    assert (await calendar.update(max_runs=2)).status == PAUSED
    assert times((await calendar.resume()).next_slot) == ["15:00:00"]
    request = calendar.request("ends")
    request.end_at.FromDatetime(NOON + timedelta(hours=3, minutes=1))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    await calendar.go(hours=3)
    with refused(ErrorDetail.PRECONDITION_FAILED) as said:
        await calendar.resume("ends")
    assert "end_at" in said.message
    assert (await calendar.update("ends", clear=["end_at"], enabled=True)).status == SCHEDULED


async def test_a_change_of_times_takes_effect_from_now(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(minutes=30)
    assert times((await calendar.update(timing=cron("45 * * * *"))).next_slot) == ["12:45:00"]
    assert times((await calendar.update(timezone="Asia/Kathmandu")).next_slot) == ["13:00:00"]
    assert times((await calendar.update(timing=every(minutes=10))).next_slot) == ["12:40:00"]
    await calendar.go(minutes=25)
    assert await calendar.slots() == ["12:40:00", "12:50:00"]


async def test_another_jitter_or_end_drops_no_slot_that_has_come(calendar: Calendar) -> None:
    await calendar.create(jitter_ms=1_800_000, max_catchup=0)
    await calendar.skip(hours=1, seconds=1)
    far = {"seconds": int((NOON + timedelta(days=9)).timestamp())}
    kept = await calendar.update(end_at=far)
    assert times(kept.next_slot) == ["13:00:00"]
    hastened = await calendar.update(jitter_ms=0)
    assert times(hastened.next_slot, hastened.next_fire_at) == ["13:00:00", "13:00:01"]
    await calendar.fire()
    assert await calendar.slots() == ["13:00:00"]
    with refused(INVALID, "end_at"):
        await calendar.update(end_at={"seconds": int((NOON + timedelta(hours=2)).timestamp())})
    await calendar.skip(hours=1, minutes=1)
    await calendar.update(jitter_ms=5)
    await calendar.fire()
    assert await calendar.slots() == ["13:00:00"], "what was missed is missed"


async def test_a_late_slot_is_dropped_by_a_change_of_times(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.skip(hours=1, seconds=1)
    await calendar.update(timing=cron("30 * * * *"))
    await calendar.fire()
    assert await calendar.slots() == []


async def test_an_interval_that_is_set_again_goes_on_from_where_it_began(calendar: Calendar) -> None:
    made = await calendar.create(timing=every(hours=1))
    await calendar.go(minutes=20)
    assert (await calendar.update(timing=every(hours=1))).next_slot == made.next_slot
    moved = pb.UpdateScheduleRequest(schedule_id="nightly")
    moved.start_at.FromDatetime(NOON + timedelta(minutes=25))
    answer = await calendar.api.UpdateSchedule(moved, None)  # type: ignore[arg-type]  # it is not looked at
    assert times(answer.schedule.next_slot) == ["12:25:00"]


async def test_another_zone_moves_no_slot_of_an_interval(calendar: Calendar) -> None:
    made = await calendar.create(timing=every(hours=1))
    await calendar.go(minutes=20)
    moved = await calendar.update(timezone="Asia/Tokyo")
    assert (moved.next_slot, moved.words, moved.timezone) == (made.next_slot, made.words, "Asia/Tokyo")
    await calendar.skip(minutes=40, seconds=1)
    await calendar.update(timezone="Europe/Berlin")
    await calendar.fire()
    assert await calendar.slots() == ["13:00:00"]


async def test_an_interval_counts_from_what_its_words_say(calendar: Calendar) -> None:
    said = "every 2 hours counted from 2026-06-01 00:30 UTC"
    made = await calendar.create(timing=every(hours=2))
    changed = await calendar.update(timing=pb.ScheduleTiming(text=said))
    assert (times(changed.next_slot), changed.timing) == (["12:30:00"], made.timing)
    assert "00:30" in changed.words
    for same in (pb.ScheduleTiming(text="every 2 hours"), every(hours=2), pb.ScheduleTiming(text=changed.words)):
        again = await calendar.update(timing=same)
        assert (again.next_slot, again.words) == (changed.next_slot, changed.words)
    assert times((await calendar.update(timing=every(hours=3))).next_slot) == ["15:00:00"]


async def test_an_interval_without_its_first_moment_goes_on_as_it_was(calendar: Calendar) -> None:
    request = calendar.request(timing=every(hours=1))
    request.start_at.FromDatetime(NOON - timedelta(minutes=10))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    assert times((await calendar.update(clear=["start_at"])).next_slot) == ["12:50:00"]


async def test_any_field_may_be_changed_and_the_others_stay(calendar: Calendar) -> None:
    made = await calendar.create(input=payload("7"), timeout_ms=1_000, retry=RetryPolicy(maximum_attempts=2))
    await calendar.skip(minutes=1)
    changes: dict[str, Any] = {
        "jitter_ms": 10,
        "max_runs": 5,
        "overlap": pb.OVERLAP_SKIP,
        "max_catchup": 0,
        "workflow_type": "shipping",
        "task_queue": "far",
        "version": "3",
        "priority": 4,
        "timeout_ms": 5_000,
    }
    for name, value in changes.items():
        assert getattr(await calendar.update(**{name: value}), name) == value
    labelled = await calendar.update(labels=pb.ScheduleLabels(labels={"a": "b"}), retry=RetryPolicy(maximum_attempts=7))
    assert (dict(labelled.labels), labelled.retry.maximum_attempts) == ({"a": "b"}, 7)
    assert {name: getattr(labelled, name) for name in changes} == changes
    assert labelled.timing == made.timing
    assert times(labelled.updated_at) == ["12:01:00"]
    assert (await calendar.get()).input == payload("7")
    await calendar.update(input=payload("8"))
    assert (await calendar.get()).input == payload("8")
    bare = await calendar.update(clear=["timeout_ms", "retry", "input"], labels=pb.ScheduleLabels())
    assert not bare.HasField("timeout_ms")
    assert not bare.HasField("retry")
    assert not bare.labels
    assert not (await calendar.get()).HasField("input")
    await calendar.go(hours=1)
    [run] = await calendar.runs()
    assert (run["workflow_type"], run["task_queue"], run["version"], run["priority"]) == ("shipping", "far", "3", 4)


async def test_a_limit_below_what_was_started_ends_the_schedule(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=2)
    after = await calendar.update(max_runs=2)
    assert (after.status, after.pause) == (PAUSED, pb.SCHEDULE_PAUSE_RUN_LIMIT)


async def test_a_deleted_schedule_leaves_its_runs_and_their_history(calendar: Calendar) -> None:
    made = await calendar.create()
    await calendar.go(hours=3)
    run = (await calendar.due())[0]
    with refused(ErrorDetail.NOT_FOUND, "template_run_id"):
        await calendar.delete(template_run_id=new_id())
    assert await calendar.delete(template_run_id=made.template_run_id) == made.template_run_id
    with refused(ErrorDetail.NOT_FOUND, "schedule_id"):
        await calendar.get()
    await calendar.go(hours=3)
    history = await calendar.history(template_run_id=made.template_run_id)
    assert times(*(one.scheduled_for for one in history.runs)) == ["15:00:00", "14:00:00", "13:00:00"]
    assert {one.schedule for one in history.runs} == {""}
    await calendar.end(run)
    assert await calendar.count("workflow_payloads") == 3
    again = await calendar.create()
    assert again.template_run_id != made.template_run_id
    assert (await calendar.history(schedule_id="nightly")).runs == []


async def test_history_shows_the_runs_of_a_schedule_alone_newest_first(calendar: Calendar) -> None:
    made = await calendar.create()
    await calendar.create("other")
    await calendar.go(hours=5)
    await calendar.trigger()
    first = await calendar.history(schedule_id="nightly", page_size=4)
    second = await calendar.history(schedule_id="nightly", page_size=4, page_token=first.next_page_token)
    runs = [*first.runs, *second.runs]
    assert [shown(one.scheduled_for.ToDatetime(UTC)) for one in runs[1:]] == [
        f"{hour}:00:00" for hour in range(17, 12, -1)
    ]
    assert not runs[0].HasField("scheduled_for")
    assert {(one.schedule_id, one.schedule) for one in runs} == {(made.template_run_id, "nightly")}
    assert (await calendar.history(schedule_id="nightly", statuses=[RUNNING])).runs == []
    assert len((await calendar.history(schedule_id="nightly", statuses=[PENDING])).runs) == 6


async def test_a_trigger_starts_one_run_now_however_often_it_is_sent(calendar: Calendar) -> None:
    await calendar.create(input=payload("7"), paused=True)
    run_id = new_id()
    for _ in range(2):
        answer = await calendar.trigger(run_id=run_id, input=payload("8"))
        assert (answer.run_id, answer.status, answer.skipped) == (run_id, PENDING, False)
    [row] = await calendar.runs()
    assert (row["scheduled_for"], row["external_id"], row["available_at"]) == (None, None, NOON)
    other = (await calendar.trigger()).run_id
    inputs = await calendar.connection.fetch(
        "select run_id::text, input from kagzi.workflow_payloads where run_id = any ($1::uuid[])", [run_id, other]
    )
    assert {row["run_id"]: row["input"] for row in inputs} == {run_id: b"8", other: b"7"}
    assert (await calendar.get()).runs_started == 0
    foreign = await calendar.start()
    with refused(ErrorDetail.CONFLICT, "run_id"):
        await calendar.trigger(run_id=foreign)


async def test_a_backfill_starts_the_runs_of_past_slots_that_have_none(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=2)
    since = NOON - timedelta(hours=3)
    counted = await calendar.backfill(since, dry_run=True)
    assert (counted.started, counted.already_exist, counted.total) == (4, 1, 5)
    assert [slot.run_id != "" for slot in counted.slots] == [False, False, False, False, True]
    assert len(await calendar.runs()) == 2
    done = await calendar.backfill(since, NOON + timedelta(hours=9))
    assert (done.started, done.already_exist, done.total) == (4, 1, 5)
    assert times(*(slot.scheduled_for for slot in done.slots)) == [f"{hour:02}:00:00" for hour in range(9, 14)]
    again = await calendar.backfill(since)
    assert (again.started, again.already_exist) == (0, 5)
    assert [slot.run_id for slot in again.slots] == [slot.run_id for slot in done.slots]
    assert len(await calendar.runs()) == 6
    after = await calendar.get()
    assert (after.runs_started, times(after.last_slot)) == (2, ["14:00:00"])


async def test_a_slot_whose_run_continued_as_new_has_the_run_it_became(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=1)
    goes_on = operations.continue_as_new(await calendar.take())
    await calendar.flush(goes_on)
    await calendar.skip(minutes=5)
    counted = await calendar.backfill(NOON + timedelta(minutes=1))
    assert [(slot.run_id, slot.already_exists) for slot in counted.slots] == [(goes_on.body.new_run_id, True)]
    made = await calendar.get()
    slots = [NOON + timedelta(hours=1)]
    found = await launches._slots.fetch(
        calendar.connection, namespace="default", template_ids=[made.template_run_id], slots=slots
    )
    assert [str(row["run_id"]) for row in found] == [goes_on.body.new_run_id]


async def test_a_long_backfill_goes_on_where_it_ended(calendar: Calendar) -> None:
    await calendar.create(timing=every(minutes=1))
    first = await calendar.backfill(NOON - timedelta(minutes=1_500), dry_run=True)
    assert (len(first.slots), first.total) == (1_000, 1_500)
    rest = await calendar.backfill(first.continue_from.ToDatetime(UTC), dry_run=True)
    assert (len(rest.slots), rest.total, rest.HasField("continue_from")) == (500, 500, False)
    far = await calendar.backfill(NOON - timedelta(days=400), dry_run=True)
    assert far.total == 100_000


async def test_a_backfilled_slot_does_not_fire_again(calendar: Calendar) -> None:
    for name, overlap in (("a", pb.OVERLAP_ALLOW), ("b", pb.OVERLAP_QUEUE_ONE)):
        await calendar.create(name, overlap=overlap)
    await calendar.skip(hours=2, minutes=1)
    for name in ("a", "b"):
        await calendar.backfill(NOON, NOON + timedelta(hours=1, minutes=1), schedule_id=name)
    for run in await calendar.due():
        await calendar.end(run)
    await calendar.fire()
    for name in ("a", "b"):
        assert await calendar.slots(name) == ["12:00:00", "13:00:00", "14:00:00"]
        assert (await calendar.runs(name))[-1]["waits"] is False


async def test_a_backfill_may_run_one_after_another_oldest_first(calendar: Calendar) -> None:
    await calendar.create()
    await calendar.go(hours=1)
    under_way = await calendar.take()
    since = NOON - timedelta(hours=3)
    counted = await calendar.backfill(since, NOON, overlap=pb.OVERLAP_QUEUE_ALL, dry_run=True)
    assert (counted.started, counted.skipped, len(await calendar.runs())) == (3, 0, 1)
    await calendar.backfill(since, NOON - timedelta(hours=1), overlap=pb.OVERLAP_QUEUE_ALL)
    await calendar.backfill(since, NOON, overlap=pb.OVERLAP_QUEUE_ALL)
    assert [run["waits"] for run in await calendar.runs()] == [True, True, True, False]
    assert await calendar.due() == []
    begun = []
    for _ in range(3):
        await calendar.end(under_way)
        under_way = await calendar.take()
        begun.append(shown((await calendar.row(under_way.run_id))["scheduled_for"]))
    assert begun == ["09:00:00", "10:00:00", "11:00:00"]
    await calendar.end(under_way)


async def test_one_of_a_queue_that_is_cancelled_holds_nobody_up(calendar: Calendar) -> None:
    await calendar.create()
    filled = await calendar.backfill(NOON - timedelta(hours=4), overlap=pb.OVERLAP_QUEUE_ALL)
    first = await calendar.take()
    await calendar.flush(operations.cancel(filled.slots[1].run_id))
    assert await calendar.due() == []
    await calendar.end(first)
    assert (await calendar.take()).run_id == filled.slots[2].run_id


@pytest.mark.parametrize(
    ("policy", "kept"),
    [(pb.OVERLAP_SKIP, [-1]), (pb.OVERLAP_QUEUE_ONE, [-2, -1]), (pb.OVERLAP_CANCEL_PREVIOUS, [-1])],
)
async def test_under_other_policies_a_backfill_keeps_the_newest_that_fit(
    calendar: Calendar, policy: pb.ScheduleOverlap.ValueType, kept: list[int]
) -> None:
    await calendar.create(timing=every(minutes=1))
    since = NOON - timedelta(minutes=1_500)
    counted = await calendar.backfill(since, overlap=policy, dry_run=True)
    assert (counted.started, counted.skipped, counted.total) == (len(kept), 1_000 - len(kept), 1_500)
    assert not counted.HasField("continue_from")
    done = await calendar.backfill(since, overlap=policy)
    assert (done.started, done.skipped) == (counted.started, counted.skipped)
    assert await calendar.slots() == [shown(NOON + timedelta(minutes=minute)) for minute in kept]
    assert all(slot.skipped == (slot.run_id == "") for slot in done.slots)
    assert [slot.run_id for slot in done.slots if slot.run_id] == [str(run["run_id"]) for run in await calendar.runs()]


async def test_a_schedule_has_no_queue_without_end(calendar: Calendar) -> None:
    with refused(INVALID, "overlap"):
        await calendar.create(overlap=pb.OVERLAP_QUEUE_ALL)
    await calendar.create()
    with refused(INVALID, "overlap"):
        await calendar.update(overlap=pb.OVERLAP_QUEUE_ALL)
    with refused(INVALID, "overlap"):
        await calendar.trigger(overlap=pb.OVERLAP_QUEUE_ALL)
    with refused(INVALID, "overlap"):
        await calendar.backfill(NOON - timedelta(days=1), overlap=9)


async def test_a_preview_shows_the_next_slots_in_the_schedules_own_time(calendar: Calendar) -> None:
    await calendar.create(timing=cron("30 2 * * *"), timezone="Europe/Berlin", paused=True)
    after = pb.PreviewScheduleRequest().after
    after.FromDatetime(datetime(2026, 3, 28, 12, tzinfo=UTC))
    preview = await calendar.preview(schedule_id="nightly", count=2, after=after)
    assert [fire.local for fire in preview.fires] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert (preview.timing, preview.timezone) == (cron("30 2 * * *"), "Europe/Berlin")
    proposal = pb.PreviewScheduleRequest.Proposal(timing=every(minutes=5))
    proposal.end_at.FromDatetime(NOON + timedelta(minutes=12))
    short = await calendar.preview(proposal=proposal)
    assert times(*(fire.scheduled_for for fire in short.fires)) == ["12:05:00", "12:10:00"]
    assert len((await calendar.preview(proposal={"timing": cron("* * * * *")})).fires) == 10


BAD: list[tuple[str, dict[str, Any]]] = [
    ("timing.cron", {"timing": cron("0 0 30 2 *")}),
    ("timing.cron", {"timing": cron("whenever")}),
    ("timing.cron", {"timing": cron("61 * * * *")}),
    ("timing.every_ms", {"timing": pb.ScheduleTiming(every_ms=-5)}),
    ("timing.every_ms", {"timing": pb.ScheduleTiming(every_ms=0)}),
    ("timing.every_ms", {"timing": pb.ScheduleTiming(every_ms=999)}),
    ("timing.text", {"timing": pb.ScheduleTiming(text="when the moon is blue")}),
    ("timing", {"timing": None}),
    ("timing.text", {"timing": pb.ScheduleTiming(text="every day at 9am (Mars/Olympus)")}),
    ("timezone", {"timezone": "Mars/Olympus"}),
    ("timezone", {"timezone": "Mars/Olympus", "timing": every(hours=1)}),
    ("end_at", {"start_at": {"seconds": 4_000_000_000}, "end_at": {"seconds": 4_000_000_000}}),
    ("end_at", {"end_at": {"seconds": 1_000_000_000}}),
    ("jitter_ms", {"jitter_ms": -1}),
    ("max_catchup", {"max_catchup": -1}),
    ("max_runs", {"max_runs": -1}),
    ("priority", {"priority": 5}),
    ("overlap", {"overlap": 9}),
    ("schedule_id", {"schedule_id": "x" * 201}),
    ("schedule_id", {"schedule_id": ""}),
    ("workflow_type", {"workflow_type": ""}),
]


@pytest.mark.parametrize(("field", "given"), BAD, ids=lambda value: value if isinstance(value, str) else "")
async def test_what_makes_no_schedule_is_refused_by_name_and_nothing_is_written(
    calendar: Calendar, field: str, given: dict[str, Any]
) -> None:
    code = ErrorDetail.LIMIT_EXCEEDED if len(given.get("schedule_id", "")) > 200 else INVALID
    before = await calendar.contents()
    with refused(code, field):
        await calendar.create(**given)
    assert await calendar.contents() == before
    if field in ("schedule_id", "workflow_type") or given.get("timing", 1) is None:
        return
    await calendar.create()
    before = await calendar.contents()
    with refused(code, field):
        await calendar.update(**given)
    assert await calendar.contents() == before


async def test_an_id_that_is_taken_is_refused_and_nothing_is_written(calendar: Calendar) -> None:
    made = await calendar.create()
    run_id = await calendar.start()
    before = await calendar.contents()
    with refused(ErrorDetail.CONFLICT, "schedule_id"):
        await calendar.create()
    with refused(ErrorDetail.CONFLICT, "template_run_id"):
        await calendar.create("other", template_run_id=made.template_run_id)
    with refused(ErrorDetail.CONFLICT, "template_run_id"):
        await calendar.create("other", template_run_id=run_id)
    assert await calendar.contents() == before


async def test_the_id_of_a_run_is_not_that_of_a_schedule(calendar: Calendar) -> None:
    run_id = await calendar.start(external_id="order-1")
    before = await calendar.contents()
    for wrong in (run_id, "order-1"):
        for call in (calendar.get, calendar.pause, calendar.resume, calendar.delete, calendar.trigger, calendar.update):
            with refused(ErrorDetail.NOT_FOUND, "schedule_id") as said:
                await call(wrong)
            assert "is the id of a run" in said.message
        with refused(ErrorDetail.NOT_FOUND, "schedule_id"):
            await calendar.backfill(NOON - timedelta(days=1), schedule_id=wrong)
        with refused(ErrorDetail.NOT_FOUND, "schedule_id"):
            await calendar.preview(schedule_id=wrong)
        with refused(ErrorDetail.NOT_FOUND, "schedule_id"):
            await calendar.history(schedule_id=wrong)
    with refused(INVALID, "template_run_id"):
        await calendar.history(template_run_id=run_id)
    assert await calendar.contents() == before


async def test_a_change_that_contradicts_itself_is_refused(calendar: Calendar) -> None:
    request = calendar.request()
    request.start_at.FromDatetime(NOON + timedelta(days=9))
    await calendar.api.CreateSchedule(request, None)  # type: ignore[arg-type]  # it is not looked at
    before = await calendar.contents()
    for field, given in (
        ("clear", {"clear": ["schedule_id"]}),
        ("clear", {"clear": ["input"], "input": payload("7")}),
        ("end_at", {"end_at": {"seconds": int((NOON + timedelta(days=8)).timestamp())}}),
    ):
        changes: Any = given
        with refused(INVALID, field):
            await calendar.update(**changes)
    for since, until in ((NOON - timedelta(hours=1), NOON - timedelta(hours=1)), (NOON + timedelta(seconds=1), None)):
        with refused(INVALID, "since"):
            await calendar.backfill(since, until)
    with refused(INVALID, "template_run_id"):
        await calendar.history(schedule_id="nightly", template_run_id=new_id())
    assert await calendar.contents() == before


async def test_nothing_is_created_in_a_namespace_that_is_unknown_or_disabled(calendar: Calendar) -> None:
    with refused(ErrorDetail.NOT_FOUND, "namespace"):
        await calendar.create(namespace="nowhere")
    await calendar.create("there")
    await calendar.connection.execute("update kagzi.namespaces set enabled = false")
    with refused(ErrorDetail.PRECONDITION_FAILED, "namespace"):
        await calendar.create()
    with refused(ErrorDetail.PRECONDITION_FAILED, "namespace"):
        await calendar.trigger("there")
