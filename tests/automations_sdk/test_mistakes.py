"""Mistakes that are easily made, and must neither lose a change nor leave its author in the dark."""

from __future__ import annotations

from typing import Any

import pytest

from kagzi import (
    Absent,
    Automation,
    MutateContext,
    NextContext,
    Outcome,
    PrepareContext,
    Prepared,
    ProducerContext,
    mutation,
)
from kagzi.automations.rehearsal import rehearse
from kagzi.errors import ConfigError
from kagzi.protocol.v1 import automation_pb2 as pb
from tests.automations_sdk.stage import Stage, plain


def acting(mutate: Any) -> Automation:
    """An automation whose one consumer mutates so."""
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"t": ["7"]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await mutate(ctx)

    return automation


def tool(calls: list[str], name: str = "change") -> Any:
    @mutation(name=name)
    async def change(what: str) -> None:
        calls.append(what)

    return change


async def test_a_mutation_whose_await_was_forgotten_happens_all_the_same() -> None:
    calls: list[str] = []
    # A name of its own: which of two is meant could not be told while the tool of another test is still in memory.
    change = tool(calls, "forgotten")

    async def mutate(ctx: MutateContext) -> None:
        ctx.mutate(change, "once")  # type: ignore[unused-awaitable,unused-ignore]

    stage = Stage()
    await stage.play(acting(mutate), "Act")
    assert stage.names == ["commit_prepare", "begin_mutation", "finish_mutation", "commit_handler"]
    assert calls == ["once"]


async def test_a_mutation_that_a_phase_calls_itself_is_not_called() -> None:
    calls: list[str] = []
    change = tool(calls)

    async def mutate(ctx: MutateContext) -> None:
        await change("unrecorded")

    stage = Stage()
    await stage.play(acting(mutate), "Act")
    failed = stage.body("fail")
    assert failed.fault == pb.FAULT_DEFECT
    assert "`mutate` of 'Act' calls the mutation 'change' itself" in failed.failure.message
    assert calls == []
    # Elsewhere, as in a test of its own, it is a function like others.
    await change("here")
    assert calls == ["here"]


async def test_a_mutation_may_use_another_one() -> None:
    calls: list[str] = []
    inner = tool(calls)

    @mutation
    async def outer() -> None:
        await inner("inside")

    async def mutate(ctx: MutateContext) -> None:
        await ctx.mutate(outer)

    stage = Stage()
    await stage.play(acting(mutate), "Act")
    assert stage.body("finish_mutation").verdict == pb.FinishMutation.VERDICT_APPLIED
    assert calls == ["inside"]


async def test_a_defect_says_where_it_is() -> None:
    async def mutate(ctx: MutateContext) -> None:
        raise KeyError("cursor")

    stage = Stage()
    await stage.play(acting(mutate), "Act")
    line = mutate.__code__.co_firstlineno + 1
    assert stage.body("fail").failure.message == f"'cursor' (test_mistakes.py:{line} in mutate)"


def test_a_reconciler_takes_the_key_and_what_its_mutation_takes() -> None:
    @mutation
    async def change(what: str, *, loud: bool = False) -> None: ...

    async def without_the_key(what: str, *, loud: bool = False) -> Absent:
        return Absent()

    async def without_an_option(key: str, what: str) -> Absent:
        return Absent()

    async def right(key: str, what: str, loud: bool = False) -> Absent:
        return Absent()

    for wrong in (without_the_key, without_an_option):
        with pytest.raises(ConfigError, match=r"'change' is called with the .* as \(key, what, loud\)"):
            change.reconcile(wrong)
    assert change.reconcile(right) is right


async def test_a_rehearsal_also_runs_next_as_it_is_with_nothing_reserved() -> None:
    class Careless:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared()

        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            ctx.publish("u", id=prepared.data["id"])

    class Careful(Careless):
        async def next(self, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            ctx.publish("u", id="looked", payload={"applied": outcome.applied})

    automation = Automation("x", accepts="t")
    for consumer in (Careless, Careful):
        automation.consumer(subscribe="t", publishes="u")(consumer)
    [finding] = await rehearse(automation)
    assert finding.handler == "Careless"
    assert "`next` raised TypeError" in finding.message
    assert "with nothing reserved: look at `outcome.applied` first" in finding.message
    assert "test_mistakes.py:" in finding.message


async def test_a_rehearsal_mutates_nothing_even_if_a_prepare_tries() -> None:
    calls: list[str] = []
    change = tool(calls)
    automation = Automation("x", accepts="t")

    @automation.consumer(subscribe="t")
    class Eager:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            await change("too early")
            return Prepared()

    [finding] = await rehearse(automation)
    assert "`prepare` of 'Eager' calls the mutation 'change' itself" in finding.message
    assert calls == []


async def test_a_state_of_another_type_than_before_is_told_as_that() -> None:
    automation = Automation("x")

    @automation.producer(every="5m", publishes="t")
    async def poll(ctx: ProducerContext, state: dict[str, int] | None) -> None: ...

    stage = Stage()
    await stage.play(automation, "poll", state=plain("yesterday's"))
    failed = stage.body("fail")
    assert failed.fault == pb.FAULT_DEFECT
    assert failed.failure.message.startswith("The state of 'poll' is stored as something else than it is declared")
