"""The phases of a consumer: prepare, mutate, next, forward only. Each ends in one transaction, is refused out of its
turn, and is recognised when it is repeated. A run that is claimed again goes on from what is on record.
"""

from __future__ import annotations

from typing import Any

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1.common_pb2 import FUNCTION, ErrorDetail, Failure
from kagzi.store import inputs
from kagzi.store.operation import Kind
from tests.automations.stage import MAIL, NAMESPACE, Held, Stage, consumer, data, event, new_id, producer


async def _ready(stage: Stage, *ids: str) -> Held:
    """A consumer's run with something pending for it."""
    await stage.deploy(consumer(publishes=["row"]), producer())
    await stage.publish(*(event(one, value=one, input=MAIL) for one in ids or ("m1",)))
    return await stage.claim(expect="add")


async def _again(stage: Stage, held: Held) -> Held:
    """The worker died: the same run, claimed by another."""
    await stage.expire(held.run_id)
    taken = await stage.claim()
    assert taken.run_id == held.run_id
    return taken


async def test_prepare_reserves_and_is_stored_whole(stage: Stage) -> None:
    held = await _ready(stage, "m1", "m2")
    await stage.prepare(held, "m2", data=data({"row": 1}), title="Add a row", ui_json='{"link": "x"}')
    row = await stage.delivery("m2")
    assert (row["status"], str(row["run_id"])) == ("RESERVED", held.run_id)
    assert (await stage.delivery("m1"))["status"] == "PENDING"
    task = (await _again(stage, held)).task
    assert task.phase == pb.PHASE_PREPARED
    assert task.prepared.data == data({"row": 1})
    assert (task.prepared.title, task.prepared.ui_json) == ("Add a row", '{"link": "x"}')
    assert [(one.topic, list(one.event_ids)) for one in task.prepared.reserve] == [("mail", ["m2"])]


async def test_prepare_runs_again_when_something_was_taken_meanwhile_and_nothing_is_half_reserved(
    stage: Stage,
) -> None:
    held = await _ready(stage, "m1")
    other = pb.InputKey(source="gmail", type="email", id="m2")
    await stage.publish(event("m2", input=other))
    await stage.transact(lambda c, _: inputs.skip(c, NAMESPACE, "inbox", other))
    answer = await stage.prepare(held, "m1", "m2")
    assert [(one.topic, list(one.event_ids)) for one in answer.not_pending] == [("mail", ["m2"])]
    assert (await stage.delivery("m1"))["status"] == "PENDING"
    assert (await stage.prepare(held, "m1")).not_pending == []
    await stage.commit(held)


async def test_reserving_what_was_never_delivered_is_refused(stage: Stage) -> None:
    held = await _ready(stage)
    said = await stage.refused(stage.preparing(held, {"mail": ["m1", "nobody"]}))
    assert "never delivered to it" in said.message
    assert (await stage.delivery("m1"))["status"] == "PENDING"


async def test_reserving_what_was_consumed_long_ago_is_refused(stage: Stage) -> None:
    held = await _ready(stage, "m1", "m2")
    await stage.consume(held, "m1")
    held = await stage.claim()
    said = await stage.refused(stage.preparing(held, {"mail": ["m1"]}))
    assert "consumed before this run began" in said.message


async def test_a_mutation_is_in_the_ledger_before_it_is_tried(stage: Stage) -> None:
    held = await _ready(stage)
    await stage.prepare(held, "m1", title="Add a row")
    begun = await stage.begin(held)
    assert begun.may_call
    row = await stage.mutation(begun.mutation.mutation_id)
    assert (row["status"], row["tool"], row["title"]) == ("IN_FLIGHT", "append_row", "Add a row")
    assert row["parameters"] == b'["reports"]'
    assert begun.mutation.parameters.data == b'["reports"]'
    assert str(row["run_id"]) == held.run_id


