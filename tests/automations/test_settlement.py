"""When a run ends badly: decided by the ledger, whatever ended it, in the same transaction. Released, gone on with, or
reconciled; tried again after a backoff, or blocked until somebody looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as workflow
from kagzi.protocol.v1.common_pb2 import Failure
from kagzi.store import alarms, controls, upkeep
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Operation
from tests.automations.stage import NAMESPACE, Held, Stage, consumer, data, event, new_id, producer

End = Callable[[Stage, Held], Awaitable[None]]


async def _fail(stage: Stage, held: Held) -> None:
    await stage.fail(held)


async def _cancel(stage: Stage, held: Held) -> None:
    request = workflow.CancelWorkflowRequest(reason="enough")
    await stage.ask(Operation(Kind.CANCEL, NAMESPACE, held.run_id, request))
    await stage.fail(held)
    assert await stage.status(held.run_id) == "CANCELLED"


async def _terminate(stage: Stage, held: Held) -> None:
    request = workflow.TerminateWorkflowRequest(reason="now")
    await stage.ask(Operation(Kind.TERMINATE, NAMESPACE, held.run_id, request))
    assert await stage.status(held.run_id) == "CANCELLED"


async def _deadline(stage: Stage, held: Held) -> None:
    await stage.connection.execute(
        "update kagzi.workflow_runs set deadline_at = kagzi.now() - interval '1 minute',"
        " cancel_requested_at = kagzi.now() - interval '1 minute' where run_id = $1",
        held.run_id,
    )
    expire = upkeep.expire
    await stage.database.transact(lambda c: expire(c, NAMESPACE, [held.run_id], timedelta(seconds=30)))
    assert await stage.status(held.run_id) == "FAILED"


async def _poison(stage: Stage, held: Held) -> None:
    await stage.connection.execute(
        "update kagzi.workflow_runs set crashes = 4, available_at = kagzi.now() - interval '1 s' where run_id = $1",
        held.run_id,
    )
    assert await stage.claim_all() == []
    assert await stage.status(held.run_id) == "FAILED"


ENDS: dict[str, End] = {
    "fail": _fail,
    "cancel": _cancel,
    "terminate": _terminate,
    "deadline": _deadline,
    "poison": _poison,
}


@pytest.fixture(params=list(ENDS))
def end(request: pytest.FixtureRequest) -> End:
    return ENDS[request.param]


async def _prepared(stage: Stage) -> Held:
    await stage.deploy(consumer(publishes=["row"]), found="first")
    await stage.publish(event("m1"))
    held = await stage.claim()
    await stage.prepare(held, "m1", data=data("kept"), title="Add a row")
    return held


async def _next(stage: Stage) -> Held:
    """What runs next, after the backoff and whatever blocks it."""
    await stage.move(minutes=11)
    if (await stage.automation())["blocked_code"]:
        await stage.transact(lambda c, outcome: controls.retry_blocked(c, NAMESPACE, "inbox", None, outcome))
    else:
        assert await stage.ring() == 1
    return await stage.claim()


async def test_without_a_mutation_reservations_are_released_and_a_fresh_run_prepares(stage: Stage, end: End) -> None:
    held = await _prepared(stage)
    await end(stage, held)
    row = await stage.delivery("m1")
    assert (row["status"], row["run_id"], row["attempts"]) == ("PENDING", None, 1)
    assert (await stage.handler("add"))["dirty"]
    await stage.idle()
    fresh = await _next(stage)
    assert fresh.task.phase == pb.PHASE_PREPARING
    assert fresh.trigger in ("release", "manual")
    [again] = (await stage.peek(fresh)).events
    assert (again.event_id, again.attempts) == ("m1", 1)


async def test_a_mutation_that_failed_is_as_if_it_had_not_been_tried(stage: Stage, end: End) -> None:
    held = await _prepared(stage)
    await stage.mutate(held, "NOT_APPLIED", failure=Failure(type="NotApplied"))
    await end(stage, held)
    assert (await stage.delivery("m1"))["status"] == "PENDING"
    fresh = await _next(stage)
    assert fresh.task.phase == pb.PHASE_PREPARING
    assert not fresh.task.HasField("mutation")
    await stage.prepare(fresh, "m1")
    await stage.mutate(fresh)
    await stage.commit(fresh)


async def test_an_applied_mutation_is_gone_on_with_at_next(stage: Stage, end: End) -> None:
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held, result=data(7))
    await end(stage, held)
    assert (await stage.delivery("m1"))["status"] == "RESERVED"
    assert str((await stage.automation())["continues_run_id"]) == held.run_id
    # What arrives meanwhile does not come before it.
    await stage.publish(event("m2"))
    fresh = await _next(stage)
    assert (fresh.trigger, fresh.task.continues_run_id) == ("continuation", held.run_id)
    assert fresh.task.phase == pb.PHASE_MUTATED
    assert (fresh.task.mutation.mutation_id, fresh.task.mutation.result) == (mutation_id, data(7))
    assert (fresh.task.prepared.data, fresh.task.prepared.title) == (data("kept"), "Add a row")
    assert (await stage.automation())["continues_run_id"] is None
    await stage.commit(fresh, event("r1", "row"))
    row = await stage.delivery("m1")
    assert (row["status"], str(row["run_id"])) == ("CONSUMED", fresh.run_id)
    assert [str(one) for one in row["run_ids"]] == [held.run_id, fresh.run_id]
    assert (await stage.handler("add"))["failures"] == 0


async def test_the_timer_finds_nobody_else_while_a_continuation_waits_for_its_time(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("other"), producer())
    await stage.publish(event("m1"))
    held = await stage.claim(expect="add")
    await stage.prepare(held, "m1")
    await stage.mutate(held)
    await stage.fail(held)
    due = await stage.database.read(lambda c: alarms.due(c, 100, stranded=True))
    assert due == {}, "a producer is due, a consumer stirred, and neither may start: enough of such would hide what may"
    await stage.move(seconds=11)
    assert await stage.ring() == 1
    assert (await stage.claim(expect="add")).trigger == "continuation"


async def test_retention_spares_the_run_that_is_to_be_gone_on_from(stage: Stage) -> None:
    held = await _prepared(stage)
    await stage.mutate(held)
    await stage.fail(held)
    old = upkeep.Outlived(NAMESPACE, "FAILED", 0)
    assert await stage.transact(lambda c, _: upkeep.remove(c, old, 10)) == 0
    fresh = await _next(stage)
    assert (fresh.trigger, fresh.task.phase) == ("continuation", pb.PHASE_MUTATED)
    assert await stage.transact(lambda c, _: upkeep.remove(c, old, 10)) == 1


async def test_a_mutation_in_flight_is_reconciled_before_anything_else_runs(stage: Stage, end: End) -> None:
    held = await _prepared(stage)
    begun = await stage.begin(held)
    await end(stage, held)
    await stage.publish(event("m2"))
    fresh = await _next(stage)
    assert fresh.trigger == "continuation"
    assert fresh.task.phase == pb.PHASE_MUTATING
    assert fresh.task.mutation.mutation_id == begun.mutation.mutation_id
    assert not (await stage.begin(fresh)).may_call
    assert await stage.finish(fresh, begun.mutation.mutation_id, "APPLIED", asked=True, result=data(1)) == "APPLIED"
    await stage.commit(fresh)
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"


async def test_a_continuation_that_fails_is_continued(stage: Stage) -> None:
    held = await _prepared(stage)
    mutation_id = await stage.mutate(held)
    await stage.fail(held)
    second = await _next(stage)
    await stage.fail(second)
    await stage.move(minutes=22)
    assert await stage.ring() == 1
    third = await stage.claim()
    assert third.task.continues_run_id == second.run_id
    assert third.task.mutation.mutation_id == mutation_id
    assert third.task.mutation.run_id == held.run_id
    assert third.task.prepared.data == data("kept")
    await stage.commit(third)
    assert (await stage.delivery("m1"))["status"] == "CONSUMED"


async def test_a_run_cancelled_before_it_began_is_settled_too(stage: Stage) -> None:
    await stage.deploy(consumer())
    run_id = str(await stage.connection.fetchval("select run_id from kagzi.workflow_runs"))
    await stage.ask(Operation(Kind.CANCEL, NAMESPACE, run_id, workflow.CancelWorkflowRequest()))
    assert await stage.status(run_id) == "CANCELLED"
    row = await stage.handler("add")
    assert (row["dirty"], row["failures"]) == (True, 1)
    await stage.move(seconds=11)
    assert await stage.ring() == 1


async def test_transient_failures_back_off_in_the_database_and_block_at_the_fifth_in_a_row(stage: Stage) -> None:
    await stage.deploy(producer())
    pauses = []
    passed = 0.0
    for number in range(4):
        await stage.fail(await stage.claim())
        row = await stage.handler("poll")
        assert row["failures"] == number + 1
        pauses.append(round(row["waits_for"]))
        assert await stage.ring() == 0
        passed += pauses[-1] + 1
        await stage.move(seconds=passed)
        assert await stage.ring() == 1
    assert pauses == [10, 20, 40, 80]
    held = await stage.claim()
    await stage.fail(held)
    blocked = await stage.automation()
    assert (blocked["blocked_code"], blocked["blocked_message"]) == ("RETRIES_USED_UP", "Error: no network")
    assert (blocked["blocked_handler"], str(blocked["blocked_run_id"])) == ("poll", held.run_id)
    await stage.move(days=1)
    assert await stage.ring() == 0


async def test_a_run_that_ends_well_ends_the_row_of_failures(stage: Stage) -> None:
    await stage.deploy(producer())
    await stage.fail(await stage.claim())
    await stage.move(seconds=11)
    await stage.ring()
    await stage.commit(await stage.claim())
    row = await stage.handler("poll")
    assert (row["failures"], row["not_before"], row["last_failure"]) == (0, None, None)


@pytest.mark.parametrize(
    ("fault", "code"), [("NEEDS_ATTENTION", "NEEDS_ATTENTION"), ("DEFECT", "DEFECT"), (None, "DEFECT")]
)
async def test_attention_and_defects_block_at_once_with_the_message(stage: Stage, fault: str | None, code: str) -> None:
    await stage.deploy(producer(), consumer())
    await stage.consume(await stage.claim())
    fail = stage.failing(await stage.claim(expect="poll"), fault or "DEFECT", "log in again")
    if fault is None:
        fail.body.ClearField("fault")
    await stage.ask(fail)
    blocked = await stage.automation()
    assert (blocked["blocked_code"], blocked["blocked_message"]) == (code, "Error: log in again")
    # One blocked handler blocks its automation: nothing runs ahead of a broken step.
    await stage.publish(event("m1"))
    await stage.idle()


async def test_a_poisoned_run_blocks_its_automation(stage: Stage) -> None:
    await stage.deploy(consumer())
    await _poison(stage, await stage.claim())
    assert (await stage.automation())["blocked_code"] == "POISONED"


async def test_another_handler_may_run_while_one_is_in_backoff(stage: Stage) -> None:
    await stage.deploy(consumer(), consumer("other"))
    await stage.fail(await stage.claim(expect="add"))
    await stage.consume(await stage.claim(expect="other"))
    await stage.idle()


async def test_a_person_unblocks_and_the_failed_handler_is_tried_again(stage: Stage) -> None:
    await stage.deploy(producer(), consumer())
    await stage.consume(await stage.claim())
    held = await stage.claim(expect="poll")
    await stage.fail(held, "DEFECT")

    async def retry(run_id: str | None) -> bool:
        return await stage.transact(lambda c, outcome: controls.retry_blocked(c, NAMESPACE, "inbox", run_id, outcome))

    assert not await retry(new_id())
    assert await retry(held.run_id)
    again = await stage.claim(expect="poll")
    assert again.trigger == "manual"
    assert (await stage.handler("poll"))["failures"] == 0
    assert not await retry(None)
    # The same request cannot unblock what was blocked anew.
    await stage.fail(again, "DEFECT")
    assert not await retry(held.run_id)
    assert (await stage.automation())["blocked_code"] == "DEFECT"


async def test_an_indeterminate_mutation_is_not_retried(stage: Stage) -> None:
    held = await _prepared(stage)
    await stage.mutate(held, "UNCLEAR", reconciler=False)
    assert (await stage.automation())["blocked_code"] == "INDETERMINATE"
    with pytest.raises(Refused, match="ResolveMutation"):
        await stage.transact(lambda c, outcome: controls.retry_blocked(c, NAMESPACE, "inbox", None, outcome))


async def test_the_end_of_ordinary_runs_costs_no_statement_more(stage: Stage) -> None:
    ordinary = await stage.ordinary()
    assert await stage.statements(stage.failing(ordinary)) == 4
    handled = await _prepared(stage)
    assert await stage.statements(stage.failing(handled)) > 4
