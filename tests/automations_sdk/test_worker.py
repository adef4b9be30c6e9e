"""A worker and its automations: it deploys them before it runs them, keeps what it encodes to itself, and gives back
what it cannot finish.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

import asyncpg
import pytest

import kagzi.testing
from kagzi import (
    Automation,
    Client,
    Compression,
    Encryption,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Worker,
    mutation,
)
from kagzi.errors import InvalidArgument
from kagzi.sdk.inputs import Input
from tests.automations_sdk.declared import inbox
from tests.sdk.serving import serving, until

SECRET = "the moon is made of cheese"


@mutation
async def tell(what: str) -> str:
    return f"told {what}"


def secretive() -> Automation:
    automation = Automation("secretive", accepts="said")

    @automation.consumer(subscribe="said", publishes="told")
    class Tell:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("said")
            if not found:
                return Prepared()
            return Prepared(reserve={"said": [event.id for event in found]}, data=found[0].payload)

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(tell, prepared.data)

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> Any:
            if outcome.applied:
                ctx.publish("told", id="1", payload=outcome.result)
                return {"last": outcome.result}
            return None

    return automation


async def test_payloads_of_automations_go_through_the_codecs_and_come_back() -> None:
    codecs = (Compression(min_size=8), Encryption({"now": os.urandom(32)}, "now"))
    async with kagzi.testing.environment(automations=[secretive()], codecs=codecs) as env:
        where = Input("desk", "note", "1")
        await env.client.automations.publish("secretive", "said", id="1", payload=SECRET, input=where)
        await env.settle()
        [told] = [event async for event in env.client.automations.events("secretive", topic="told", payloads=True)]
        assert told.payload == f"told {SECRET}"
        info = await env.client.automations.get("secretive", state_of="Tell")
        assert info.handlers["Tell"].state == {"last": f"told {SECRET}"}
        lineage = await env.client.automations.input("secretive", "desk", "note", "1")
        assert [change.status for change in lineage.mutations] == ["APPLIED"]
        connection = await asyncpg.connect(env.database_url)
        try:
            for table in ("events", "handlers", "mutations", "workflow_payloads"):
                rows = await connection.fetch(f"select t::text from kagzi.{table} t")  # noqa: S608 - names of ours
                assert rows
                assert SECRET.encode().hex() not in "".join(row["t"] for row in rows)
        finally:
            await connection.close()


async def test_a_definition_that_the_server_refuses_ends_the_worker(database_url: str) -> None:
    automation = inbox()

    class Refused(Automation):
        def definition(self, queue: str) -> Any:
            made = super().definition(queue)
            made.handlers[0].ClearField("publishes")
            return made

    automation.__class__ = Refused
    async with serving(database_url) as server:
        with pytest.raises(InvalidArgument, match="publishes to no topic"):
            async with Worker(server.address, automations=[automation]):
                pass


async def test_a_worker_that_lost_its_connection_deploys_again_and_changes_nothing(database_url: str) -> None:
    async with (
        serving(database_url) as server,
        Client(server.address) as client,
        Worker(server.address, automations=[inbox()], drain_timeout=0) as worker,
    ):
        await resting(client, "email-to-sheets")
        before = await client.automations.get("email-to-sheets")
        assert worker._shift is not None
        link = worker._shift.link
        link.tried.clear()
        link.reconnect()
        await asyncio.wait_for(link.tried.wait(), 10)
        after = await client.automations.get("email-to-sheets")
    assert (after.deployed_at, after.handlers["poll"].next_run_at) == (
        before.deployed_at,
        before.handlers["poll"].next_run_at,
    )


async def test_an_older_worker_does_not_bring_its_definition_back(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    newer = inbox()
    newer.consumer(subscribe="row.created", name="More")(secretive().handlers[0].source)
    async with (
        serving(database_url) as server,
        Client(server.address) as client,
        Worker(server.address, automations=[inbox()], drain_timeout=0) as old,
        Worker(server.address, automations=[newer], drain_timeout=0),
    ):
        assert old._shift is not None
        with caplog.at_level(logging.WARNING, "kagzi.worker"):
            old._shift.link.reconnect()
            await until(lambda: "a later worker has deployed another definition" in caplog.text)
        info = await client.automations.get("email-to-sheets")
    assert info.definition_hash == newer.definition_hash


async def test_plain_functions_run_beside_the_loop() -> None:
    automation = Automation("plain")

    @automation.producer(every="1d", publishes="t")
    def poll(ctx: ProducerContext, state: Any) -> int:
        ctx.publish("t", id="1", payload=kagzi.idempotency_key(), input=ctx.register_input("s", "t", "1"))
        return 1

    @automation.consumer(subscribe="t")
    class Take:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"t": [event.id for event in await ctx.peek("t")]})

        def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> int:
            return (ctx.state or 0) + len(prepared.reserve)

    async with kagzi.testing.environment(automations=[automation]) as env:
        await env.settle()
        info = await env.client.automations.get("plain", state_of="Take")
        assert (info.status, info.handlers["Take"].state) == ("ACTIVE", 1)


async def test_a_worker_that_stops_gives_its_handler_back_and_another_goes_on(database_url: str) -> None:
    began = asyncio.Event()
    stuck = {"yes": True}

    def made() -> Automation:
        automation = Automation("slow", accepts="t")

        @automation.consumer(subscribe="t")
        class Slow:
            async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
                began.set()
                if stuck["yes"]:
                    await asyncio.Event().wait()
                return Prepared()

        return automation

    async with serving(database_url) as server, Client(server.address) as client:
        async with Worker(server.address, automations=[made()], drain_timeout=0):
            await asyncio.wait_for(began.wait(), 10)
            [run] = [run async for run in client.runs()]
        stuck["yes"] = False
        async with Worker(server.address, automations=[made()], drain_timeout=0):
            await resting(client, "slow")
        [done] = [run async for run in client.runs()]
    assert (done.run_id, done.status) == (run.run_id, "COMPLETED")


async def resting(client: Client, name: str) -> None:
    """Nothing of the automation runs or waits."""
    async with asyncio.timeout(20):
        while True:
            info = await client.automations.get(name)
            if info.live_run is None and not any(handler.dirty for handler in info.handlers.values()):
                return
            await asyncio.sleep(0.02)
