"""What automations leave behind is removed when it was kept long enough, and never while anybody needs it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as workflow
from kagzi.server.clearance import Clearance
from kagzi.store import automations, clearance, events, inputs, upkeep
from kagzi.store.clearance import Kept
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Operation
from tests.automations.stage import MAIL, NAMESPACE, Held, Stage, consumer, event, producer

KEEP = timedelta(days=30)
KEPT = Kept(NAMESPACE, "inbox", KEEP)
LEFT = ("events", "deliveries", "event_causes", "inputs")


async def _clear(stage: Stage, *, keep: timedelta = KEEP, batch: int = 100) -> None:
    """A whole round of one server."""
    assert await Clearance(stage.database, keep, batch).clear(math.inf)


async def _remove(stage: Stage, status: str) -> int:
    """The removal of old runs."""
    old = upkeep.Outlived(NAMESPACE, status, 1)
    return await stage.transact(lambda c, _: upkeep.remove(c, old, 10))


async def _ids(stage: Stage, column: str = "event_id", table: str = "events") -> list[str]:
    rows = await stage.connection.fetch(f"select {column} as id from kagzi.{table} order by 1")  # noqa: S608 - ours
    return [str(row["id"]) for row in rows]


async def _counts(stage: Stage) -> list[int]:
    return [len(await _ids(stage, "automation", table)) for table in LEFT]


def _mail(number: int) -> pb.EventPublication:
    return event(f"m{number}", input=pb.InputKey(source="gmail", type="email", id=f"m{number}"))


async def _take(stage: Stage, **wanted: list[str]) -> None:
    """Each consumer takes these, in whatever order they run."""
    while wanted:
        held = await stage.claim()
        await stage.consume(held, *wanted.pop(held.task.handler, []))


async def _run_of(stage: Stage, handler: str) -> Held:
    """The next run of this handler; others that come before find nothing to do."""
    while (held := await stage.claim()).task.handler != handler:
        await stage.consume(held)
    return held


async def test_an_event_goes_with_all_of_its_own_when_it_was_done_for_long_enough(stage: Stage) -> None:
    await stage.deploy(consumer(publishes=["row"]), consumer("tell", ["row"]))
    await stage.publish(_mail(1), event("loose"))
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1", "loose")
    await stage.commit(held, event("r1", "row"))
    await stage.move(days=29)
    await _clear(stage)
    assert await _counts(stage) == [3, 3, 2, 1]
    await stage.move(days=31)
    await _clear(stage)
    # What `tell` has still to take stays, and with it where it came from.
    assert await _ids(stage) == ["r1"]
    assert await _counts(stage) == [1, 1, 1, 1]
    held = await _run_of(stage, "tell")
    await stage.consume(held, "r1", topic="row")
    await stage.move(days=60)
    await _clear(stage)
    assert await _counts(stage) == [1, 1, 1, 1], "counted from the end of its last delivery"
    await stage.move(days=62)
    await _clear(stage)
    assert await _counts(stage) == [0, 0, 0, 0]


async def test_an_event_that_nobody_subscribed_to_counts_from_its_publication(stage: Stage) -> None:
    await stage.deploy(producer(publishes=["lost"]))
    await stage.publish(event("x1", "lost", input=MAIL))
    await stage.move(days=31)
    await stage.publish(event("x2", "lost"))
    await _clear(stage)
    assert await _ids(stage) == ["x2"]
    assert await _counts(stage) == [1, 0, 0, 0]


async def test_what_is_published_again_and_again_is_never_forgotten_and_never_revived(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1"))
    await stage.consume(await stage.claim(), "m1")
    for day in range(20, 120, 20):
        await stage.move(days=day)
        assert (await stage.publish(event("m1"))).counts.updated == 1
        await _clear(stage)
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"
    # Who falls silent for longer is not remembered: the same id is another event then.
    await stage.move(days=131)
    await _clear(stage)
    assert (await stage.publish(event("m1"))).counts.created == 1
    assert (await stage.delivery("m1"))["status"] == "PENDING"


async def test_a_slow_a_paused_and_a_blocked_consumer_find_what_they_have_not_taken(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("slow"))
    await stage.publish(*(event(f"m{number}") for number in range(4)))
    held = await _run_of(stage, "add")
    await stage.consume(held, "m0", "m1", "m2", "m3")
    async with stage.paused():
        await stage.move(days=400)
        await _clear(stage)
        assert await _counts(stage) == [4, 8, 0, 0]
    held = await _run_of(stage, "slow")
    assert [one.event_id for one in (await stage.peek(held)).events] == ["m0", "m1", "m2", "m3"]
    await stage.consume(held, "m1")
    held = await _run_of(stage, "slow")
    await stage.fail(held, "DEFECT")
    assert (await stage.automation())["blocked_code"] == "DEFECT"
    await stage.move(days=800)
    await _clear(stage)
    assert await _ids(stage) == ["m0", "m2", "m3"]


async def test_a_consumer_added_since_keeps_what_is_published_for_it_and_a_removed_one_nothing(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("before"))
    await stage.consume(await stage.claim(), "before")
    await stage.deploy(consumer(), consumer("new"))
    await stage.publish(event("since"))
    held = await _run_of(stage, "add")
    await stage.consume(held, "since")
    await stage.move(days=31)
    await _clear(stage)
    assert await _ids(stage) == ["since"]
    await stage.deploy(consumer())
    await stage.move(days=60)
    await _clear(stage)
    assert await _ids(stage) == ["since"], "counted from the moment that it was skipped"
    await stage.move(days=62)
    await _clear(stage)
    assert await _ids(stage) == []
    assert await _ids(stage, "name", "handlers") == ["add"]


async def test_a_removed_handler_has_its_name_while_a_run_of_it_lives(stage: Stage) -> None:
    await stage.deploy(producer(publishes=["lost"]))
    held = await stage.claim(expect="poll")
    await stage.deploy(producer("other", publishes=["lost"]))
    await stage.move(days=31)
    await _clear(stage)
    assert await _ids(stage, "name", "handlers") == ["other", "poll"]
    await stage.commit(held)
    await _clear(stage)
    assert await _ids(stage, "name", "handlers") == ["other"]


async def test_a_removed_handler_has_its_name_while_a_delivery_of_it_is_left(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("gone"))
    await stage.publish(event("m1"))
    await stage.consume(await _run_of(stage, "gone"), "m1")
    await stage.deploy(consumer())
    await stage.move(days=31)
    await _clear(stage)
    assert await _ids(stage, "name", "handlers") == ["add", "gone"]
    await stage.consume(await _run_of(stage, "add"), "m1")
    await stage.move(days=62)
    await _clear(stage)
    assert await _counts(stage) == [0, 0, 0, 0]
    assert await _ids(stage, "name", "handlers") == ["add"]


async def test_a_removed_handler_has_its_name_while_its_mutation_is_in_doubt(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(_mail(1))
    await _ended_in_doubt(stage)
    [mutation_id] = await _ids(stage, "mutation_id", "mutations")
    await stage.deploy(consumer("other", ["elsewhere"]))
    await stage.connection.execute("update kagzi.deliveries set status = 'SKIPPED'")
    await stage.move(days=400)
    await _clear(stage)
    await stage.move(days=800)
    await _clear(stage)
    assert await _ids(stage, "name", "handlers") == ["add", "other"]
    await stage.resolve(mutation_id, "DID_NOT")
    assert (await stage.automation())["blocked_code"] is None
    await _clear(stage)
    assert await _ids(stage, "name", "handlers") == ["other"]


async def test_what_is_left_is_taken_in_its_order_by_a_consumer_that_starts_at_the_beginning(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("behind"))
    for number in range(6):
        await stage.publish(event(f"m{number}", value=number))
    await _take(stage, behind=["m0", "m3"], add=[f"m{number}" for number in range(6)])
    await stage.move(days=31)
    await _clear(stage)
    await stage.publish(event("m0"))
    held = await _run_of(stage, "behind")
    assert [one.event_id for one in (await stage.peek(held)).events] == ["m1", "m2", "m4", "m5", "m0"]


async def _in_doubt(stage: Stage) -> tuple[Held, str]:
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1")
    return held, await stage.mutate(held, "UNCLEAR", reconciler=False)


async def _under_way(stage: Stage) -> Held:
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1")
    return held


async def _applied_and_to_be_gone_on_from(stage: Stage) -> Held:
    held = await _under_way(stage)
    await stage.mutate(held)
    await stage.fail(held)
    return held


async def _ended_in_doubt(stage: Stage) -> Held:
    held, _ = await _in_doubt(stage)
    await stage.ask(Operation(Kind.TERMINATE, NAMESPACE, held.run_id, workflow.TerminateWorkflowRequest()))
    return held


@pytest.mark.parametrize("stand", [_in_doubt, _under_way, _applied_and_to_be_gone_on_from, _ended_in_doubt])
async def test_what_is_under_way_parked_or_in_doubt_is_kept_whole(
    stage: Stage, stand: Callable[[Stage], Awaitable[Any]]
) -> None:
    await stage.deploy(consumer())
    await stage.publish(_mail(1))
    await stand(stage)
    contents = await stage.contents()
    await stage.move(days=4_000)
    await _clear(stage)
    for status in ("COMPLETED", "FAILED", "CANCELLED"):
        assert await _remove(stage, status) == 0
    assert await stage.contents() == contents


@pytest.mark.parametrize("answer", ["HAPPENED", "DID_NOT", "SKIP"])
async def test_a_person_may_answer_however_late_and_the_mutation_goes_with_its_run(stage: Stage, answer: str) -> None:
    await stage.deploy(consumer())
    await stage.publish(_mail(1))
    held = await _ended_in_doubt(stage)
    [mutation_id] = await _ids(stage, "mutation_id", "mutations")
    await stage.move(days=400)
    assert await _remove(stage, "CANCELLED") == 0
    await stage.resolve(mutation_id, answer)
    assert (await stage.automation())["blocked_code"] is None
    fresh = await stage.claim()
    if answer == "DID_NOT":
        await stage.consume(fresh, "m1")
    else:
        await stage.commit(fresh)
    assert await _remove(stage, "CANCELLED") == 1
    assert await _ids(stage, "run_id", "workflow_runs") != [held.run_id]
    # What was passed on is with the run that has it; what was not is gone with its own.
    assert len(await _ids(stage, "mutation_id", "mutations")) == (answer != "DID_NOT")
    await stage.move(days=800)
    assert await _remove(stage, "COMPLETED") >= 1
    assert await _ids(stage, "mutation_id", "mutations") == []
    await _clear(stage)
    assert await _counts(stage) == [0, 0, 0, 0]


async def test_it_goes_in_small_batches_past_what_has_to_stay(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("slow", ["held"]))
    # The oldest are held, and more of them than looks without a find may pass in one round.
    await stage.publish(*(event(f"h{number:03}", "held") for number in range(120)))
    await stage.publish(*(_mail(number) for number in range(55)))
    held = await _run_of(stage, "add")
    await stage.consume(held, *(f"m{number}" for number in range(55)))
    await stage.move(days=31)
    cleared = Clearance(stage.database, KEEP, 2)
    with capture_logs() as logs:
        assert await cleared.clear(math.inf)
        assert len(await _ids(stage)) == 175, "the first round came no further than what is held"
        assert await cleared.clear(math.inf)
    assert await _counts(stage) == [120, 120, 0, 0]
    removed = [entry["count"] for entry in logs if entry["event"] == "left_behind_removed"]
    assert max(removed) == 2
    assert sum(removed) == 110, "of events and of inputs"


async def test_a_round_that_has_no_time_goes_on_where_it_was(stage: Stage) -> None:
    for name in ("first", "second"):
        await stage.deploy(producer(publishes=["lost"]), name=name)
        await stage.publish(event("x1", "lost"), name=name)
    await stage.move(days=31)
    cleared = Clearance(stage.database, KEEP, 10)
    assert not await cleared.clear(-math.inf)
    assert len(await _ids(stage)) == 2
    assert await cleared.clear(math.inf)
    assert await _ids(stage) == []


async def test_any_number_of_servers_remove_it_while_others_publish_and_take(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(*(_mail(number) for number in range(60)))
    await stage.consume(await stage.claim(), *(f"m{number}" for number in range(60)))
    await stage.move(days=31)

    async def publish(at: Stage) -> None:
        for number in range(0, 60, 3):
            await at.publish(_mail(number))

    async with stage.many(4) as servers:
        await asyncio.gather(*(_clear(one, batch=5) for one in servers[:3]), publish(servers[3]))
    await _clear(stage)
    again = sorted(f"m{number}" for number in range(0, 60, 3))
    assert await _ids(stage) == again
    # Each is either the old one, published again in time, or another one that is to be taken: never half of one.
    rows = await stage.connection.fetch(
        "select e.event_id, e.writes, d.status from kagzi.events e left join kagzi.deliveries d using (topic, event_id)"
    )
    assert {(row["writes"], row["status"]) for row in rows} <= {(2, "CONSUMED"), (1, "PENDING")}
    assert await _counts(stage) == [20, 20, 20, 20]


async def test_what_was_published_again_since_it_was_found_stays(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(_mail(1), _mail(2))
    await stage.consume(await stage.claim(), "m1", "m2")
    await stage.move(days=31)
    found = await stage.database.read(lambda c: clearance.old_events(c, KEPT, None, 10))
    assert found.done == [("mail", "m1"), ("mail", "m2")]
    assert found.place is None
    await stage.publish(_mail(1))
    assert await stage.transact(lambda c, _: clearance.remove_events(c, KEPT, found.done)) == 1
    assert await _ids(stage) == ["m1"]
    lone = await stage.database.read(lambda c: clearance.old_inputs(c, KEPT, None, 10))
    assert len(lone.done) == 1
    await stage.publish(_mail(2))
    assert await stage.transact(lambda c, _: clearance.remove_inputs(c, KEPT, lone.done)) == 0
    assert await _ids(stage, "key", "inputs") == ["m1", "m2"]


async def test_an_automation_in_other_hands_is_left_for_later(stage: Stage) -> None:
    await stage.deploy(producer(publishes=["lost"]))
    await stage.publish(event("x1", "lost"))
    await stage.move(days=31)
    async with stage.connection.transaction():
        await stage.connection.execute("select 1 from kagzi.automations for no key update")
        await asyncio.wait_for(_clear(stage), 30)
        assert await _ids(stage) == ["x1"]
    await _clear(stage)
    assert await _ids(stage) == []


async def test_a_namespace_says_how_long_and_zero_is_for_ever(stage: Stage) -> None:
    await stage.deploy(producer(publishes=["lost"]))
    await stage.publish(event("x1", "lost"))
    await stage.move(days=31)
    await _clear(stage, keep=timedelta(0))
    assert await _ids(stage) == ["x1"]
    for kept_ms, left in ((0, ["x1"]), (40 * 86_400_000, ["x1"]), (86_400_000, [])):
        await stage.connection.execute("update kagzi.namespaces set retention_events_ms = $1", kept_ms)
        await _clear(stage)
        assert await _ids(stage) == left
    await stage.publish(event("x2", "lost"))
    # What a namespace says between look and removal holds.
    await stage.move(days=62)
    await stage.connection.execute("update kagzi.namespaces set retention_events_ms = 0")
    assert await stage.transact(lambda c, _: clearance.remove_events(c, KEPT, [("lost", "x2")])) == 0
    await stage.connection.execute("update kagzi.namespaces set retention_events_ms = null")


_GROW = """
insert into kagzi.events (namespace, automation, topic, event_id)
select 'default', 'inbox', 'mail', 'g' || i from generate_series(1, 5000) i;
insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, arrival, published_at, run_id)
select 'default', 'inbox', 'add', 'mail', 'g' || i, case when i < 4000 then 'PENDING' else 'CONSUMED' end, i,
       kagzi.now(), md5(i::text)::uuid
