"""Saying what became of a step whose outcome is unknown: stored beside the history, once, and heard by the run."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import (
    FUNCTION,
    STEP_COMPLETED,
    STEP_FAILED,
    ErrorDetail,
    Payload,
    RunStatus,
    StepStatus,
)
from kagzi.protocol.v1.worker_pb2 import BeginStepResponse, Fact, StepCompleted, StepStarted, Suspend
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest, ResolveStepResponse
from kagzi.store import batch, facts, resolutions
from kagzi.store.errors import Refused
from kagzi.store.operation import Kind, Operation, Outcome
from tests.store import given
from tests.store.given import new_id

APPLIED, NOT_APPLIED, FAIL = ResolveStepRequest.APPLIED, ResolveStepRequest.NOT_APPLIED, ResolveStepRequest.FAIL
PAID = Payload(data=b'"paid"', encoding="json")


async def doubtful(connection: Connection, status: str = "SLEEPING", due: str = "never", **columns: Any) -> str:
    """A run with an effect in doubt."""
    run_id = await given.run(connection, status, due, **columns)
    await given.step(connection, run_id, "charge", status="UNKNOWN", effect=True)
    return run_id


async def resolve(
    connection: Connection,
    run_id: str,
    resolution: ResolveStepRequest.Resolution.ValueType = APPLIED,
    *,
    step_id: str = "charge",
    outcome: Outcome | None = None,
    **fields: Any,
) -> ResolveStepResponse:
    request = ResolveStepRequest(run_id=run_id, step_id=step_id, resolution=resolution, **fields)
    async with connection.transaction():
        return await resolutions.resolve(connection, "default", request, outcome or Outcome())


async def record(connection: Connection, run_id: str) -> Record:
    row = await connection.fetchrow("select * from kagzi.step_runs where run_id = $1 and is_latest", run_id)
    assert row is not None
    return row


async def heard(connection: Connection, run_id: str) -> list[Fact]:
    return (await facts.of(connection, "default", [run_id])).get(run_id, [])


async def apply(connection: Connection, run_id: str, kind: Kind, body: Any) -> Any:
    """An operation of whoever holds the run."""
    token = await connection.fetchval("select claim_token from kagzi.workflow_runs where run_id = $1", run_id)
    operation = Operation(kind, "default", run_id, body, token=str(token), operation_id=new_id())
    async with connection.transaction():
        await batch.apply(connection, "default", [operation], timedelta(seconds=30))
    return operation.answer


@pytest.mark.parametrize(
    ("resolution", "status", "output", "failure"),
    [
        (APPLIED, STEP_COMPLETED, b'"paid"', ""),
        (NOT_APPLIED, STEP_FAILED, b"", "NotApplied"),
        (FAIL, STEP_FAILED, b"", "ResolvedAsFailed"),
    ],
)
async def test_the_run_hears_what_became_of_the_step(
    connection: Connection,
    resolution: ResolveStepRequest.Resolution.ValueType,
    status: StepStatus.ValueType,
    output: bytes,
    failure: str,
) -> None:
    run_id = await doubtful(connection)
    result = PAID if resolution == APPLIED else None
    answer = await resolve(connection, run_id, resolution, result=result, reason="the bank says so")
    assert (answer.status, answer.step_status) == (RunStatus.SLEEPING, status)
    [fact] = await heard(connection, run_id)
    step = fact.step_resolved.step
    assert (fact.step_resolved.step_id, step.status, step.output.data) == ("charge", status, output)
    assert (step.failure.type, step.failure.non_retryable) == (failure, resolution == FAIL)
    assert step.failure.message == ("the bank says so" if failure else "")


async def test_only_the_holder_of_the_lease_puts_it_on_record(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    before = await record(connection, run_id)
    await resolve(connection, run_id, result=PAID)
    after = await record(connection, run_id)
    assert (after["status"], after["output"], after["completed_seq"]) == ("UNKNOWN", None, None)
    completed = StepCompleted(
        step_id="charge",
        attempt_id=str(before["attempt_id"]),
        attempt_number=1,
        position=1,
        completed_seq=4,
        kind=FUNCTION,
        output=PAID,
    )
    assert not isinstance(await apply(connection, run_id, Kind.COMPLETE_STEP, completed), ErrorDetail)
    last = await record(connection, run_id)
    assert (last["status"], last["output"], last["completed_seq"]) == ("COMPLETED", b'"paid"', 4)
    assert await heard(connection, run_id) == []


async def test_a_suspended_run_is_made_due(connection: Connection) -> None:
    run_id = await doubtful(connection, task_queue="till")
    outcome = Outcome()
    await resolve(connection, run_id, outcome=outcome)
    seen = await given.seen(connection, run_id)
    assert seen["lease_s"] <= 0
    assert outcome.due == {"till"}


async def test_a_run_that_is_held_is_told(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    outcome = Outcome()
    await resolve(connection, run_id, outcome=outcome)
    assert outcome.told == [run_id]
    assert (await given.seen(connection, run_id))["lease_s"] > 20


async def test_a_run_that_is_suspended_over_a_resolved_step_is_due_at_once(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    await resolve(connection, run_id)
    await apply(connection, run_id, Kind.SUSPEND, Suspend(step_ids=["charge"]))
    seen = await given.seen(connection, run_id)
    assert (seen["status"], seen["lease_s"] <= 0) == ("SLEEPING", True)


async def test_a_parked_run_stays_parked(connection: Connection) -> None:
    run_id = await doubtful(connection, parked_hash="old")
    await resolve(connection, run_id)
    assert (await given.seen(connection, run_id))["lease_s"] is None


async def test_a_repeated_resolution_is_answered_as_the_first_time(connection: Connection) -> None:
    run_id = await doubtful(connection)
    first = await resolve(connection, run_id, result=PAID)
    assert await resolve(connection, run_id, result=PAID) == first
    await connection.execute("update kagzi.step_runs set status = 'COMPLETED'")
    assert await resolve(connection, run_id) == first


async def test_a_repeat_is_known_by_its_id_also_when_the_step_came_into_doubt_again(connection: Connection) -> None:
    run_id = await doubtful(connection)
    known = new_id()
    first = await resolve(connection, run_id, NOT_APPLIED, resolution_id=known)
    await connection.execute("update kagzi.step_runs set status = 'FAILED', is_latest = false")
    await given.step(connection, run_id, "charge", status="UNKNOWN", effect=True, attempt_number=2)

    again = await resolve(connection, run_id, NOT_APPLIED, resolution_id=known)
    assert again == first
    assert (await record(connection, run_id))["resolution"] is None


async def test_another_persons_resolution_is_no_repeat_though_it_says_the_same(connection: Connection) -> None:
    run_id = await doubtful(connection)
    await resolve(connection, run_id, result=PAID, resolution_id=new_id())
    with pytest.raises(Refused) as refused:
        await resolve(connection, run_id, result=Payload(data=b'"paid twice"'), resolution_id=new_id())
    assert refused.value.detail.code == ErrorDetail.PRECONDITION_FAILED
    assert (await record(connection, run_id))["resolution_output"] == b'"paid"'


async def test_what_is_said_of_one_attempt_does_not_resolve_another(connection: Connection) -> None:
    run_id = await doubtful(connection)
    with pytest.raises(Refused) as refused:
        await resolve(connection, run_id, attempt_id=new_id())
    assert refused.value.detail.field == "attempt_id"
    latest = str((await record(connection, run_id))["attempt_id"])
    await resolve(connection, run_id, attempt_id=latest)
    assert (await record(connection, run_id))["resolution"] == "APPLIED"


async def test_a_step_is_resolved_once(connection: Connection) -> None:
    run_id = await doubtful(connection)
    await resolve(connection, run_id, APPLIED)
    with pytest.raises(Refused) as refused:
        await resolve(connection, run_id, NOT_APPLIED)
    assert refused.value.detail.code == ErrorDetail.PRECONDITION_FAILED
    assert "APPLIED" in refused.value.detail.message
    [fact] = await heard(connection, run_id)
    assert fact.step_resolved.step.status == STEP_COMPLETED


@pytest.mark.parametrize("status", ["RUNNING", "COMPLETED", "FAILED", "ABANDONED"])
async def test_a_step_whose_outcome_is_known_is_not_resolved(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, "SLEEPING", "never")
    await given.step(connection, run_id, "charge", status=status, effect=True)
    with pytest.raises(Refused) as refused:
        await resolve(connection, run_id)
    assert (refused.value.detail.code, refused.value.detail.subject) == (ErrorDetail.PRECONDITION_FAILED, "charge")


async def test_what_does_not_exist_is_not_resolved(connection: Connection) -> None:
    run_id = await doubtful(connection)
    for which, step_id, field in ((run_id, "nobody", "step_id"), (new_id(), "charge", "run_id")):
        with pytest.raises(Refused) as refused:
            await resolve(connection, which, step_id=step_id)
        assert (refused.value.detail.code, refused.value.detail.field) == (ErrorDetail.NOT_FOUND, field)


async def begin(connection: Connection, run_id: str) -> BeginStepResponse:
    started = StepStarted(step_id="charge", attempt_id=new_id(), kind=FUNCTION, effect=True)
    answer = await apply(connection, run_id, Kind.BEGIN_STEP, started)
    assert isinstance(answer, BeginStepResponse)
    return answer


async def test_a_worker_of_unary_calls_gets_the_result_when_it_begins_the_step(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    await resolve(connection, run_id, result=PAID)
    answer = await begin(connection, run_id)
    assert (answer.should_execute, answer.step.status, answer.step.output.data) == (False, STEP_COMPLETED, b'"paid"')
    assert answer.step.completed_seq == 1


async def test_a_worker_of_unary_calls_gets_the_failure_when_it_begins_the_step(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    await resolve(connection, run_id, FAIL, reason="the bank says no")
    answer = await begin(connection, run_id)
    assert (answer.should_execute, answer.step.status) == (False, STEP_FAILED)
    assert (answer.step.failure.message, answer.step.HasField("retry_at")) == ("the bank says no", False)


async def test_a_step_that_was_not_applied_runs_again_after_its_delay(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    await resolve(connection, run_id, NOT_APPLIED)
    answer = await begin(connection, run_id)
    assert (answer.should_execute, answer.step.status, answer.step.HasField("retry_at")) == (False, STEP_FAILED, True)
    await connection.execute("update kagzi.step_runs set retry_at = kagzi.now()")
    again = await begin(connection, run_id)
    assert (again.should_execute, again.step.attempt_number) == (True, 2)


async def test_without_a_resolution_the_step_stays_in_doubt(connection: Connection) -> None:
    run_id = await doubtful(connection, "RUNNING", "30 s")
    answer = await begin(connection, run_id)
    assert (answer.should_execute, answer.step.status) == (False, StepStatus.STEP_UNKNOWN)
