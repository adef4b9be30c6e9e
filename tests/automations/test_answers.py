"""Doubt: the reconciler is asked at once and then with backoff; when nobody can tell, the run parks and a person says.
A mutation is never repeated blindly.
"""

from __future__ import annotations

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import worker_pb2 as worker
from kagzi.protocol.v1 import workflow_pb2 as workflow
from kagzi.protocol.v1.common_pb2 import SLEEP, Failure
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Operation
from tests.automations.stage import NAMESPACE, Held, Stage, consumer, data, event, new_id

DOUBT = Failure(type="Timeout", message="no answer in 30 s")


async def _prepared(stage: Stage) -> Held:
    await stage.deploy(consumer(publishes=["row"]))
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1", title="Add a row")
    return held


def _park(held: Held) -> Operation:
    body = worker.Suspend(parked_json='{"reason": "indeterminate"}')
    return held.operation(Kind.SUSPEND, body, new_id())


async def _parked(stage: Stage, *, reconciler: bool = True) -> tuple[Held, str]:
    """A run that waits for a person, and its mutation."""
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held, "UNCLEAR", reconciler=reconciler, failure=DOUBT)
    if reconciler:
        for _ in range(5):
            await stage.finish(held, mutation_id, "UNCLEAR", asked=True, step=held.step(f"reconcile#{held.steps}"))
    await stage.ask(_park(held))
    assert await stage.status(held.run_id) == "SLEEPING"
    await stage.idle()
    return held, mutation_id


async def test_in_doubt_the_reconciler_is_asked_at_once_then_with_backoff_five_times(stage: Stage) -> None:
    held = await _prepared(stage)
    begin = stage.beginning(held)
    await stage.ask(begin)
    mutation_id = begin.body.mutation_id
    first = await stage.ask(stage.finishing(held, mutation_id, "UNCLEAR", step=begin.body.step, failure=DOUBT))
    assert first.status == pb.MUTATION_IN_FLIGHT
    answers, pauses = [], []
    for number in range(5):
        asked = stage.finishing(held, mutation_id, "UNCLEAR", asked=True, step=held.step(f"reconcile#{number}"))
        answers.append(await stage.ask(asked))
        seconds = answers[-1].check_at.ToMicroseconds() / 1e6 - (await stage.now()).timestamp()
        pauses.append(round(seconds))
    assert pauses[:4] == [10, 20, 40, 80]
    assert [answer.status for answer in answers] == [pb.MUTATION_IN_FLIGHT] * 4 + [pb.MUTATION_INDETERMINATE]
    assert not answers[-1].HasField("check_at")
    blocked = await stage.automation()
    assert (blocked["blocked_code"], str(blocked["blocked_mutation_id"])) == ("INDETERMINATE", mutation_id)
    assert "look outside" in blocked["blocked_message"]


async def test_without_a_reconciler_doubt_is_indeterminate_at_once(stage: Stage) -> None:
    held = await _prepared(stage)
    begin = stage.beginning(held, reconciler=False)
    await stage.ask(begin)
    assert await stage.finish(held, begin.body.mutation_id, "UNCLEAR", failure=DOUBT, step=begin.body.step) == (
        "INDETERMINATE"
    )
    # The run stays the automation's live run, and nothing else runs.
    await stage.publish(event("m2"))
    await stage.ask(_park(held))
    await stage.idle()


@pytest.mark.parametrize(
    ("verdict", "status"), [("APPLIED", "APPLIED"), ("NOT_APPLIED", "FAILED")], ids=["applied", "absent"]
)
async def test_what_the_reconciler_says_decides(stage: Stage, verdict: str, status: str) -> None:
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held, "UNCLEAR", failure=DOUBT)
    assert await stage.finish(held, mutation_id, verdict, asked=True) == status
    if status == "APPLIED":
        await stage.commit(held)
        assert (await stage.delivery("m1"))["status"] == "CONSUMED"
    else:
        await stage.fail(held)
        assert (await stage.delivery("m1"))["status"] == "PENDING"


async def test_it_happened_wakes_the_run_which_goes_on_to_next(stage: Stage) -> None:
    held, mutation_id = await _parked(stage)
    await stage.resolve(mutation_id, "HAPPENED", result=7)
    assert (await stage.automation())["blocked_code"] is None
    woken = await stage.claim()
    assert woken.run_id == held.run_id
    assert (woken.task.phase, woken.task.mutation.status) == (pb.PHASE_MUTATED, pb.MUTATION_APPLIED)
    assert woken.task.mutation.result == data(7)
    assert woken.task.mutation.resolved_by_person
    await stage.commit(woken)
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"


async def test_it_did_not_happen_releases(stage: Stage) -> None:
    held, mutation_id = await _parked(stage)
    await stage.resolve(mutation_id, "DID_NOT")
    woken = await stage.claim()
    assert woken.run_id == held.run_id
    assert woken.task.mutation.status == pb.MUTATION_FAILED
    await stage.fail(woken)
    assert (await stage.delivery("m1"))["status"] == "PENDING"
    await stage.move(seconds=11)
    assert await stage.ring() == 1


