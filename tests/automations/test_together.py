"""Phases of one run in one batch: each means what it would mean alone, and none passes the one before it."""

from __future__ import annotations

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store.operation import Operation
from tests.automations.stage import MAIL, Held, Stage, consumer, event


async def _held(stage: Stage) -> Held:
    await stage.deploy(consumer())
    await stage.publish(event("m1", input=MAIL))
    return await stage.claim()


async def _statuses(stage: Stage) -> tuple[str, str | None]:
    """How the delivery and the mutation stand."""
    delivery = await stage.connection.fetchval("select status from kagzi.deliveries")
    mutation = await stage.connection.fetchval("select status from kagzi.mutations")
    return delivery, mutation


async def test_an_intent_travels_with_the_preparation_it_follows_from(stage: Stage) -> None:
    held = await _held(stage)
    prepare, begin = stage.preparing(held, {"mail": ["m1"]}, title="Add m1"), stage.beginning(held)
    await stage.flush(prepare, begin)
    assert isinstance(prepare.answer, pb.PrepareCommitted)
    assert isinstance(begin.answer, pb.MutationBegun)
    assert (begin.answer.may_call, begin.answer.mutation.title) == (True, "Add m1")
    assert await _statuses(stage) == ("RESERVED", "IN_FLIGHT")


async def test_no_intent_is_written_when_something_was_taken_meanwhile(stage: Stage) -> None:
    held = await _held(stage)
    await stage.connection.execute("update kagzi.deliveries set status = 'SKIPPED', updated_at = kagzi.now()")
    prepare, begin = stage.preparing(held, {"mail": ["m1"]}), stage.beginning(held)
    await stage.flush(prepare, begin)
    assert isinstance(prepare.answer, pb.PrepareCommitted)
    assert prepare.answer.not_pending
    assert isinstance(begin.answer, ErrorDetail)
    assert await _statuses(stage) == ("SKIPPED", None)
    # It goes on with what is pending then, as if nothing had been asked.
    await stage.prepare(held)
    await stage.commit(held)


async def test_the_end_of_a_run_travels_with_the_end_of_its_mutation(stage: Stage) -> None:
    held = await _held(stage)
    await stage.prepare(held, "m1")
    begin = stage.beginning(held)
    await stage.ask(begin)
    finish = stage.finishing(held, begin.body.mutation_id, "APPLIED", step=begin.body.step)
    commit = stage.committing(held)
    await stage.flush(finish, commit)
    assert isinstance(finish.answer, pb.MutationFinished)
    assert isinstance(commit.answer, pb.HandlerCommitted)
    assert await _statuses(stage) == ("CONSUMED", "APPLIED")


@pytest.mark.parametrize(("reconciler", "status"), [(True, "IN_FLIGHT"), (False, "INDETERMINATE")])
async def test_no_run_ends_over_a_mutation_in_doubt(stage: Stage, reconciler: bool, status: str) -> None:
    held = await _held(stage)
    await stage.prepare(held, "m1")
    begin = stage.beginning(held, reconciler=reconciler)
    await stage.ask(begin)
    finish = stage.finishing(held, begin.body.mutation_id, "UNCLEAR", step=begin.body.step)
    commit = stage.committing(held)
    await stage.flush(finish, commit)
    assert isinstance(finish.answer, pb.MutationFinished)
    assert isinstance(commit.answer, ErrorDetail)
    assert await _statuses(stage) == ("RESERVED", status)


async def test_a_run_that_only_looks_is_prepared_and_ended_at_once(stage: Stage) -> None:
    held = await _held(stage)
    prepare, commit = stage.preparing(held, {"mail": ["m1"]}), stage.committing(held)
    await stage.flush(prepare, commit)
    assert isinstance(commit.answer, pb.HandlerCommitted)
    assert await _statuses(stage) == ("CONSUMED", None)
    again = await stage.claim()
    steps = await stage.connection.fetch("select step_id from kagzi.step_runs order by completed_seq")
    assert (again.task.trigger, [row["step_id"] for row in steps]) == (pb.TRIGGER_EVENT, ["prepare", "next"])


async def test_a_run_does_not_end_over_a_preparation_that_is_not_stored(stage: Stage) -> None:
    held = await _held(stage)
    await stage.connection.execute("update kagzi.deliveries set status = 'SKIPPED', updated_at = kagzi.now()")
    prepare, commit = stage.preparing(held, {"mail": ["m1"]}), stage.committing(held)
    await stage.flush(prepare, commit)
    assert isinstance(commit.answer, ErrorDetail)
    assert await stage.connection.fetchval("select count(*) from kagzi.workflow_runs where status = 'RUNNING'") == 1


async def test_phases_of_many_runs_that_arrive_together_share_their_statements(stage: Stage) -> None:
    names = [f"flow-{number}" for number in range(8)]
    for name in names:
        await stage.deploy(consumer(), name=name)
        await stage.publish(event("m1", input=MAIL), name=name)
    held = await stage.claim_all()
    one = await stage.statements(*_both(stage, held[0]))
    others = await stage.statements(*(each for run in held[1:] for each in _both(stage, run)))
    assert one == others


def _both(stage: Stage, held: Held) -> tuple[Operation, Operation]:
    return stage.preparing(held, {"mail": ["m1"]}), stage.beginning(held)
