"""Topics and events: known by topic and id, last write wins without reviving, each consumer with its own deliveries."""

from __future__ import annotations

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind
from tests.automations.stage import Held, Stage, consumer, event, producer


async def _get(stage: Stage, held: Held, *ids: str, topic: str = "mail") -> pb.GotEvents:
    answer = await stage.ask(held.operation(Kind.GET_EVENTS, pb.GetEvents(topic=topic, event_ids=ids)))
    assert isinstance(answer, pb.GotEvents)
    return answer


async def test_several_consumers_of_one_topic_each_see_every_event_once(stage: Stage) -> None:
    await stage.deploy(consumer("a"), consumer("b"), consumer("c"))
    await stage.publish(*(event(f"m{number}") for number in range(4)))
    seen: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    while held := await stage.claim_all():
        [one] = held
        ids = [found.event_id for found in (await stage.peek(one, limit=2)).events]
        seen[one.task.handler] += ids
        await stage.consume(one, *ids)
    assert seen == {name: ["m0", "m1", "m2", "m3"] for name in "abc"}


async def test_the_last_write_wins_on_the_payload_and_the_place_is_kept(stage: Stage) -> None:
    await stage.deploy(consumer())
    async with stage.paused():
        assert (await stage.publish(event("m1", value=1), event("m2", value=1))).counts.created == 2
        again = await stage.publish(event("m1", value=2), event("m3", value=1))
        assert (again.counts.created, again.counts.updated) == (1, 1)
    held = await stage.claim()
    found = (await stage.peek(held)).events
    assert [(one.event_id, one.payload.data) for one in found] == [("m1", b"2"), ("m2", b"1"), ("m3", b"1")]