from generate_series(1, 5000) i;
insert into kagzi.event_causes (namespace, automation, topic, event_id, input_id)
select 'default', 'inbox', 'mail', 'g' || i, md5(i::text)::uuid from generate_series(1, 5000) i;
insert into kagzi.inputs (namespace, automation, input_id, source, type, key)
select 'default', 'inbox', md5(i::text)::uuid, 's', 't', i::text from generate_series(1, 5000) i;
analyze kagzi.events, kagzi.deliveries, kagzi.event_causes, kagzi.inputs;
"""


async def test_a_look_and_a_removal_read_what_they_are_about_and_not_the_whole_automation(stage: Stage) -> None:
    counted = (
        "select sum(seq_tup_read + idx_tup_fetch)::int as read from pg_stat_xact_user_tables"
        " where relname in ('events', 'deliveries', 'event_causes', 'inputs')"
    )
    await stage.deploy(consumer())
    await stage.connection.execute(_GROW)
    await stage.move(days=31)

    async def read(work: Callable[[], Awaitable[Any]]) -> int:
        async with stage.connection.transaction():
            before = await stage.connection.fetchval(counted) or 0
            await work()
            after: int = await stage.connection.fetchval(counted)
        return after - before

    # Few of many: for more, to read all of so small a table may be the better plan.
    connection, done = stage.connection, [("mail", f"g{number}") for number in range(4_500, 4_505)]
    gone = [
        row["input_id"]
        for row in await connection.fetch("select md5(i::text)::uuid as input_id from generate_series(4500, 4504) i")
    ]
    assert await read(lambda: clearance.outlived(connection, KEEP)) <= 2
    assert await read(lambda: clearance.old_events(connection, KEPT, None, 100)) <= 200
    assert await read(lambda: clearance.old_inputs(connection, KEPT, None, 100)) <= 200
    assert await read(lambda: clearance.remove_events(connection, KEPT, done)) <= 50
    assert await read(lambda: clearance.remove_inputs(connection, KEPT, [(one,) for one in gone])) <= 50
    assert await _counts(stage) == [4_995] * 4


async def test_what_is_shown_afterwards_is_what_is_there(stage: Stage) -> None:
    await stage.deploy(consumer(publishes=["row"]), consumer("tell", ["row"]))
    await stage.publish(_mail(1), _mail(2), _mail(3))
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1", "m2")
    await stage.commit(held, event("r1", "row"))
    await stage.move(days=31)
    await _clear(stage)
    shown = await stage.database.read(lambda c: automations.get(c, NAMESPACE, "inbox"))
    assert {(one.topic, one.consumer): one.pending for one in shown.backlog} == {("mail", "add"): 1, ("row", "tell"): 1}
    nothing = dict.fromkeys(
        ("topic", "event_id", "run_id", "consumer", "statuses", "after_at", "after_topic", "after_id")
    )
    listed, more = await stage.database.read(
        lambda c: events.list_(c, NAMESPACE, "inbox", count=10, payloads=True, **nothing)
    )
    assert sorted(one.event_id for one in listed) == ["m3", "r1"]
    assert more is None
    # An input leads to what is left of what it caused, and one of which nothing is left is gone.
    found = await stage.database.read(lambda c: inputs.get(c, NAMESPACE, "inbox", _mail(1).input))
    assert [one.event_id for one in found.events] == ["r1"]
    assert (found.input.status, found.input.pending) == (pb.INPUT_PENDING, 1)
    held = await _run_of(stage, "tell")
    await stage.consume(held, "r1", topic="row")
    await stage.move(days=62)
    await _clear(stage)
    with pytest.raises(Refused, match="gmail/email/m1"):
        await stage.database.read(lambda c: inputs.get(c, NAMESPACE, "inbox", _mail(1).input))
    assert await _ids(stage) == ["m3"]