async def test_nothing_is_mutated_without_a_prepare_that_reserved_something(stage: Stage) -> None:
    held = await _ready(stage)
    assert "after a `prepare` that reserved something" in (await stage.refused(stage.beginning(held))).message
    await stage.prepare(held)
    assert "after a `prepare` that reserved something" in (await stage.refused(stage.beginning(held))).message
    assert await stage.connection.fetchval("select count(*) from kagzi.mutations") == 0


async def test_a_second_mutation_of_a_run_is_refused(stage: Stage) -> None:
    held = await _ready(stage)
    await stage.prepare(held, "m1")
    await stage.mutate(held)
    said = await stage.refused(stage.beginning(held))
    assert "a consumer performs one a run" in said.message


async def test_after_a_crash_nobody_may_call_the_tool_again(stage: Stage) -> None:
    held = await _ready(stage)
    await stage.prepare(held, "m1")
    begun = await stage.begin(held)
    taken = await _again(stage, held)
    assert taken.task.phase == pb.PHASE_MUTATING
    assert taken.task.mutation.status == pb.MUTATION_IN_FLIGHT
    assert taken.task.mutation.mutation_id == begun.mutation.mutation_id
    assert taken.task.mutation.parameters.data == b'["reports"]'
    again = await stage.begin(taken)
    assert not again.may_call
    assert again.mutation.mutation_id == begun.mutation.mutation_id


async def test_a_run_claimed_again_at_each_phase_goes_on_from_there(stage: Stage) -> None:
    held = await _ready(stage)
    held = await _again(stage, held)
    assert held.task.phase == pb.PHASE_PREPARING
    await stage.prepare(held, "m1")
    held = await _again(stage, held)
    assert held.task.phase == pb.PHASE_PREPARED
    mutation_id = await stage.mutate(held, result=data(7))
    held = await _again(stage, held)
    assert (held.task.phase, held.task.mutation.status) == (pb.PHASE_MUTATED, pb.MUTATION_APPLIED)
    assert held.task.mutation.mutation_id == mutation_id
    assert held.task.mutation.result == data(7)
    started = worker.StepStarted(step_id="next", attempt_id=new_id(), kind=FUNCTION, attempt_number=1, position=9)
    await stage.ask(held.operation(Kind.START_STEP, started))
    held = await _again(stage, held)
    assert held.task.phase == pb.PHASE_EMITTING
    commit = stage.committing(held, event("r1", "row"))
    commit.body.step.attempt_number = 2
    await stage.ask(commit)
    assert await stage.status(held.run_id) == "COMPLETED"


async def test_next_comes_after_prepare_and_after_the_mutation_is_over(stage: Stage) -> None:
    held = await _ready(stage)
    assert "committed no `prepare`" in (await stage.refused(stage.committing(held))).message
    await stage.prepare(held, "m1")
    begun = await stage.begin(held)
    assert "is IN_FLIGHT" in (await stage.refused(stage.committing(held))).message
    await stage.finish(held, begun.mutation.mutation_id, "NOT_APPLIED", asked=True)
    assert "is FAILED" in (await stage.refused(stage.committing(held))).message
    assert (await stage.delivery("m1"))["status"] == "RESERVED"


async def test_prepare_is_committed_once(stage: Stage) -> None:
    held = await _ready(stage, "m1", "m2")
    await stage.prepare(held, "m1")
    said = await stage.refused(stage.preparing(held, {"mail": ["m2"]}))
    assert "has no `prepare` to commit" in said.message
    assert (await stage.delivery("m2"))["status"] == "PENDING"


