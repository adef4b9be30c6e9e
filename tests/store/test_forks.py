"""Retry and fork in the store: what of a history is kept, what happens anew, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.protocol.v1.workflow_pb2 import ResolveStepRequest
from kagzi.store import forks, resolutions, runs
from kagzi.store.errors import Refused
from kagzi.store.forks import Forked
from kagzi.store.operation import Outcome
from tests.store import given
from tests.store.given import new_id

NOBODY = new_id()


async def retry(connection: Connection, run_id: str, new_run_id: str = "") -> tuple[str, Forked]:
    new_run_id = new_run_id or new_id()
    async with connection.transaction():
        return new_run_id, await forks.retry(connection, "default", run_id, new_run_id, Outcome())


async def fork(connection: Connection, run_id: str, step_id: str, **options: Any) -> str:
    new_run_id = options.pop("new_run_id", None) or new_id()
    options = {"outputs": {}, **options}
    async with connection.transaction():
        await forks.fork(connection, "default", run_id, new_run_id, step_id, Outcome(), **options)
    return new_run_id


async def history(connection: Connection, run_id: str) -> list[Record]:
    return await connection.fetch(
        "select step_id, status, position, completed_seq, output, error::text, wake_at, signal_id, attempt_id"
        " from kagzi.step_runs where run_id = $1 order by position",
        run_id,
    )


async def signals(connection: Connection, run_id: str) -> list[tuple[str, bytes | None, bool]]:
    found = await connection.fetch("select * from kagzi.signals where run_id = $1 order by arrival", run_id)
    return [(row["name"], row["payload"], row["received_by"] is not None) for row in found]


async def failed_run(connection: Connection, step: str | None = None, **columns: Any) -> str:
    """A run that failed; `step` is the one whose error left it."""
    error = json.dumps({"type": "ValueError", "message": "no", **({"step": step} if step else {})})
    run_id = await given.run(connection, "FAILED", error=error, seed=77, **columns)
    await connection.execute(
        "insert into kagzi.workflow_payloads (namespace, run_id, input) values ('default', $1, '42')", run_id
    )
    return run_id


async def done(connection: Connection, run_id: str, step_id: str, position: int, **columns: Any) -> str:
    seq = columns.pop("completed_seq", position)
    output = f'"{step_id}"'.encode()
    columns = {"output": output, **columns}
    return await given.step(connection, run_id, step_id, position=position, completed_seq=seq, **columns)


def names(records: list[Record]) -> list[str]:
    return [record["step_id"] for record in records]


async def test_a_retry_keeps_what_came_before_the_failed_step(connection: Connection) -> None:
    old = await failed_run(connection, "charge", priority=3, labels='{"a": "1"}', task_queue="till", version="7")
    await done(connection, old, "reserve", 1)
    await done(connection, old, "charge", 2, status="FAILED", error='{"type": "X"}', output=None)
    await done(connection, old, "refund", 3)
    new, forked = await retry(connection, old)
    assert forked == Forked("PENDING", took_external_id=False)
    assert names(await history(connection, new)) == ["reserve"]
    run = await runs.get(connection, "default", new)
    assert (run.retried_from, run.task_queue, run.version, run.priority) == (old, "till", "7", 3)
    assert (dict(run.labels), run.input.data, run.attempts) == ({"a": "1"}, b"42", 0)
    assert run.root_run_id == new
    assert await connection.fetchval("select seed from kagzi.workflow_runs where run_id = $1", new) == 77


async def test_a_retry_leaves_the_old_run_as_it_was(connection: Connection) -> None:
    old = await failed_run(connection, "charge", external_id="order-1")
    await done(connection, old, "charge", 1, status="FAILED")
    before = await connection.fetchrow("select * from kagzi.workflow_runs where run_id = $1", old)
    await retry(connection, old)
    assert await connection.fetchrow("select * from kagzi.workflow_runs where run_id = $1", old) == before
    assert names(await history(connection, old)) == ["charge"]


async def test_before_means_a_smaller_position_whatever_was_handed_over_first(connection: Connection) -> None:
    old = await failed_run(connection, "second")
    await done(connection, old, "first", 1, completed_seq=5)
    await done(connection, old, "second", 2, completed_seq=1, status="FAILED")
    await done(connection, old, "third", 3, completed_seq=2)
    new, _ = await retry(connection, old)
    kept = await history(connection, new)
    assert [(record["step_id"], record["completed_seq"]) for record in kept] == [("first", 5)]


async def test_caught_failures_are_kept(connection: Connection) -> None:
    old = await failed_run(connection, "second")
    await done(connection, old, "first", 1, status="FAILED", output=None, error='{"type": "Caught"}')
    await done(connection, old, "second", 2, status="FAILED")
    new, _ = await retry(connection, old)
    [kept] = await history(connection, new)
    assert (kept["status"], json.loads(kept["error"])) == ("FAILED", {"type": "Caught"})


async def test_without_a_name_the_failure_that_was_handed_over_last_is_the_failed_step(connection: Connection) -> None:
    old = await failed_run(connection)
    await done(connection, old, "first", 1, completed_seq=1)
    await done(connection, old, "child", 2, completed_seq=3, status="FAILED", kind="CHILD_WORKFLOW")
    await done(connection, old, "other", 3, completed_seq=2)
    new, _ = await retry(connection, old)
    assert names(await history(connection, new)) == ["first"]


async def test_a_run_whose_own_code_failed_keeps_everything(connection: Connection) -> None:
    old = await failed_run(connection)
    await done(connection, old, "caught", 1, status="FAILED")
    await done(connection, old, "last", 2)
    new, _ = await retry(connection, old)
    assert names(await history(connection, new)) == ["caught", "last"]


async def test_a_cancelled_run_goes_on_where_it_was_cancelled(connection: Connection) -> None:
    old = await given.run(connection, "CANCELLED", cancel_reason="enough")
    await done(connection, old, "first", 1)
    await given.step(connection, old, "interrupted", position=2, status="ABANDONED")
    await done(connection, old, "$cancel", 3, kind="CANCEL", completed_seq=2)
    await done(connection, old, "cleanup", 4, completed_seq=3)
    new, _ = await retry(connection, old)
    assert names(await history(connection, new)) == ["first"]
    run = await runs.get(connection, "default", new)
    assert not run.HasField("cancel_requested_at")


async def test_what_was_under_way_happens_anew_and_timers_keep_their_end(connection: Connection) -> None:
    old = await failed_run(connection, "charge")
    wake_at = await connection.fetchval("select kagzi.now() + interval '1 day'")
    await given.step(connection, old, "nap", position=1, status="RUNNING", kind="SLEEP", wake_at=wake_at)
    await given.step(connection, old, "body", position=2, status="RUNNING")
    await given.step(connection, old, "again", position=3, status="FAILED", retry_at=wake_at)
    await given.step(connection, old, "drained", position=4, status="INTERRUPTED")
    await given.step(connection, old, "child", position=5, status="RUNNING", kind="CHILD_WORKFLOW")
    await given.step(connection, old, "answer", position=6, status="RUNNING", kind="SIGNAL", target="answer")
    await done(connection, old, "charge", 7, status="FAILED")
    new, _ = await retry(connection, old)
    kept = await history(connection, new)
    assert [(record["step_id"], record["status"]) for record in kept] == [("nap", "RUNNING"), ("answer", "RUNNING")]
    assert kept[0]["wake_at"] == wake_at


async def test_steps_that_were_set_aside_stay_behind(connection: Connection) -> None:
    old = await failed_run(connection, "charge")
    await done(connection, old, "first", 1)
    await done(connection, old, "old", 2, is_latest=False, set_aside=True)
    await done(connection, old, "charge", 2, status="FAILED")
    new, _ = await retry(connection, old)
    assert names(await history(connection, new)) == ["first"]


async def test_signals_that_no_kept_step_received_can_be_received_again(connection: Connection) -> None:
    old = await failed_run(connection, "charge")
    first, second = new_id(), new_id()
    one = await done(connection, old, "one", 1, kind="SIGNAL", signal_id=first)
    await done(connection, old, "charge", 2, status="FAILED")
    two = await done(connection, old, "two", 3, kind="SIGNAL", signal_id=second)
    for signal_id, payload, received_by in ((first, b"1", one), (second, b"2", two), (new_id(), b"3", None)):
        await connection.execute(
            "insert into kagzi.signals (namespace, signal_id, run_id, name, payload, received_by)"
            " values ('default', $1, $2, 'go', $3, $4)",
            signal_id,
            old,
            payload,
            received_by,
        )
    before = await signals(connection, old)
    new, _ = await retry(connection, old)
    assert await signals(connection, new) == [("go", b"1", True), ("go", b"2", False), ("go", b"3", False)]
    assert await signals(connection, old) == before
    [kept] = await history(connection, new)
    assert kept["signal_id"] == await connection.fetchval(
        "select signal_id from kagzi.signals where run_id = $1 and payload = '1'", new
    )


async def test_a_retry_takes_the_external_id_that_is_free(connection: Connection) -> None:
    old = await failed_run(connection, external_id="order-1")
    new, forked = await retry(connection, old)
    assert forked.took_external_id
    assert await runs.find(connection, "default", "order-1") == new


@pytest.mark.parametrize("holder", ["PENDING", "COMPLETED"])
async def test_a_retry_leaves_an_external_id_that_another_has(connection: Connection, holder: str) -> None:
    old = await failed_run(connection, external_id="order-1")
    other = await given.run(connection, holder, external_id="order-1", dedupe_forever=holder == "COMPLETED")
    new, forked = await retry(connection, old)
    assert not forked.took_external_id
    assert (await runs.get(connection, "default", new)).external_id == ""
    assert await runs.find(connection, "default", "order-1") == other


async def test_a_time_limit_counts_from_the_new_start(connection: Connection) -> None:
    old = await failed_run(connection)
    await connection.execute(
        "update kagzi.workflow_runs set created_at = kagzi.now() - interval '9 h',"
        " deadline_at = kagzi.now() - interval '8 h' where run_id = $1",
        old,
    )
    new, _ = await retry(connection, old)
    left = await connection.fetchval(
        "select extract(epoch from deadline_at - created_at)::float8 from kagzi.workflow_runs where run_id = $1", new
    )
    assert left == pytest.approx(3_600)


async def test_a_repeated_retry_is_one_run_and_answered_as_it_is(connection: Connection) -> None:
    old = await failed_run(connection, external_id="order-1")
    new, first = await retry(connection, old)
    await connection.execute(
        "update kagzi.workflow_runs set status = 'CANCELLED', available_at = null, finished_at = kagzi.now()"
        " where run_id = $1",
        new,
    )
    _, second = await retry(connection, old, new)
    assert (first.status, second.status) == ("PENDING", "CANCELLED")
    assert second.took_external_id
    assert await connection.fetchval("select count(*) from kagzi.workflow_runs where retried_from = $1", old) == 1


async def test_a_new_id_that_another_run_has_is_refused(connection: Connection) -> None:
    old, other = await failed_run(connection), await given.run(connection)
    with pytest.raises(Refused) as refused:
        await retry(connection, old, other)
    assert (refused.value.detail.code, refused.value.detail.field) == (ErrorDetail.CONFLICT, "new_run_id")


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "SLEEPING", "COMPLETED"])
async def test_only_a_failed_or_cancelled_run_is_retried(connection: Connection, status: str) -> None:
    with pytest.raises(Refused) as refused:
        await retry(connection, await given.run(connection, status))
    assert refused.value.detail.code == ErrorDetail.PRECONDITION_FAILED
    assert status in refused.value.detail.message


async def test_a_run_of_an_automation_is_not_retried(connection: Connection) -> None:
    old = await failed_run(connection, automation="inbox")
    with pytest.raises(Refused) as refused:
        await retry(connection, old)
    assert refused.value.detail.code == ErrorDetail.PRECONDITION_FAILED


async def test_nothing_starts_again_in_a_disabled_namespace(connection: Connection) -> None:
    old = await failed_run(connection)
    await connection.execute("update kagzi.namespaces set enabled = false")
    with pytest.raises(Refused) as refused:
        await retry(connection, old)
    assert refused.value.detail.code == ErrorDetail.PRECONDITION_FAILED


async def test_a_fork_takes_the_history_before_any_step_of_any_run(connection: Connection) -> None:
    for status in ("RUNNING", "SLEEPING", "COMPLETED", "FAILED"):
        old = await given.run(connection, status, external_id=f"order {status}")
        await done(connection, old, "a", 1)
        await done(connection, old, "b", 2)
        await done(connection, old, "c", 3)
        new = await fork(connection, old, "c")
        assert names(await history(connection, new)) == ["a", "b"]
        run = await runs.get(connection, "default", new)
        assert (run.retried_from, run.external_id) == (old, "")


async def test_a_fork_has_other_outputs_and_another_input(connection: Connection) -> None:
    old = await failed_run(connection)
    await done(connection, old, "a", 1)
    await done(connection, old, "b", 2, status="FAILED", output=None, error='{"type": "X"}')
    await done(connection, old, "c", 3)
    outputs = {"b": Payload(data=b"2", encoding="json+zlib")}
    new = await fork(connection, old, "c", outputs=outputs, input=Payload(data=b"7"))
    a, b = await history(connection, new)
    assert (a["status"], a["output"]) == ("COMPLETED", b'"a"')
    assert (b["status"], b["output"], b["error"], b["completed_seq"]) == ("COMPLETED", b"2", None, 2)
    run = await runs.get(connection, "default", new)
    assert run.input.data == b"7"


async def test_outputs_of_steps_that_are_not_kept_are_refused(connection: Connection) -> None:
    old = await failed_run(connection)
    await done(connection, old, "a", 1)
    await given.step(connection, old, "nap", position=2, status="RUNNING", kind="SLEEP")
    await done(connection, old, "b", 3)
    for step_id in ("b", "nap", "nobody"):
        with pytest.raises(Refused) as refused:
            await fork(connection, old, "b", outputs={step_id: Payload(data=b"1")})
        assert (refused.value.detail.code, refused.value.detail.field) == (ErrorDetail.INVALID_ARGUMENT, "outputs")
        assert refused.value.detail.subject == step_id


async def test_what_does_not_exist_is_not_forked(connection: Connection) -> None:
    old = await failed_run(connection)
    for run_id, field in ((old, "step_id"), (NOBODY, "run_id")):
        with pytest.raises(Refused) as refused:
            await fork(connection, run_id, "nobody")
        assert (refused.value.detail.code, refused.value.detail.field) == (ErrorDetail.NOT_FOUND, field)


async def test_a_fork_behind_a_cancel_is_a_cancelled_run(connection: Connection) -> None:
    old = await given.run(connection, "CANCELLED", cancel_reason="enough")
    await connection.execute("update kagzi.workflow_runs set cancel_requested_at = kagzi.now()")
    await done(connection, old, "$cancel", 1, kind="CANCEL")
    await done(connection, old, "cleanup", 2)
    new = await fork(connection, old, "cleanup")
    assert names(await history(connection, new)) == ["$cancel"]
    assert (await runs.get(connection, "default", new)).HasField("cancel_requested_at")


async def doubtful(connection: Connection, status: str = "UNKNOWN") -> str:
    """A run that failed while an effect was in doubt."""
    old = await failed_run(connection, "ship")
    await done(connection, old, "reserve", 1)
    await given.step(connection, old, "charge", position=2, status=status, effect=True)
    await done(connection, old, "ship", 3, status="FAILED", completed_seq=2)
    return old


@pytest.mark.parametrize("status", ["UNKNOWN", "RUNNING"])
async def test_an_effect_in_doubt_is_never_repeated_on_a_guess(connection: Connection, status: str) -> None:
    old = await doubtful(connection, status)
    with pytest.raises(Refused) as refused:
        await retry(connection, old)
    assert (refused.value.detail.code, refused.value.detail.subject) == (ErrorDetail.PRECONDITION_FAILED, "charge")
    new = await fork(connection, old, "ship", outputs={"charge": Payload(data=b'"paid"')})
    charge = (await history(connection, new))[1]
    assert (charge["status"], charge["output"], charge["completed_seq"]) == ("COMPLETED", b'"paid"', 2)


async def test_a_fork_before_an_effect_in_doubt_needs_no_answer(connection: Connection) -> None:
    new = await fork(connection, await doubtful(connection), "charge")
    assert names(await history(connection, new)) == ["reserve"]


@pytest.mark.parametrize(
    ("resolution", "kept"),
    [
        (ResolveStepRequest.APPLIED, [("charge", "COMPLETED", b'"paid"', 2)]),
        (ResolveStepRequest.NOT_APPLIED, []),
        (ResolveStepRequest.FAIL, [("charge", "FAILED", None, 2)]),
    ],
)
async def test_a_retry_takes_a_resolution_along(
    connection: Connection, resolution: ResolveStepRequest.Resolution.ValueType, kept: list[Any]
) -> None:
    old = await doubtful(connection)
    applied = resolution == ResolveStepRequest.APPLIED
    request = ResolveStepRequest(
        run_id=old, step_id="charge", resolution=resolution, result=Payload(data=b'"paid"') if applied else None
    )
    async with connection.transaction():
        await resolutions.resolve(connection, "default", request, Outcome())
    new, _ = await retry(connection, old)
    found = [
        (record["step_id"], record["status"], record["output"], record["completed_seq"])
        for record in await history(connection, new)
    ]
    assert found == [("reserve", "COMPLETED", b'"reserve"', 1), *kept]