async def test_skip_goes_on_to_next_and_the_events_are_skipped(stage: Stage) -> None:
    _, mutation_id = await _parked(stage)
    await stage.resolve(mutation_id, "SKIP")
    woken = await stage.claim()
    assert woken.task.mutation.status == pb.MUTATION_SKIPPED
    await stage.commit(woken, event("r1", "row"))
    assert (await stage.delivery("m1"))["status"] == "SKIPPED"


async def test_check_again_starts_the_count_anew(stage: Stage) -> None:
    held, mutation_id = await _parked(stage)
    await stage.resolve(mutation_id, "CHECK_AGAIN")
    woken = await stage.claim()
    assert woken.run_id == held.run_id
    assert (woken.task.mutation.status, woken.task.mutation.checks) == (pb.MUTATION_IN_FLIGHT, 0)
    assert not woken.task.mutation.resolved_by_person
    asked = stage.finishing(woken, mutation_id, "UNCLEAR", asked=True, step=woken.step("reconcile#x"))
    assert (await stage.ask(asked)).status == pb.MUTATION_IN_FLIGHT


async def test_check_again_needs_somebody_who_can_be_asked(stage: Stage) -> None:
    _, mutation_id = await _parked(stage, reconciler=False)
    with pytest.raises(Refused, match="has no reconciler"):
        await stage.resolve(mutation_id, "CHECK_AGAIN")
    assert (await stage.automation())["blocked_code"] == "INDETERMINATE"


async def test_an_answer_that_comes_before_the_run_parks_is_not_lost(stage: Stage) -> None:
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held, "UNCLEAR", reconciler=False, failure=DOUBT)
    await stage.resolve(mutation_id, "HAPPENED")
    await stage.ask(_park(held))
    woken = await stage.claim()
    assert (woken.run_id, woken.task.mutation.status) == (held.run_id, pb.MUTATION_APPLIED)


async def test_an_answer_is_given_once_and_its_repeat_is_the_same(stage: Stage) -> None:
    _, mutation_id = await _parked(stage)
    await stage.resolve(mutation_id, "HAPPENED", result=7)
    contents = await stage.contents()
    await stage.resolve(mutation_id, "HAPPENED", result=7)
    assert await stage.contents() == contents
    with pytest.raises(Refused, match="is APPLIED"):
        await stage.resolve(mutation_id, "DID_NOT")


async def test_while_a_worker_may_be_calling_the_tool_nobody_answers_for_it(stage: Stage) -> None:
    held = await _prepared(stage)
    begun = await stage.begin(held)
    with pytest.raises(Refused, match="is being looked into"):
        await stage.resolve(begun.mutation.mutation_id, "DID_NOT")


async def test_a_person_may_answer_between_two_checks(stage: Stage) -> None:
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held, "UNCLEAR", failure=DOUBT)
    await stage.finish(held, mutation_id, "UNCLEAR", asked=True)
    timer = worker.StepStarted(
        step_id="check", attempt_id=new_id(), kind=SLEEP, duration_ms=10_000, attempt_number=1, position=20
    )
    suspend = held.operation(Kind.SUSPEND, worker.Suspend(step_ids=["check"]), new_id())
    await stage.flush(held.operation(Kind.START_STEP, timer), suspend)
    assert await stage.status(held.run_id) == "SLEEPING"
    await stage.resolve(mutation_id, "HAPPENED")
    assert (await stage.claim()).task.mutation.status == pb.MUTATION_APPLIED


@pytest.mark.parametrize("answer", ["HAPPENED", "DID_NOT", "SKIP", "CHECK_AGAIN"])
async def test_an_answer_settles_a_run_that_was_ended_meanwhile(stage: Stage, answer: str) -> None:
    held, mutation_id = await _parked(stage)
    await stage.ask(Operation(Kind.TERMINATE, NAMESPACE, held.run_id, workflow.TerminateWorkflowRequest()))
    # It stays blocked, and what was reserved stays so, until somebody says.
    await stage.publish(event("m2"))
    await stage.move(days=1)
    assert await stage.ring() == 0
    assert (await stage.delivery("m1"))["status"] == "RESERVED"
    await stage.resolve(mutation_id, answer)
    fresh = await stage.claim()
    assert fresh.run_id != held.run_id
    if answer == "DID_NOT":
        assert fresh.task.phase == pb.PHASE_PREPARING
        assert (await stage.delivery("m1"))["status"] == "PENDING"
        return
    assert (fresh.trigger, fresh.task.continues_run_id) == ("continuation", held.run_id)
    assert fresh.task.mutation.mutation_id == mutation_id
    if answer == "CHECK_AGAIN":
        await stage.finish(fresh, mutation_id, "APPLIED", asked=True)
    await stage.commit(fresh)
    assert (await stage.delivery("m1"))["status"] == ("SKIPPED" if answer == "SKIP" else "CONSUMED")


async def test_a_new_definition_does_not_unblock_what_is_indeterminate(stage: Stage) -> None:
    held, mutation_id = await _parked(stage)
    await stage.deploy(consumer(publishes=["row"]), consumer("other"))
    assert (await stage.automation())["blocked_code"] == "INDETERMINATE"
    await stage.idle()
    await stage.resolve(mutation_id, "HAPPENED")
    assert (await stage.claim()).run_id == held.run_id