@pytest.mark.parametrize(
    ("publication", "why"),
    [
        (event("r1", "elsewhere"), "publishes to 'elsewhere', which it does not declare"),
        (event("r1", "row", input=MAIL), "names no input"),
    ],
)
async def test_a_commit_that_breaks_a_rule_is_refused_whole(
    stage: Stage, publication: pb.EventPublication, why: str
) -> None:
    held = await _ready(stage)
    await stage.prepare(held, "m1")
    commit = stage.committing(held, event("r0", "row"), publication, state={"kept": True})
    del commit.body.inputs[:]
    said = await stage.refused(commit)
    assert why in said.message
    assert (await stage.delivery("m1"))["status"] == "RESERVED"
    assert (await stage.handler("add"))["state"] is None
    assert await stage.connection.fetchval("select count(*) from kagzi.events where topic = 'row'") == 0
    # The worker says so, and the automation is blocked with that message.
    await stage.fail(held, "DEFECT", said.message)
    assert why in (await stage.automation())["blocked_message"]


async def test_a_producer_names_an_input_and_a_consumer_registers_none(stage: Stage) -> None:
    held = await _ready(stage)
    await stage.prepare(held)
    commit = stage.committing(held)
    commit.body.inputs.add(key=MAIL)
    assert "only producers register inputs" in (await stage.refused(commit)).message
    await stage.commit(held)
    await stage.consume(await stage.claim())
    poll = await stage.claim(expect="poll")
    assert "without an input" in (await stage.refused(stage.committing(poll, event("m9")))).message
    commit = stage.committing(poll, event("m9", input=MAIL))
    commit.body.inputs[0].key.id = "another"
    assert "without an input" in (await stage.refused(commit)).message


async def test_repeats_of_every_phase_are_answered_as_the_first_time(stage: Stage) -> None:
    held = await _ready(stage)

    async def twice(operation: Any) -> Any:
        first = await stage.ask(operation)
        contents = await stage.contents()
        assert await stage.ask(operation) == first
        assert await stage.contents() == contents
        return first

    prepare = stage.preparing(held, {"mail": ["m1"]}, wake_at=await stage.now())
    await twice(prepare)
    begin = stage.beginning(held)
    assert (await twice(begin)).may_call
    failure = Failure(type="Timeout")
    unclear = stage.finishing(held, begin.body.mutation_id, "UNCLEAR", step=begin.body.step, failure=failure)
    await twice(unclear)
    asked = stage.finishing(held, begin.body.mutation_id, "UNCLEAR", asked=True)
    answer = await twice(asked)
    assert answer.status == pb.MUTATION_IN_FLIGHT
    assert (await stage.mutation(begin.body.mutation_id))["checks"] == 1
    again = stage.finishing(held, begin.body.mutation_id, "APPLIED", asked=True, result=data(1))
    again.body.step.step_id = "reconcile#2"
    await twice(again)
    commit = stage.committing(held, event("r1", "row"), event("r2", "row"), state=1)
    assert (await twice(commit)).created == 2
    # The run was given away with the commit, and every earlier answer is still known but one.
    for operation in (prepare, unclear, asked, again, commit):
        await stage.ask(operation)
    assert (await stage.refused(begin)).code == ErrorDetail.LEASE_LOST


async def test_a_commit_whose_answer_was_lost_counts_once_also_after_the_next_run_began(stage: Stage) -> None:
    held = await _ready(stage)
    await stage.consume(held, "m1")
    held = await stage.claim()
    commit = stage.committing(held)
    await stage.prepare(held)
    await stage.ask(commit)
    await stage.claim(expect="poll")
    contents = await stage.contents()
    await stage.ask(commit)
    assert await stage.contents() == contents


async def test_a_worker_that_lost_the_run_changes_nothing(stage: Stage) -> None:
    held = await _ready(stage)
    await _again(stage, held)
    contents = await stage.contents()
    for operation in (
        stage.peeking(held),
        stage.preparing(held, {"mail": ["m1"]}),
        stage.beginning(held),
        stage.finishing(held, new_id(), "APPLIED"),
        stage.committing(held),
        stage.failing(held),
    ):
        assert (await stage.refused(operation)).code == ErrorDetail.LEASE_LOST
    assert await stage.contents() == contents


