"""Automations in an environment: producers, `wake_at` and backoff follow the clock that the test moves."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest

import kagzi.testing
from kagzi import (
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Transient,
    Unclear,
    mutation,
)
from kagzi.testing import Environment


async def test_two_producers_keep_their_own_times() -> None:
    fired: list[tuple[str, datetime]] = []
    automation = Automation("clocks")

    @automation.producer(every="5m", publishes="tick")
    async def often(ctx: ProducerContext, state: Any) -> None:
        fired.append(("often", ctx.now()))

    @automation.producer(every="1h", publishes="tick")
    async def seldom(ctx: ProducerContext, state: Any) -> None:
        fired.append(("seldom", ctx.now()))

    async with kagzi.testing.environment(automations=[automation]) as env:
        await env.settle()
        assert [name for name, _ in fired] == ["often", "seldom"]
        fired.clear()
        start = env.now()
        await env.skip("2h1s")
        short = [at for name, at in fired if name == "often"]
        long = [at for name, at in fired if name == "seldom"]
        assert (len(short), len(long)) == (24, 2)
        assert {round((later - earlier).total_seconds()) for earlier, later in itertools.pairwise(short)} == {300}
        assert abs((long[0] - start).total_seconds() - 3_600) < 5


def digest(woken: list[tuple[datetime, str]], wakes: dict[str, Any]) -> Automation:
    automation = Automation("digest", accepts=["mail"])

    @automation.consumer(subscribe="mail")
    class Daily:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            woken.append((ctx.now(), ctx.trigger))
            given = wakes["at"]
            return Prepared(wake_at=None if given is None else ctx.now() + given)

    return automation


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (timedelta(hours=3), timedelta(hours=3)),
        (timedelta(seconds=1), timedelta(seconds=30)),
        (timedelta(days=-1), timedelta(seconds=30)),
        (timedelta(days=9), timedelta(hours=24)),
    ],
)
async def test_a_consumer_is_woken_when_it_asked_within_bounds(asked: timedelta, kept: timedelta) -> None:
    woken: list[tuple[datetime, str]] = []
    wakes: dict[str, Any] = {"at": asked}
    async with kagzi.testing.environment(automations=[digest(woken, wakes)]) as env:
        await env.settle()
        wakes["at"] = None
        await env.skip(kept - timedelta(seconds=5))
        assert [trigger for _, trigger in woken] == ["deploy"]
        await env.skip("10s")
        assert [trigger for _, trigger in woken] == ["deploy", "wake"]
        assert abs(((woken[1][0] - woken[0][0]) - kept).total_seconds()) < 2
        await env.skip("48h")
        assert len(woken) == 2, "what is omitted is cleared"


async def test_an_event_wakes_before_wake_at() -> None:
    woken: list[tuple[datetime, str]] = []
    wakes: dict[str, Any] = {"at": timedelta(hours=3)}
    async with kagzi.testing.environment(automations=[digest(woken, wakes)]) as env:
        await env.settle()
        await env.client.automations.publish("digest", "mail", id="1")
        await env.settle()
        assert [trigger for _, trigger in woken] == ["deploy", "event"]


async def test_a_consumer_that_reserves_nothing_does_not_spin() -> None:
    woken: list[tuple[datetime, str]] = []
    async with kagzi.testing.environment(automations=[digest(woken, {"at": None})]) as env:
        await env.client.automations.publish("digest", "mail", id="1")
        await env.settle()
        count = len(woken)
        await env.skip("24h")
        assert len(woken) == count <= 2


async def test_two_consumers_wake_at_their_own_times() -> None:
    woken: list[tuple[str, datetime]] = []
    automation = Automation("x", accepts="t")

    def consumer(name: str, after: timedelta) -> None:
        @automation.consumer(subscribe="t", name=name)
        class Wake:
            async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
                woken.append((name, ctx.now()))
                return Prepared(wake_at=(ctx.now() + after).isoformat())

    consumer("soon", timedelta(minutes=10))
    consumer("late", timedelta(minutes=25))
    async with kagzi.testing.environment(automations=[automation]) as env:
        await env.settle()
        woken.clear()
        await env.skip("51m")
        assert [name for name, _ in woken].count("soon") == 5
        assert [name for name, _ in woken].count("late") == 2


async def test_a_transient_error_backs_off_and_blocks_after_five() -> None:
    tries: list[datetime] = []
    automation = Automation("x")

    @automation.producer(every="1d", publishes="t")
    async def poll(ctx: ProducerContext, state: Any) -> None:
        tries.append(ctx.now())
        raise Transient("the outside is busy")

    async with kagzi.testing.environment(automations=[automation]) as env:
        await env.settle()
        assert len(tries) == 1
        await env.skip("5m")
        gaps = [round((later - earlier).total_seconds()) for earlier, later in itertools.pairwise(tries)]
        assert gaps == [10, 20, 40, 80]
        info = await env.client.automations.get("x")
        assert info.blocked is not None
        assert (info.blocked.code, info.blocked.handler) == ("RETRIES_USED_UP", "poll")
        assert "the outside is busy" in info.blocked.message
        await env.client.automations.retry_blocked("x")
        await env.settle()
        assert len(tries) == 6


async def test_doubt_is_reconciled_with_growing_waits_and_then_left_to_a_person() -> None:
    calls: list[str] = []
    asked: list[datetime] = []
    outcomes: list[Outcome] = []
    env: Environment

    @mutation
    async def send(what: str) -> str:
        calls.append(what)
        raise ConnectionError("reset")

    @send.reconcile
    async def _(key: str, what: str) -> Unclear:
        asked.append(env.now())
        return Unclear()

    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Send:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("t", limit=1)
            return Prepared(reserve={"t": [event.id for event in found]}, title="Send it")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(send, "hello")

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            if prepared.reserved:
                outcomes.append(outcome)

    async with kagzi.testing.environment(automations=[automation]) as env:
        await env.client.automations.publish("x", "t", id="1")
        await env.settle()
        await env.skip("20m")
        gaps = [round((later - earlier).total_seconds()) for earlier, later in itertools.pairwise(asked)]
        assert (len(calls), gaps) == (1, [10, 20, 40, 80])
        info = await env.client.automations.get("x")
        assert info.status == "BLOCKED"
        assert info.blocked is not None
        assert info.blocked.mutation is not None
        doubtful = info.blocked.mutation
        assert (doubtful.status, doubtful.title, doubtful.parameters) == ("INDETERMINATE", "Send it", {"what": "hello"})
        again = await env.client.automations.resolve_mutation("x", doubtful.mutation_id, "check_again")
        assert again.status == "IN_FLIGHT"
        await env.skip("20m")
        assert len(asked) == 10
        told = await env.client.automations.resolve_mutation(
            "x", doubtful.mutation_id, "happened", "receipt 7", reason="saw it in the outbox"
        )
        assert (told.status, told.resolved_by_person) == ("APPLIED", True)
        await env.settle()
        assert (len(calls), outcomes) == (1, [Outcome("applied", "receipt 7")])
        info = await env.client.automations.get("x")
        assert (info.status, info.live_run, info.pending) == ("ACTIVE", None, 0)
