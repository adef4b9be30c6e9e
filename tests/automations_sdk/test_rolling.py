"""A rolling deploy: workers with old and new code of one automation are there at the same time. The definition that was
deployed last stays in force, and every run goes to a worker that knows its handler.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kagzi import Automation, Client, NextContext, Outcome, PrepareContext, Prepared, Worker
from tests.automations_sdk.test_worker import resting
from tests.sdk.serving import serving, until

Ran = list[tuple[str, str, str]]


def code(age: str, names: tuple[str, ...], ran: Ran) -> Automation:
    """A version of the automation, whose consumers note who ran them, and what for."""
    automation = Automation("flow", accepts="t")
    for name in names:

        class Take:
            async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
                return Prepared(reserve={"t": [event.id for event in await ctx.peek("t", limit=1)]})

            async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
                for taken in prepared.reserve.get("t", []):
                    ran.append((age, ctx.handler, taken))

        automation.consumer(subscribe="t", name=name)(Take)
    # As if the modules differed, which they do when code is deployed.
    automation.__dict__["definition_hash"] = age
    return automation


async def publish(client: Client, *ids: str) -> None:
    for one in ids:
        await client.automations.publish("flow", "t", id=one)
    await resting(client, "flow")


async def test_old_and_new_workers_side_by_side_leave_the_new_definition_in_force(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran: Ran = []
    async with (
        serving(database_url) as server,
        Client(server.address) as client,
        Worker(server.address, automations=[code("old", ("Kept", "Gone"), ran)], drain_timeout=0) as old,
    ):
        await publish(client, "1")
        assert sorted(ran) == [("old", "Gone", "1"), ("old", "Kept", "1")]
        async with Worker(server.address, automations=[code("new", ("Kept", "Added"), ran)], drain_timeout=0):
            await resting(client, "flow")
            deployed = await client.automations.get("flow")
            assert (deployed.definition_hash, set(deployed.handlers)) == ("new", {"Kept", "Added"})
            for _ in range(3):
                await _reconnect(old, caplog)
            ids = [str(number) for number in range(2, 12)]
            await publish(client, *ids)
            after = await client.automations.get("flow")
    assert (after.deployed_at, after.definition_hash) == (deployed.deployed_at, "new")
    assert set(after.handlers) == {"Kept", "Added"}
    # What only new code knows was run by it alone, and what is no longer declared by nobody.
    assert sorted(taken for _, handler, taken in ran if handler == "Added") == sorted(ids)
    assert {age for age, handler, _ in ran if handler == "Added"} == {"new"}
    assert [taken for _, handler, taken in ran if handler == "Gone"] == ["1"]
    assert sorted(taken for _, handler, taken in ran if handler == "Kept") == sorted(["1", *ids])


async def _reconnect(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    """The worker offers its definition again, and is told that it is superseded."""
    assert worker._shift is not None
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kagzi.worker"):
        worker._shift.link.reconnect()
        await until(lambda: "a later worker has deployed another definition" in caplog.text)


async def test_the_old_worker_may_end_first_or_last(database_url: str) -> None:
    ran: Ran = []
    async with serving(database_url) as server, Client(server.address) as client:
        new = Worker(server.address, automations=[code("new", ("Kept", "Added"), ran)], drain_timeout=0)
        async with Worker(server.address, automations=[code("old", ("Kept", "Gone"), ran)], drain_timeout=0):
            await new.__aenter__()
            await publish(client, "1")
        await publish(client, "2")
        assert (await client.automations.get("flow")).definition_hash == "new"
        assert sorted(ran[-2:]) == [("new", "Added", "2"), ("new", "Kept", "2")]
        await new.__aexit__(None, None, None)
