"""What a handler may not do, tried against a real server: a clear error, nothing of its run stored, and the automation
blocked with that message until other code is deployed or a person retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import kagzi.testing
from kagzi import (
    Automation,
    MutateContext,
    NeedsAttention,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    Worker,
    mutation,
)
from kagzi.sdk.automation_info import AutomationInfo, EventInfo, InputInfo
from kagzi.testing import Environment

Wrong = Callable[[Any], Any]
LARGE = "x" * 2_200_000
calls: list[str] = []


@mutation
async def change(what: str) -> str:
    calls.append(what)
    return what


def producing(name: str, do: Wrong) -> Automation:
    """A producer that publishes as it should, then does something else."""
    automation = Automation(name)

    @automation.producer(every="1d", publishes="good")
    async def poll(ctx: ProducerContext, state: Any) -> Any:
        source = ctx.register_input("s", "t", "1")
        ctx.publish("good", id="1", payload=1, input=source)
        return do(ctx)

    @automation.consumer(subscribe="good")
    class Follow:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared()

    return automation


def consuming(name: str, phase: str, do: Wrong) -> Automation:
    """A consumer that does what it should, and something else in one phase."""
    automation = Automation(name, accepts="good")

    async def maybe(here: str, ctx: Any) -> Any:
        if here != phase:
            return None
        given = do(ctx)
        return await given if hasattr(given, "__await__") else given

    @automation.consumer(subscribe="good", publishes="more")
    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            found = await ctx.peek("good")
            if not found:
                return Prepared()
            return await maybe("prepare", ctx) or Prepared(reserve={"good": [event.id for event in found]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await maybe("mutate", ctx)

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> Any:
            if not prepared.reserved:
                return None
            ctx.publish("more", id="1")
            return await maybe("next", ctx)

    @automation.consumer(subscribe="more")
    class Follow:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared()

    return automation


async def twice(ctx: MutateContext) -> None:
    await ctx.mutate(change, "one")
    await ctx.mutate(change, "two")


PRODUCERS: list[tuple[Wrong, str]] = [
    (lambda ctx: ctx.publish("undeclared", id="2", input=ctx.register_input("s", "t", "2")), "'undeclared'"),
    (lambda ctx: ctx.publish("good", id="2", input=None), "what it came from"),
    (lambda ctx: ctx.peek("good"), "only `prepare` looks at pending events"),
    (lambda _: {"large": LARGE}, "too large"),
    (lambda ctx: ctx.publish("good", id="2", payload=LARGE, input=ctx.register_input("s", "t", "2")), "too large"),
    (lambda _: {"what": object()}, "Cannot encode"),
]
CONSUMERS: list[tuple[str, Wrong, str]] = [
    ("prepare", lambda ctx: ctx.publish("more", id="2"), "only producers and `next` publish"),
    ("prepare", lambda _: Prepared(reserve={"good": ["404"]}), "404"),
    ("prepare", lambda _: Prepared(reserve={"more": ["1"]}), "does not subscribe"),
    ("prepare", lambda _: Prepared(reserve={"good": ["1"]}, wake_at="soon"), "`wake_at` of 'Act'"),
    ("prepare", lambda _: Prepared(reserve={"good": ["1"]}, data=LARGE), "too large"),
    ("mutate", lambda ctx: ctx.peek("good"), "only `prepare` looks at pending events"),
    ("mutate", twice, "A second ctx.mutate"),
    ("mutate", lambda ctx: ctx.mutate(print, "x"), "put @mutation on the function"),
    ("next", lambda ctx: ctx.publish("undeclared", id="2"), "'undeclared'"),
    ("next", lambda ctx: ctx.mutate(change, "late"), "only `mutate` changes the outside"),
    ("next", lambda ctx: ctx.publish("more", id="2", payload=LARGE), "too large"),
    ("next", lambda _: {"large": LARGE}, "too large"),
]


@dataclass(frozen=True, slots=True)
class Found:
    """How an automation stood when nothing moved any more."""

    info: AutomationInfo
    events: list[EventInfo]
    inputs: list[InputInfo]
    state: Any


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    """All of them go wrong side by side."""
    return asyncio.run(go_wrong())


async def go_wrong() -> dict[str, Found]:
    calls.clear()
    producers = [producing(f"producer-{number}", do) for number, (do, _) in enumerate(PRODUCERS)]
    consumers = [consuming(f"consumer-{number}", phase, do) for number, (phase, do, _) in enumerate(CONSUMERS)]
    async with kagzi.testing.environment(automations=[*producers, *consumers]) as env:
        for automation in consumers:
            await env.client.automations.publish(automation.name, "good", id="1", payload=1)
        # What is blocked stays so, whatever time passes.
        await env.skip("3d")
        return {each.name: await look(env, each) for each in (*producers, *consumers)}


async def look(env: Environment, automation: Automation) -> Found:
    name, handler = automation.name, automation.handlers[0].name
    info = await env.client.automations.get(name, state_of=handler)
    events = [event async for event in env.client.automations.events(name)]
    inputs = [one async for one in env.client.automations.inputs(name)]
    return Found(info, events, inputs, info.handlers[handler].state)


@pytest.mark.parametrize("number", range(len(PRODUCERS)))
def test_nothing_of_a_producer_that_goes_wrong_is_stored(number: int, found: dict[str, Found]) -> None:
    one = found[f"producer-{number}"]
    assert one.info.blocked is not None
    assert (one.info.blocked.code, one.info.blocked.handler, one.info.live_run) == ("DEFECT", "poll", None)
    assert PRODUCERS[number][1] in one.info.blocked.message
    assert (one.events, one.inputs, one.state) == ([], [], None)


@pytest.mark.parametrize("number", range(len(CONSUMERS)))
def test_nothing_of_a_consumer_that_goes_wrong_is_stored(number: int, found: dict[str, Found]) -> None:
    one = found[f"consumer-{number}"]
    assert one.info.blocked is not None
    assert (one.info.blocked.code, one.info.blocked.handler, one.info.live_run) == ("DEFECT", "Act", None)
    assert CONSUMERS[number][2] in one.info.blocked.message
    [event] = one.events
    assert (event.id, event.deliveries["Act"].status, one.state) == ("1", "PENDING", None)
    assert calls == []


async def test_a_person_unblocks_at_once_and_other_code_by_being_deployed() -> None:
    broken = {"yes": True}

    def poll(ctx: Any) -> Any:
        if broken["yes"]:
            raise NeedsAttention("log in again")
        return {"cursor": 1}

    async with kagzi.testing.environment(automations=[producing("x", poll)]) as env:
        await env.settle()
        info = await env.client.automations.get("x")
        assert info.blocked is not None
        assert (info.blocked.code, "log in again" in info.blocked.message) == ("NEEDS_ATTENTION", True)
        await env.client.automations.retry_blocked("x")
        await env.settle()
        assert (await env.client.automations.get("x")).status == "BLOCKED"
        broken["yes"] = False
        changed = producing("x", poll)
        changed.producer(every="1d", publishes="good", name="more")(changed.handlers[0].source)
        async with Worker(env.url, automations=[changed], drain_timeout=0):
            await env.settle()
            info = await env.client.automations.get("x", state_of="poll")
            assert (info.status, info.handlers["poll"].state) == ("ACTIVE", {"cursor": 1})
            assert set(info.handlers) == {"poll", "more", "Follow"}
