"""What leaves together: operations between which no users' code stands, or only code that may not touch the outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kagzi import Automation, MutateContext, NextContext, Outcome, PrepareContext, Prepared, Transient, mutation
from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from tests.automations_sdk.stage import Stage

GONE = pb.PrepareCommitted(not_pending=[pb.EventSelection(topic="t", event_ids=["7"])])


class Slow(Stage):
    """Answers nothing before it is told to."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(**answers)
        self.held: list[Callable[[], None]] = []
        self.silent = True

    def send(self, run: Any, name: str, body: Any, answered: Callable[[Any], None] | None = None) -> None:
        if not self.silent:
            super().send(run, name, body, answered)
            return
        self.sent.append((name, body))

        def answer() -> None:
            self.sent.pop(0)
            Stage.send(self, run, name, body, answered)

        self.held.append(answer)

    def speak(self) -> None:
        """Answers what was sent, in its order, and from now on at once."""
        self.silent = False
        for answer in self.held:
            answer()


def consumer(mutate: Callable[[], Any] | None = None, *, calls: list[str], with_next: bool = False) -> Automation:
    """A consumer that computes with `mutate` what it has changed then."""
    automation = Automation("x", accepts=["t"])

    @mutation
    async def change(what: str) -> None:
        calls.append(what)

    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            calls.append("prepare")
            return Prepared(reserve={"t": ["7"]}, data="Ann")

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            if mutate is not None:
                await mutate()
            await ctx.mutate(change, prepared.data)

    if with_next:

        async def following(self: Any, ctx: NextContext, prepared: Prepared, outcome: Outcome) -> None:
            calls.append("next")

        Act.next = following  # type: ignore[attr-defined]
    automation.consumer(subscribe="t")(Act)
    return automation


async def turns() -> None:
    """Everything that can move by itself has moved."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_intent_leaves_with_the_preparation_and_the_tool_waits_for_both() -> None:
    stage, calls = Slow(), list[str]()
    stage.enter(consumer(calls=calls), "Act").begin()
    await turns()
    assert (stage.names, calls) == (["commit_prepare", "begin_mutation"], ["prepare"])
    stage.speak()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert calls == ["prepare", "Ann"]
    assert stage.names == ["commit_prepare", "begin_mutation", "finish_mutation", "commit_handler"]


async def test_a_preparation_does_not_wait_for_a_mutate_that_waits() -> None:
    stage, calls, ready = Slow(), list[str](), asyncio.Event()
    stage.enter(consumer(ready.wait, calls=calls), "Act").begin()
    await turns()
    assert stage.names == ["commit_prepare"]
    stage.speak()
    ready.set()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert stage.names == ["commit_prepare", "begin_mutation", "finish_mutation", "commit_handler"]


@pytest.mark.parametrize("error", [None, Transient("not now")])
async def test_what_was_computed_for_a_preparation_that_is_gone_counts_for_nothing(error: Exception | None) -> None:
    answers, calls = [GONE, pb.PrepareCommitted()], list[str]()

    async def once() -> None:
        if error is not None and len(calls) == 1:
            raise error

    def begun(begin: pb.BeginMutation) -> Any:
        first = len(answers) == 1 and calls.count("prepare") == 1
        return ErrorDetail(code=ErrorDetail.PRECONDITION_FAILED, message="no prepare") if first else None

    stage = Stage(commit_prepare=lambda _: answers.pop(0))
    usual = stage.answers["begin_mutation"]
    assert callable(usual)
    stage.answers["begin_mutation"] = lambda begin: begun(begin) or usual(begin)
    await stage.play(consumer(once, calls=calls), "Act")
    assert calls == ["prepare", "prepare", "Ann"]
    assert stage.names[-1] == "commit_handler"


async def test_what_mutate_raises_fails_the_run_once_its_preparation_is_stored() -> None:
    async def fails() -> None:
        raise Transient("not now")

    stage = Stage()
    await stage.play(consumer(fails, calls=[]), "Act")
    assert stage.names == ["commit_prepare", "step_failed", "fail"]
    assert (stage.body("fail").failed_step_id, stage.body("step_failed").step_id) == ("mutate", "mutate")


async def test_a_refused_preparation_is_what_failed_although_mutate_has_run() -> None:
    refused = ErrorDetail(code=ErrorDetail.PRECONDITION_FAILED, message="never delivered")
    stage = Stage(commit_prepare=refused, begin_mutation=refused)
    await stage.play(consumer(calls=[]), "Act")
    assert stage.body("fail").failed_step_id == "prepare"
    assert "never delivered" in stage.body("fail").failure.message


async def test_no_next_runs_before_the_end_of_the_mutation_is_stored() -> None:
    stage, calls = Slow(), list[str]()
    stage.silent = False
    held = stage.answers["finish_mutation"]
    assert callable(held)

    def finished(finish: pb.FinishMutation) -> Any:
        assert "next" not in calls
        return held(finish)

    stage.answers["finish_mutation"] = finished
    await stage.play(consumer(calls=calls, with_next=True), "Act")
    assert calls == ["prepare", "Ann", "next"]


async def test_a_run_that_is_asked_to_end_while_its_tool_is_called_does_not_end_well() -> None:
    stage, calls = Stage(), list[str]()
    automation = Automation("x", accepts=["t"])
    run: Any = None

    @mutation
    async def change() -> None:
        calls.append("change")
        run.cancel(worker.CancelRequested(reason="enough"))

    @automation.consumer(subscribe="t")
    class Act:
        async def prepare(self, ctx: PrepareContext, state: Any) -> Prepared:
            return Prepared(reserve={"t": ["7"]})

        async def mutate(self, ctx: MutateContext, prepared: Prepared) -> None:
            await ctx.mutate(change)

    run = stage.enter(automation, "Act")
    run.begin()
    await asyncio.wait_for(stage.over.wait(), 10)
    assert stage.names == ["commit_prepare", "begin_mutation", "finish_mutation", "fail"]
