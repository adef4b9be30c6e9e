"""What an automation runs next: one run at a time, a continuation before consumers, consumers by their oldest event,
producers by their times, and who was passed over for a minute first; chosen by one statement in the transaction that
frees the automation.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from kagzi.protocol.v1.automation_pb2 import HANDLER_PRODUCER, HandlerCommitted
from kagzi.protocol.v1.common_pb2 import COMPLETED
from kagzi.store import choice, controls, standings
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Outcome, Slot
from tests.automations.stage import MAIL, NAMESPACE, QUEUE, Stage, consumer, event, new_id, producer


async def _settled(stage: Stage) -> None:
    """Everything that a deployment asked for has run."""
    while held := await stage.claim_all():
        for one in held:
            await (stage.commit(one) if one.task.kind == HANDLER_PRODUCER else stage.consume(one))


async def test_a_producer_runs_at_once_and_what_it_publishes_reaches_the_consumer(stage: Stage) -> None:
    await stage.deploy(producer(), consumer(publishes=["row"]), consumer("tell", ["row"]))
    # Consumers are looked at first, though nothing is there for them yet.
    for _ in range(2):
        held = await stage.claim()
        assert held.trigger == "deploy"
        await stage.consume(held)
    poll = await stage.claim(expect="poll")
    assert poll.trigger == "deploy"
    answer = await stage.commit(poll, event("m1", value={"a": 1}, input=MAIL), state={"cursor": 1})
    assert (answer.created, answer.updated) == (1, 0)

    add = await stage.claim(expect="add")
    assert add.trigger == "event"
    found = (await stage.peek(add)).events
    assert [one.event_id for one in found] == ["m1"]
    await stage.prepare(add, "m1")
    await stage.mutate(add)
    await stage.commit(add, event("r1", topic="row"))
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"
    assert await stage.status(add.run_id) == "COMPLETED"
    tell = await stage.claim(expect="tell")
    await stage.consume(tell, "r1", topic="row")


async def test_what_a_commit_handed_over_is_given_back_when_its_answer_was_lost(stage: Stage) -> None:
    await stage.deploy(producer(), consumer())
    await stage.consume(await stage.claim(expect="add"))
    commit = stage.committing(await stage.claim(expect="poll"), event("m1", input=MAIL))
    commit.slot = Slot(new_id(), new_id(), types=frozenset({"inbox.add"}))
    (first,) = await stage.flush(commit)
    assert [one.slot for one in first.claimed] == [commit.slot]
    (again,) = await stage.flush(commit)
    assert isinstance(commit.answer, HandlerCommitted)
    assert (again.claimed, again.due) == ([], {QUEUE})
    assert (await stage.claim(expect="add")).trigger == "event"


async def test_a_handler_run_is_a_workflow_run_of_its_automations_type(stage: Stage) -> None:
    await stage.deploy(consumer(), found="the definition")
    held = await stage.claim()
    assert held.delivery.workflow_type == "inbox.add"
    assert held.task.definition_hash == "the definition"
    row = await stage.connection.fetchrow("select * from kagzi.workflow_runs where run_id = $1", held.run_id)
    assert row is not None
    assert (row["automation"], row["handler"], row["trigger"], row["status"]) == ("inbox", "add", "deploy", "RUNNING")


async def test_one_run_at_a_time_and_other_automations_beside_it(stage: Stage) -> None:
    for name in ("inbox", "other"):
        await stage.deploy(consumer(), consumer("second"), name=name)
    held = await stage.claim_all()
    assert sorted(one.task.automation for one in held) == ["inbox", "other"]
    await stage.publish(event("m1"))
    assert await stage.ring() == 0
    await stage.idle()


async def test_the_index_allows_one_live_run_whatever_races(stage: Stage) -> None:
    await stage.deploy(consumer())
    with pytest.raises(Exception, match="run_automation_live"):
        await stage.connection.execute(
            "insert into kagzi.workflow_runs (namespace, run_id, task_queue, workflow_type, status, available_at,"
            " automation) values ('default', $1, 'default', 'inbox.add', 'PENDING', kagzi.now(), 'inbox')",
            new_id(),
        )


async def test_the_consumer_with_the_oldest_pending_event_comes_first(stage: Stage) -> None:
    await stage.deploy(consumer("a", ["late"]), consumer("z", ["early"]), producer(publishes=["early", "late"]))
    await _settled(stage)
    async with stage.paused():
        await stage.publish(event("1", "early"))
        await stage.publish(event("2", "late"))
    assert (await stage.claim()).task.handler == "z"


async def test_a_consumer_without_events_comes_after_those_that_have_some(stage: Stage) -> None:
    await stage.deploy(consumer("a", ["x"]), consumer("b", ["mail"]))
    await _settled(stage)
    async with stage.paused():
        await stage.publish(event("1", "mail"))
        await stage.connection.execute("update kagzi.handlers set dirty = true")
    assert (await stage.claim()).task.handler == "b"


async def test_producers_come_after_consumers_and_by_their_times(stage: Stage) -> None:
    await stage.deploy(producer("first", "60000"), producer("second", "60000"), consumer())
    await _settled(stage)
    await stage.connection.execute(
        "update kagzi.handlers set next_run_at = kagzi.now() - interval '1 s' where name = 'first'"
    )
    await stage.connection.execute(
        "update kagzi.handlers set next_run_at = kagzi.now() - interval '2 s' where name = 'second'"
    )
    await stage.publish(event("m1"))
    order = []
    for _ in range(4):
        held = await stage.claim()
        order.append(held.task.handler)
        ids = [one.event_id for one in (await stage.peek(held)).events] if held.task.handler == "add" else []
        await (stage.consume(held, *ids) if held.task.handler == "add" else stage.commit(held))
    assert order == ["add", "add", "second", "first"]


async def _busy(stage: Stage, seconds: float) -> str:
    """A run of whoever is next, with more to take for `add` at its end; gives its handler."""
    await stage.move(seconds=seconds)
    await stage.publish(event(new_id()))
    held = await stage.claim()
    if held.task.kind == HANDLER_PRODUCER:
        await stage.commit(held)
    else:
        topic = "mail" if held.task.handler == "add" else "other"
        ids = [one.event_id for one in (await stage.peek(held, topic)).events if one.event_id != "never taken"]
        await stage.consume(held, *ids[:1], topic=topic)
    return held.task.handler


async def test_a_consumer_that_is_always_busy_lets_others_wait_for_a_minute_and_not_for_ever(stage: Stage) -> None:
    await stage.deploy(
        producer("poll", "1000", publishes=["mail", "other"]),
        producer("hourly", "3600000", publishes=["mail"]),
        consumer(),
        consumer("tell", ["other"]),
    )
    await _settled(stage)
    # With it `add` has the oldest event at any time.
    await stage.publish(event("never taken"))
    await stage.publish(event("o1", "other"))
    first = [await _busy(stage, seconds) for seconds in range(5, 55, 5)]
    assert set(first) == {"add"}
    later = [await _busy(stage, seconds) for seconds in range(70, 300, 5)]
    assert {"poll", "tell"} < set(later)
    passed_over = [number for number, handler in enumerate(later) if handler == "poll"]
    assert all(b - a >= 12 for a, b in pairwise(passed_over)), "nor does a producer with many slots keep consumers away"
    assert later.count("add") > 2 * later.count("poll") + later.count("tell")
    assert "hourly" not in first + later, "nobody comes before being due"


async def test_producers_that_were_asked_for_are_not_passed_over_for_ever(stage: Stage) -> None:
    await stage.deploy(producer("a", "3600000"), producer("b", "3600000"), consumer())
    await _settled(stage)
    await stage.run_now()
    assert [await _busy(stage, seconds) for seconds in (1, 2, 3)] == ["a", "add", "add"]
    # At the end of the first of these the minute was over.
    assert [await _busy(stage, seconds) for seconds in (70, 75, 80)] == ["add", "b", "add"]
    runs_in = (await stage.handler("b"))["runs_in"]
    assert 3_000 < runs_in < 3_600, "its own times are as they were"


async def test_choosing_is_one_statement_however_many_handlers_and_topics_there_are(stage: Stage) -> None:
    topics = [f"topic-{number}" for number in range(20)]
    handlers = [consumer(f"consumer-{number}", topics) for number in range(20)]
    for name in ("one", "two", "three"):
        await stage.deploy(*handlers, producer(publishes=topics), name=name)
    held = await stage.claim_all()
    await stage.connection.execute("update kagzi.automations set paused_at = kagzi.now()")
    for one in held:
        await stage.fail(one)
    await stage.connection.execute("update kagzi.automations set paused_at = null")
    async with stage.connection.transaction():
        names = await standings.lock(stage.connection, NAMESPACE, ["one", "two", "three"])
        with stage.counted() as statements:
            started = await choice.begin(stage.connection, NAMESPACE, names, Outcome())
    assert started == 3
    assert [text.split()[0] for text in statements] == ["with", "with"]
    assert "insert" not in statements[0], "the first statement only chooses"


async def test_committing_many_automations_takes_as_many_statements_as_committing_one(stage: Stage) -> None:
    counts = []
    for size in (1, 20):
        names = [f"of-{size}-{number}" for number in range(size)]
        for name in names:
            await stage.deploy(producer(), consumer(), name=name)
        held = await stage.claim_all()
        assert len(held) == size
        for one in held:
            await stage.consume(one)
        held = await stage.claim_all()
        commits = [stage.committing(one, event("m1", input=MAIL), state=1) for one in held]
        counts.append(await stage.statements(*commits))
        assert [commit.answer for commit in commits] == [HandlerCommitted(status=COMPLETED, created=1)] * size
        # What they published starts the consumers in the same transaction.
        chosen = await stage.claim_all()
        assert [one.task.handler for one in chosen] == ["add"] * size
        for one in chosen:
            await stage.fail(one)
        await stage.connection.execute("delete from kagzi.automations")
    assert counts[0] == counts[1]
    assert counts[0] <= 11


async def test_every_phase_of_many_automations_shares_its_statements(stage: Stage) -> None:
    size = 10
    for number in range(size):
        await stage.deploy(consumer(), name=f"a-{number}")
        await stage.publish(event("m1"), name=f"a-{number}")
    held = await stage.claim_all()
    counts = {}
    for kind, operations in (
        (Kind.PEEK_EVENTS, [stage.peeking(one) for one in held]),
        (Kind.COMMIT_PREPARE, [stage.preparing(one, {"mail": ["m1"]}) for one in held]),
        (Kind.BEGIN_MUTATION, begun := [stage.beginning(one) for one in held]),
        (
            Kind.FINISH_MUTATION,
            [
                stage.finishing(one, begin.body.mutation_id, "APPLIED", step=begin.body.step)
                for one, begin in zip(held, begun, strict=True)
            ],
        ),
        (Kind.COMMIT_HANDLER, [stage.committing(one) for one in held]),
    ):
        counts[kind.name] = await stage.statements(*operations)
        assert not any(one.refused for one in operations), operations[0].answer
    assert counts == {
        "PEEK_EVENTS": 3,
        "COMMIT_PREPARE": 5,
        "BEGIN_MUTATION": 4,
        "FINISH_MUTATION": 5,
        "COMMIT_HANDLER": 7,
    }


async def test_run_now_queues_all_producers_and_is_refused_while_a_run_is_active(stage: Stage) -> None:
    await stage.deploy(producer("a"), producer("b"), consumer())
    with pytest.raises(Refused, match="has a run that has not ended"):
        await stage.run_now()
    await _settled(stage)
    request = new_id()
    assert await stage.run_now(request) == ["a", "b"]
    held = await stage.claim()
    assert (held.task.handler, held.trigger) == ("a", "manual")
    # The same request again is the same request, also while its run is active.
    assert await stage.run_now(request) == ["a", "b"]
    with pytest.raises(Refused):
        await stage.run_now()
    await stage.commit(held)
    held = await stage.claim()
    assert (held.task.handler, held.trigger) == ("b", "manual")
    await stage.commit(held)
    await stage.idle()


async def test_pause_lets_the_run_finish_and_triggers_accumulate_until_resume(stage: Stage) -> None:
    await stage.deploy(consumer(), producer())
    held = await stage.claim()
    await stage.transact(lambda c, _: controls.pause(c, NAMESPACE, "inbox"))
    await stage.consume(held)
    await stage.publish(event("m1"))
    assert await stage.ring() == 0
    await stage.idle()
    await stage.transact(lambda c, outcome: controls.resume(c, NAMESPACE, "inbox", outcome))
    held = await stage.claim()
    assert (held.task.handler, held.trigger) == ("add", "event")


async def test_a_disabled_namespace_starts_nothing_and_goes_on_with_what_came_up(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await stage.connection.execute("update kagzi.namespaces set enabled = false")
    await stage.publish(event("m1"))
    await stage.consume(held)
    assert await stage.connection.fetchval("select count(*) from kagzi.workflow_runs where status = 'PENDING'") == 0
    await stage.connection.execute("update kagzi.namespaces set enabled = true")
    assert await stage.ring() == 0
    assert await stage.ring(stranded=True) == 1
    assert (await stage.claim()).task.handler == "add"


async def test_publishers_and_commits_at_once_strand_nothing(stage: Stage) -> None:
    await stage.deploy(consumer())
    async with stage.many() as others:

        async def publish(number: int) -> None:
            await others[number % len(others)].publish(event(f"m{number}"))

        publishing = [asyncio.create_task(publish(number)) for number in range(40)]
        seen: set[str] = set()
        while len(seen) < 40:
            held = await stage.claim_all()
            assert len(held) <= 1
            if not held:
                _, waiting = await asyncio.wait(publishing, return_when=asyncio.FIRST_COMPLETED)
                assert waiting or await stage.live(), f"stranded with {40 - len(seen)} pending"
                publishing = [*waiting] or publishing
                continue
            ids = [one.event_id for one in (await stage.peek(held[0], limit=3)).events]
            await stage.consume(held[0], *ids)
            seen.update(ids)
        await asyncio.gather(*publishing)
    statuses = await stage.connection.fetch("select distinct status from kagzi.deliveries")
    assert [row["status"] for row in statuses] == ["CONSUMED"]
