"""What an automation runs next, and when: producers by their times, consumers by what is pending for them."""

from __future__ import annotations

from tests.automations.stage import MAIL, Stage, consumer, event, producer


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

    # It reserved something and looks again, after whoever has the older event: both have none but one.
    tell = await stage.claim(expect="tell")
    await stage.consume(tell, "r1", topic="row")
    assert {(await stage.claim()).task.handler} <= {"add", "tell"}
