"""What became of it: every event, run and mutation can be traced to what came from outside, and back."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.store import events, inputs
from kagzi.store.errors import Refused
from tests.automations.stage import MAIL, NAMESPACE, Stage, consumer, data, event, producer

OTHER = pb.InputKey(source="gmail", type="email", id="m2")


async def _input(stage: Stage, key: pb.InputKey = MAIL) -> pb.GetInputResponse:
    return await stage.database.read(lambda c: inputs.get(c, NAMESPACE, "inbox", key))


async def _flow(stage: Stage) -> None:
    """An e-mail that became a row, which is not told of yet."""
    await stage.deploy(producer(), consumer(publishes=["row"]), consumer("tell", ["row"]))
    while (held := await stage.claim()).task.handler != "poll":
        await stage.consume(held)
    await stage.commit(held, event("m1", input=MAIL), event("m2", input=OTHER))
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1", title="Add a row for m1")
    await stage.mutate(held, result=data(1))
    await stage.commit(held, event("r1", "row"))


async def test_an_input_leads_to_events_runs_and_mutations(stage: Stage) -> None:
    await _flow(stage)
    found = await _input(stage)
    assert (found.input.key, found.input.title) == (MAIL, "mail")
    assert found.input.status == pb.INPUT_PENDING
    assert [(one.topic, one.event_id) for one in found.events] == [("mail", "m1"), ("row", "r1")]
    assert [one.title for one in found.runs] == ["Add a row for m1"]
    assert [list(one.reserved[0].event_ids) for one in found.runs] == [["m1"]]
    [mutation] = found.mutations
    assert (mutation.tool, mutation.status, mutation.run_id) == (
        "append_row",
        pb.MUTATION_APPLIED,
        found.runs[0].run_id,
    )
    assert not mutation.HasField("parameters")
    [delivery] = found.events[0].deliveries
    assert (delivery.consumer, delivery.status, delivery.run_id) == (
        "add",
        pb.DELIVERY_CONSUMED,
        found.runs[0].run_id,
    )
    assert found.events[1].inputs == [MAIL]


async def test_an_input_is_pending_while_any_delivery_it_caused_is(stage: Stage) -> None:
    await _flow(stage)
    assert (await _input(stage)).input.pending == 1
    held = await stage.claim(expect="add")
    await stage.prepare(held)
    await stage.commit(held)
    held = await stage.claim(expect="tell")
    await stage.prepare(held, "r1", topic="row")
    assert (await _input(stage)).input.status == pb.INPUT_PENDING
    await stage.commit(held)
    assert (await _input(stage)).input.status == pb.INPUT_DONE


async def test_an_event_that_joins_several_inherits_all_their_inputs(stage: Stage) -> None:
    await stage.deploy(consumer(publishes=["row"]))
    await stage.publish(event("m1", input=MAIL), event("m2", input=OTHER))
    held = await stage.claim()
    await stage.prepare(held, "m1", "m2")
    await stage.commit(held, event("r1", "row"), event("r2", "row"))
    for key in (MAIL, OTHER):
        found = await _input(stage, key)
        assert [one.event_id for one in found.events] == [f"{key.id}", "r1", "r2"]
        assert len(found.runs) == 1


async def test_failed_tries_and_continuations_are_part_of_the_story(stage: Stage) -> None:
    await stage.deploy(consumer(publishes=["row"]))
    await stage.publish(event("m1", input=MAIL))
    first = await stage.claim()
    await stage.prepare(first, "m1")
    await stage.fail(first)
    await stage.move(seconds=11)
    await stage.ring()
    second = await stage.claim()
    await stage.prepare(second, "m1")
    await stage.mutate(second)
    await stage.fail(second)
    await stage.move(minutes=5)
    await stage.ring()
    third = await stage.claim()
    await stage.commit(third)
    found = await _input(stage)
    assert [one.run_id for one in found.runs] == [first.run_id, second.run_id, third.run_id]
    assert found.runs[2].continues_run_id == second.run_id
    assert [one.run_id for one in found.mutations] == [second.run_id]
    assert found.events[0].deliveries[0].attempts == 1


async def test_registering_an_input_again_changes_only_its_title(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1", input=MAIL))
    before = (await _input(stage)).input
    await stage.connection.execute("update kagzi.inputs set title = 'old'")
    await stage.publish(event("m2", input=MAIL))
    after = (await _input(stage)).input
    assert (after.title, after.created_at) == ("", before.created_at)
    assert len((await _input(stage)).events) == 2


async def test_skipping_an_input_leaves_to_a_run_what_it_has(stage: Stage) -> None:
    await stage.deploy(consumer())
    await stage.publish(event("m1", input=MAIL), event("m2", input=MAIL))
    held = await stage.claim()
    await stage.prepare(held, "m1")
    skipped = await stage.transact(lambda c, _: inputs.skip(c, NAMESPACE, "inbox", MAIL))
    assert (skipped.skipped, skipped.reserved) == (1, 1)
    assert skipped.input.status == pb.INPUT_PENDING
    await stage.commit(held)
    assert (await _input(stage)).input.status == pb.INPUT_SKIPPED
    again = await stage.transact(lambda c, _: inputs.skip(c, NAMESPACE, "inbox", MAIL))
    assert (again.skipped, again.reserved) == (0, 0)


async def test_an_input_nobody_registered_is_not_found(stage: Stage) -> None:
    await stage.deploy(consumer())
    with pytest.raises(Refused, match="there is no input 'gmail/email/m1'"):
        await _input(stage)
    with pytest.raises(Refused, match="there is no input"):
        await stage.transact(lambda c, _: inputs.skip(c, NAMESPACE, "inbox", MAIL))


async def test_events_are_looked_for_no_further_than_asked(stage: Stage) -> None:
    await _flow(stage)
    given: dict[str, Any] = dict.fromkeys(("event_id", "run_id", "consumer", "statuses"))
    given |= {"topic": "mail", "count": 1, "after_at": None, "after_topic": "", "after_id": ""}

    async def look() -> list[str] | None:
        found, place = await stage.database.read(lambda c: events.look(c, NAMESPACE, "inbox", look_at=1, **given))
        if place is None:
            return None
        given.update(zip(("after_at", "after_topic", "after_id"), place, strict=True))
        return [one.event_id for one in found]

    assert [await look() for _ in range(4)] == [[], ["m2"], ["m1"], None]


async def test_events_are_listed_newest_first_with_what_became_of_them(stage: Stage) -> None:
    await _flow(stage)
    nothing = dict.fromkeys(
        ("topic", "event_id", "run_id", "consumer", "statuses", "after_at", "after_topic", "after_id")
    )

    async def listed(count: int = 10, **filters: Any) -> tuple[list[str], bool]:
        given: dict[str, Any] = {**nothing, "count": count, **filters}
        found, last = await stage.database.read(lambda c: events.list_(c, NAMESPACE, "inbox", payloads=False, **given))
        # Looking no further than there is anything finds the same.
        looked, _ = await stage.database.read(lambda c: events.look(c, NAMESPACE, "inbox", look_at=100, **given))
        assert looked == found
        return [one.event_id for one in found], last is not None

    assert await listed() == (["r1", "m2", "m1"], False)
    assert await listed(count=2) == (["r1", "m2"], True)
    assert await listed(topic="row") == (["r1"], False)
    assert await listed(consumer="add", statuses=["PENDING"]) == (["m2"], False)
    assert await listed(statuses=["CONSUMED"]) == (["m1"], False)
    assert await listed(consumer="nobody") == ([], False)


async def test_an_input_is_judged_by_no_more_than_is_looked_at(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("also"))
    await stage.publish(*(event(f"e{number}", input=MAIL) for number in range(6)), event("other", input=OTHER))

    async def seen(look_at: int) -> list[tuple[str, int, int, bool]]:
        nothing: dict[str, Any] = dict.fromkeys(
            ("source", "type", "statuses", "after_at", "after_source", "after_type", "after_key")
        )
        found = await stage.database.read(
            lambda c: inputs.list_(c, NAMESPACE, "inbox", look_at=look_at, count=10, **nothing)
        )
        return sorted((one.key.id, one.status, one.pending, one.partial) for one in found)

    other = ("m2", pb.INPUT_PENDING, 2, False)
    assert await seen(0) == await seen(12) == [(MAIL.id, pb.INPUT_PENDING, 12, False), other]
    # One more than asked for tells that there is more.
    assert await seen(5) == [(MAIL.id, pb.INPUT_PENDING, 6, True), other]
    await stage.connection.execute(
        "update kagzi.deliveries set status = 'CONSUMED', run_id = gen_random_uuid() where event_id <> 'other'"
    )
    assert await seen(12) == [(MAIL.id, pb.INPUT_DONE, 0, False), other]
    assert await seen(11) == [(MAIL.id, pb.INPUT_STATUS_UNSPECIFIED, 0, True), other]
    found = await stage.database.read(lambda c: inputs.get(c, NAMESPACE, "inbox", MAIL, look_at=4))
    assert (len(found.events), found.truncated, found.input.partial) == (4, True, True)
    assert all(len(one.deliveries) == 2 and not one.inputs for one in found.events)
    found = await stage.database.read(lambda c: inputs.get(c, NAMESPACE, "inbox", MAIL, look_at=12))
    assert (len(found.events), found.truncated, found.input.status) == (6, False, pb.INPUT_DONE)
