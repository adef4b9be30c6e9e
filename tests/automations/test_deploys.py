"""Putting definitions in force: what is new begins, what is unchanged keeps its times, what is gone leaves nothing
behind that waits for it. The same hash changes nothing.
"""

from __future__ import annotations

import asyncio

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.store.errors import Refused
from tests.automations.stage import MAIL, Stage, consumer, data, event, new_id, producer


async def _settle(stage: Stage) -> None:
    while held := await stage.claim_all():
        for one in held:
            await (stage.commit(one) if one.task.kind == pb.HANDLER_PRODUCER else stage.consume(one))


async def test_the_same_hash_changes_nothing(stage: Stage) -> None:
    assert (await stage.deploy(producer(), consumer(), found="a")).changed
    await _settle(stage)
    handlers = await stage.connection.fetch("select t::text from kagzi.handlers t order by 1")
    assert not (await stage.deploy(producer(), consumer(), found="a")).changed
    assert await stage.connection.fetch("select t::text from kagzi.handlers t order by 1") == handlers
    await stage.idle()


async def test_an_unchanged_schedule_keeps_its_times_and_a_changed_one_restarts_from_now(stage: Stage) -> None:
    await stage.deploy(producer("same"), producer("changed"))
    await _settle(stage)
    before = await stage.handler("same")
    await stage.move(minutes=1)
    await stage.deploy(producer("same"), producer("changed", "600000"), producer("new"))
    same = await stage.handler("same")
    assert (same["next_run_at"], same["anchor_at"]) == (before["next_run_at"], before["anchor_at"])
    ran = set()
    while held := await stage.claim_all():
        assert held[0].trigger == "deploy"
        ran.add(held[0].task.handler)
        await stage.commit(held[0])
    assert ran == {"changed", "new"}
    assert (await stage.handler("changed"))["runs_in"] == pytest.approx(600, abs=2)


async def test_handlers_keep_their_state_over_a_deployment(stage: Stage) -> None:
    await stage.deploy(producer())
    await stage.commit(await stage.claim(), state={"cursor": 3})
    await stage.deploy(producer(every="60000"))
    assert (await stage.claim()).task.state == data({"cursor": 3})


async def test_a_removed_handler_is_gone_with_its_schedule_and_its_pending_deliveries_are_skipped(
    stage: Stage,
) -> None:
    await stage.deploy(producer(), consumer(), consumer("old"))
    await _settle(stage)
    await stage.publish(event("m1"))
    await stage.consume(await stage.claim(expect="add"), "m1")
    await stage.deploy(consumer())
    assert (await stage.delivery("m1", "old"))["status"] == "SKIPPED"
    assert (await stage.delivery("m1", "add"))["status"] == "CONSUMED"
    gone = await stage.handler("poll")
    assert gone["removed_at"] is not None
    await _settle(stage)
    await stage.move(days=1)
    assert await stage.ring() == 0