async def test_handler_runs_end_with_commit_or_fail_and_other_runs_know_no_phases(stage: Stage) -> None:
    held = await _ready(stage)
    for kind, body in (
        (Kind.COMPLETE, worker.Complete()),
        (Kind.CONTINUE_AS_NEW, worker.ContinueAsNew(new_run_id=new_id())),
    ):
        said = await stage.refused(held.operation(kind, body, new_id()))
        assert "is a handler run" in said.message
    ordinary = await stage.ordinary()
    for operation in (stage.peeking(ordinary), stage.preparing(ordinary), stage.committing(ordinary)):
        assert "is no handler run" in (await stage.refused(operation)).message


async def test_an_operation_of_a_phase_that_fails_in_a_batch_fails_alone(stage: Stage) -> None:
    for name in ("inbox", "other"):
        await stage.deploy(consumer(), name=name)
        await stage.publish(event("m1"), name=name)
    held = {one.task.automation: one for one in await stage.claim_all()}
    good = stage.preparing(held["inbox"], {"mail": ["m1"]})
    bad = stage.preparing(held["other"], {"mail": ["nobody"]})
    await stage.flush(bad, good)
    assert bad.refused
    assert not good.refused
    # A mutation id that is taken undoes the step that was written for it, and nothing else.
    await stage.prepare(held["other"], "m1")
    first, second = stage.beginning(held["inbox"]), stage.beginning(held["other"])
    second.body.mutation_id = first.body.mutation_id
    await stage.flush(first, second)
    assert isinstance(first.answer, pb.MutationBegun)
    assert second.refused
    second.body.mutation_id = new_id()
    assert (await stage.ask(second)).may_call


async def test_a_step_that_another_attempt_has_done_takes_its_operation_with_it_and_no_other(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        await stage.deploy(consumer(), name=name)
        await stage.publish(event("m1"), name=name)
    held = await stage.claim_all()
    prepares = [stage.preparing(one, {"mail": ["m1"]}) for one in held]
    taken = prepares[1]
    await stage.connection.execute(
        "insert into kagzi.step_runs (namespace, run_id, step_id, attempt_number, attempt_id, position, completed_seq,"
        " status, kind) values ('default', $1, 'prepare', 1, $2, 1, 1, 'COMPLETED', 'FUNCTION')",
        taken.run_id,
        new_id(),
    )
    await stage.flush(*prepares)
    assert [one.refused for one in prepares] == [False, True, False]
    statuses = await stage.connection.fetch("select automation, status from kagzi.deliveries order by 1")
    other = held[1].task.automation
    assert {row["automation"]: row["status"] for row in statuses} == {
        name: "PENDING" if name == other else "RESERVED" for name in ("a", "b", "c")
    }


async def test_of_a_batch_only_who_wants_what_is_not_pending_prepares_again(stage: Stage) -> None:
    for name in ("a", "b"):
        await stage.deploy(consumer(), name=name)
        await stage.publish(event("m1"), event("m2"), name=name)
    held = await stage.claim_all()
    skipped = held[0].task.automation
    await stage.connection.execute(
        "update kagzi.deliveries set status = 'SKIPPED', updated_at = kagzi.now()"
        " where automation = $1 and event_id = 'm2'",
        skipped,
    )
    prepares = [stage.preparing(one, {"mail": ["m1", "m2"]}) for one in held]
    await stage.flush(*prepares)
    answers: list[Any] = [one.answer for one in prepares]
    assert [[list(each.event_ids) for each in one.not_pending] for one in answers] == [[["m2"]], []]
    rows = await stage.connection.fetch("select automation, event_id, status from kagzi.deliveries order by 1, 2")
    stands = {(row["automation"], row["event_id"]): row["status"] for row in rows}
    other = held[1].task.automation
    assert stands == {
        (skipped, "m1"): "PENDING",
        (skipped, "m2"): "SKIPPED",
        (other, "m1"): "RESERVED",
        (other, "m2"): "RESERVED",
    }
    steps = await stage.connection.fetch("select run_id from kagzi.step_runs where step_id = 'prepare'")
    assert [str(row["run_id"]) for row in steps] == [held[1].run_id]
