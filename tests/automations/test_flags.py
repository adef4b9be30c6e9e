"""The life of `dirty` and `queued`: on by what is published, deployed, released or asked for, off when a run starts, on
again by what was reserved or arrived meanwhile. They are columns, written in the transaction that causes them.
"""

from __future__ import annotations

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.store import controls
from kagzi.store.operation import Outcome
from tests.automations.stage import NAMESPACE, Stage, consumer, event, producer


async def _dirty(stage: Stage, name: str = "add") -> bool:
    return bool((await stage.handler(name))["dirty"])


async def test_dirty_is_on_by_a_publish_and_off_when_the_run_starts(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.consume(await stage.claim())
    assert not await _dirty(stage)
    async with stage.paused():
        await stage.publish(event("m1"))
        assert await _dirty(stage)
    # Chosen in the transaction that resumed it, before anybody claims it.
    assert not await _dirty(stage)
    assert (await stage.claim()).trigger == "event"


async def test_what_arrives_during_a_run_turns_it_on_again(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await stage.publish(event("m1"))
    assert await _dirty(stage)
    await stage.consume(held)
    held = await stage.claim()
    assert [one.event_id for one in (await stage.peek(held)).events] == ["m1"]


async def test_what_was_reserved_turns_it_on_again_so_that_topics_drain(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(*(event(f"m{number}") for number in range(3)))
    consumed = []
    for _ in range(3):
        held = await stage.claim()
        [first, *_] = (await stage.peek(held)).events
        consumed.append(first.event_id)
        await stage.consume(held, first.event_id)
    assert consumed == ["m0", "m1", "m2"]
    # One look more finds nothing, reserves nothing, and is the last.
    last = await stage.claim()
    assert list((await stage.peek(last)).events) == []
    await stage.consume(last)
    assert not await _dirty(stage)
    await stage.idle()


async def test_an_event_published_between_prepare_and_commit_is_not_stranded(stage: Stage) -> None:
    await stage.deploy(consumer())
    held = await stage.claim()
    await stage.prepare(held)
    await stage.publish(event("m1"))
    await stage.commit(held)
    assert [one.event_id for one in (await stage.peek(await stage.claim())).events] == ["m1"]


async def test_a_publish_that_is_not_committed_when_the_run_ends_is_not_stranded(stage: Stage) -> None:
    """The publisher holds the automation; the commit waits for it, and its choice sees what was published."""
    await stage.deploy(consumer())
    held = await stage.claim()
    await stage.prepare(held)
    request = pb.PublishRequest(name="inbox", events=[event("m1")])
    async with stage.connection.transaction():
        await controls.publish(stage.connection, NAMESPACE, request, Outcome())
        commit = stage.committing(held)
        await stage.flush(commit)
        # The commit does not wait inside a batch: it is tried again.
        assert commit.answer is not None
        assert not commit.refused
        assert await stage.status(held.run_id) == "RUNNING"
    await stage.ask(commit)
    assert (await stage.claim()).trigger == "event"


async def test_queued_is_off_when_the_run_starts_and_on_again_when_it_fails(stage: Stage) -> None:
    await stage.deploy(producer())
    await stage.commit(await stage.claim())
    await stage.run_now()
    assert not (await stage.handler("poll"))["queued"]
    await stage.fail(await stage.claim())
    assert (await stage.handler("poll"))["queued"]
    await stage.move(seconds=11)
    assert await stage.ring() == 1
    assert (await stage.claim()).trigger == "release"


async def test_a_deployment_makes_consumers_look(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.consume(await stage.claim())
    await stage.deploy(consumer())
    assert (await stage.claim()).trigger == "deploy"


async def test_state_goes_in_and_comes_out_and_none_keeps_it(stage: Stage) -> None:
    await stage.deploy(producer())
    held = await stage.claim()
    assert not held.task.HasField("state")
    await stage.commit(held, state={"cursor": 1})
    for state, after in (({"cursor": 2}, b'{"cursor":2}'), (None, b'{"cursor":2}')):
        await stage.run_now()
        held = await stage.claim()
        before = held.task.state.data
        await stage.commit(held, state=state)
        row = await stage.connection.fetchrow(
            "select input, output from kagzi.workflow_payloads where run_id = $1", held.run_id
        )
        assert row is not None
        assert row["input"] == before
        assert row["output"] == (None if state is None else after)
        assert (await stage.handler("poll"))["state"] == after