async def test_republishing_corrects_what_is_not_consumed_and_revives_nothing(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1", value=1))
    held = await stage.claim()
    await stage.consume(held, "m1")
    await stage.consume(await stage.claim())
    await stage.publish(event("m1", value=2))
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"
    assert not (await stage.handler("add"))["dirty"]
    await stage.idle()


async def test_an_event_corrected_while_pending_makes_its_consumer_look_again(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.consume(await stage.claim())
    await stage.publish(event("m1", value="broken"))
    await stage.consume(await stage.claim())
    await stage.idle()
    await stage.publish(event("m1", value="mended"))
    held = await stage.claim()
    assert [one.payload.data for one in (await stage.peek(held)).events] == [b'"mended"']


async def test_published_twice_in_one_call_it_is_one_event_with_the_last_payload(stage: Stage) -> None:
    await stage.deploy(consumer())
    made = await stage.publish(event("m1", value=1), event("m2", value=1), event("m1", value=2))
    assert made.counts.created == 2
    held = await stage.claim()
    assert [one.payload.data for one in (await stage.peek(held)).events] == [b"2", b"1"]


async def test_one_event_goes_to_several_topics(stage: Stage) -> None:
    await stage.deploy(consumer("a", ["x"]), consumer("b", ["y"]))
    publication = pb.EventPublication(topics=["x", "y"], event_id="m1")
    assert (await stage.publish(publication)).counts.created == 2
    for _ in range(2):
        held = await stage.claim()
        topic = {"a": "x", "b": "y"}[held.task.handler]
        await stage.consume(held, "m1", topic=topic)


async def test_a_topic_belongs_to_its_automation(stage: Stage) -> None:
    for name in ("inbox", "other"):
        await stage.deploy(consumer(), name=name)
    await stage.publish(event("m1", value=1))
    await stage.publish(event("m1", value=2), name="other")
    payloads = {}
    for held in await stage.claim_all():
        payloads[held.task.automation] = (await stage.peek(held)).events[0].payload.data
    assert payloads == {"inbox": b"1", "other": b"2"}


async def test_publishing_to_a_topic_nobody_declared_is_refused_and_nothing_is_stored(stage: Stage) -> None:
    await stage.deploy(consumer())
    with pytest.raises(Refused, match="has no topic 'nowhere'"):
        await stage.publish(event("m1"), event("m2", "nowhere"))
    assert await stage.connection.fetchval("select count(*) from kagzi.events") == 0


async def test_peek_answers_the_oldest_pending_first_in_pages_and_changes_nothing(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(*(event(f"m{number}") for number in range(7)))
    held = await stage.claim()
    seen, cursor, pages = [], "", 0
    while pages == 0 or cursor:
        page = await stage.peek(held, limit=3, cursor=cursor)
        seen += [one.event_id for one in page.events]
        cursor, pages = page.next_cursor, pages + 1
    assert seen == [f"m{number}" for number in range(7)]
    assert pages == 3
    assert {one.status for one in (await stage.peek(held)).events} == {pb.DELIVERY_PENDING}
    await stage.prepare(held, "m0")


async def test_peek_answers_as_much_as_fits_into_a_frame_and_at_least_one(stage: Stage) -> None:
    await stage.deploy(consumer())
    large = Payload(data=b"x" * 400_000)
    publications = [pb.EventPublication(topics=["mail"], event_id=f"m{number}", payload=large) for number in range(3)]
    huge = pb.EventPublication(topics=["mail"], event_id="m3", payload=Payload(data=b"x" * (2 << 20)))
    await stage.publish(*publications, huge)
    held = await stage.claim()
    first = await stage.peek(held)
    assert [one.event_id for one in first.events] == ["m0", "m1"]
    second = await stage.peek(held, cursor=first.next_cursor)
    assert [one.event_id for one in second.events] == ["m2"]
    third = await stage.peek(held, cursor=second.next_cursor)
    assert [one.event_id for one in third.events] == ["m3"]
    assert third.next_cursor == ""
    got = await _get(stage, held, "m3", "m0", "m9")
    assert ([one.event_id for one in got.events], list(got.remaining), list(got.missing)) == (["m3"], ["m0"], ["m9"])


async def test_a_run_brings_the_first_pending_events_of_its_topics_along(stage: Stage) -> None:
    await stage.deploy(consumer(subscribes=["chat", "mail"]))
    await stage.publish(*(event(f"m{number}", value=number) for number in range(5)))
    held = await stage.claim()
    [chat, mail] = held.task.pending
    assert (chat.topic, list(chat.events), chat.next_cursor) == ("chat", [], "")
    assert [one.event_id for one in mail.events] == ["m0", "m1", "m2"]
    assert mail.events[0] == (await stage.peek(held)).events[0]
    rest = await stage.peek(held, cursor=mail.next_cursor)
    assert [one.event_id for one in rest.events] == ["m3", "m4"]
    await stage.prepare(held, "m0")
    await stage.expire(held.run_id)
    # What was prepared needs no look any more.
    assert list((await stage.claim()).task.pending) == []


async def test_get_answers_events_of_any_status_in_the_order_asked(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1"), event("m2"), event("m3"))
    await stage.consume(await stage.claim(), "m2")
    held = await stage.claim()
    got = await _get(stage, held, "m3", "nobody", "m2")
    assert [(one.event_id, one.status) for one in got.events] == [
        ("m3", pb.DELIVERY_PENDING),
        ("m2", pb.DELIVERY_CONSUMED),
    ]
    assert list(got.missing) == ["nobody"]


async def test_looking_is_for_prepare_and_for_topics_of_the_consumer(stage: Stage) -> None:
    await stage.deploy(consumer(), producer())
    held = await stage.claim(expect="add")
    said = await stage.refused(stage.peeking(held, "row"))
    assert "inbox.add does not subscribe to the topic 'row'" in said.message
    await stage.prepare(held)
    said = await stage.refused(stage.peeking(held))
    assert "only in `prepare`" in said.message
    await stage.commit(held)
    poll = await stage.claim(expect="poll")
    assert "only in `prepare`" in (await stage.refused(stage.peeking(poll))).message