async def test_a_new_consumer_gets_what_is_published_from_then_on(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1"))
    await stage.consume(await stage.claim(), "m1")
    await _settle(stage)
    await stage.deploy(consumer(), consumer("new"))
    await stage.publish(event("m1", value="again"), event("m2"))
    seen: dict[str, list[str]] = {}
    while held := await stage.claim_all():
        ids = [one.event_id for one in (await stage.peek(held[0])).events]
        seen.setdefault(held[0].task.handler, []).extend(ids)
        await stage.consume(held[0], *ids)
    assert seen == {"add": ["m2"], "new": ["m2"]}


async def test_a_topic_no_longer_subscribed_to_leaves_nothing_pending(stage: Stage) -> None:
    await stage.deploy(consumer(subscribes=["mail", "chat"]))
    await stage.publish(event("m1"), event("c1", "chat"))
    await stage.deploy(consumer())
    assert (await stage.delivery("c1", topic="chat"))["status"] == "SKIPPED"
    assert (await stage.delivery("m1"))["status"] == "PENDING"


async def test_a_handler_that_comes_back_begins_anew(stage: Stage) -> None:
    await stage.deploy(producer(), consumer())
    while (held := await stage.claim()).task.handler != "poll":
        await stage.consume(held)
    await stage.commit(held, state={"cursor": 9})
    await stage.deploy(consumer())
    await _settle(stage)
    await stage.deploy(consumer(), producer())
    await stage.consume(await stage.claim(expect="add"))
    held = await stage.claim(expect="poll")
    assert held.trigger == "deploy"
    assert not held.task.HasField("state")


async def test_a_handler_that_becomes_another_kind_begins_anew(stage: Stage) -> None:
    await stage.deploy(consumer("x"), consumer())
    await stage.publish(event("m1"))
    await stage.deploy(producer("x"), consumer())
    assert (await stage.delivery("m1", "x"))["status"] == "SKIPPED"
    row = await stage.handler("x")
    assert (row["kind"], row["removed_at"], row["dirty"]) == ("PRODUCER", None, False)


@pytest.mark.parametrize("fault", ["DEFECT", "NEEDS_ATTENTION"])
async def test_a_new_definition_unblocks(stage: Stage, fault: str) -> None:
    await stage.deploy(consumer(), found="broken")
    await stage.fail(await stage.claim(), fault)
    assert not (await stage.deploy(consumer(), found="broken")).changed
    assert (await stage.automation())["blocked_code"] is not None
    await stage.deploy(consumer(), found="mended")
    assert (await stage.automation())["blocked_code"] is None
    held = await stage.claim()
    assert held.task.definition_hash == "mended"
    assert (await stage.handler("add"))["failures"] == 0


async def test_a_replaced_deployment_is_not_put_in_force_again_by_its_repeat(stage: Stage) -> None:
    first, second = new_id(), new_id()
    assert (await stage.deploy(consumer(), found="1", deployment=first)).changed
    assert not (await stage.deploy(consumer(), found="1", deployment=second)).changed
    assert (await stage.deploy(consumer("b"), found="2")).changed
    for repeated in (first, second):
        again = await stage.deploy(consumer(), found="1", deployment=repeated)
        assert (again.changed, again.superseded) == (False, True)
    # A worker that is started with the old code again means it.
    assert (await stage.deploy(consumer(), found="1")).changed


async def test_deployments_are_remembered_up_to_a_hundred(stage: Stage) -> None:
    for _ in range(105):
        await stage.deploy(consumer(), found="1")
    assert len((await stage.automation())["deployments"]) == 100


async def test_a_deployment_at_once_from_many_workers_is_one(stage: Stage) -> None:
    async with stage.many(4) as others:
        made = await asyncio.gather(*(one.deploy(producer(), consumer(), found="1") for one in others))
    assert sum(one.changed for one in made) == 1
    assert await stage.live() == 1


async def test_a_waiting_run_of_a_removed_handler_does_not_stand_in_the_way(stage: Stage) -> None:
    await stage.deploy(consumer("old"))
    await stage.deploy(consumer())
    assert (await stage.claim()).task.handler == "add"


async def test_a_held_run_of_a_removed_handler_may_finish_and_has_a_limit(stage: Stage) -> None:
    await stage.deploy(consumer("old", publishes=["row"]))
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1")
    await stage.deploy(consumer())
    limit = await stage.connection.fetchval(
        "select extract(epoch from deadline_at - kagzi.now())::float8 from kagzi.workflow_runs where run_id = $1",
        held.run_id,
    )
    assert limit == pytest.approx(600, abs=2)
    await stage.commit(held)
    assert (await stage.delivery("m1", "old"))["status"] == "CONSUMED"
    assert (await stage.claim()).task.handler == "add"


async def test_what_a_removed_consumer_had_reserved_is_skipped_when_its_run_fails(stage: Stage) -> None:
    await stage.deploy(consumer("old"))
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1")
    await stage.deploy(consumer())
    await stage.fail(held, "DEFECT")
    assert (await stage.delivery("m1", "old"))["status"] == "SKIPPED"
    assert (await stage.automation())["blocked_code"] is None
    assert (await stage.claim()).task.handler == "add"


async def test_a_continuation_of_a_removed_handler_is_dropped(stage: Stage) -> None:
    await stage.deploy(consumer("old"))
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1")
    await stage.mutate(held)
    await stage.fail(held)
    await stage.deploy(consumer())
    assert (await stage.automation())["continues_run_id"] is None
    assert (await stage.delivery("m1", "old"))["status"] == "CONSUMED"
    assert (await stage.claim()).task.handler == "add"


async def test_a_mutation_in_doubt_of_a_removed_handler_waits_for_a_person(stage: Stage) -> None:
    await stage.deploy(consumer("old"))
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1")
    mutation_id = await stage.mutate(held, "UNCLEAR", failure=Failure(type="Timeout"))
    await stage.fail(held)
    await stage.deploy(consumer())
    assert (await stage.automation())["blocked_code"] == "INDETERMINATE"
    with pytest.raises(Refused, match="no reconciler"):
        await stage.resolve(mutation_id, "CHECK_AGAIN")
    await stage.resolve(mutation_id, "HAPPENED")
    assert (await stage.delivery("m1", "old"))["status"] == "CONSUMED"
    assert (await stage.claim()).task.handler == "add"


async def test_an_automation_needs_a_namespace_that_is_there_and_enabled(stage: Stage) -> None:
    await stage.connection.execute("update kagzi.namespaces set enabled = false")
    with pytest.raises(Refused, match="disabled"):
        await stage.deploy(consumer())
    assert await stage.connection.fetchval("select count(*) from kagzi.automations") == 0


async def test_a_producers_first_run_publishes_for_the_consumers_of_its_definition(stage: Stage) -> None:
    await stage.deploy(producer(), consumer())
    await stage.consume(await stage.claim())
    await stage.commit(await stage.claim(expect="poll"), event("m1", input=MAIL))
    await stage.deploy(consumer(), consumer("late"))
    assert await stage.connection.fetchval("select count(*) from kagzi.deliveries where consumer = 'late'") == 0
