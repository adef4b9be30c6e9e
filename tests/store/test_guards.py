"""What each statement promises by itself, below the fence and the code that calls it: a row that it may not touch stays
as it is. Elsewhere several guards stand one behind the other; here each stands alone, and `tools/mutants.py` takes it
out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from asyncpg.connection import Connection

from tests.database import Databases
from tests.store import given
from tests.store.given import new_id
from tests.store.statements import STATEMENTS, look, run


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One for all: what a test looks at is its own."""
    url = databases.create()
    yield url
    databases.drop(url)


ENDINGS: dict[str, dict[str, Any]] = {
    "endings.complete": {"outputs": [None], "output_encodings": [None]},
    "endings.fail": {"statuses": ["FAILED"], "errors": ["{}"], "retry_ms": [None]},
    "suspensions.release": {"retry_ms": [0]},
    "suspensions.suspend": {
        "parked": [None],
        "parked_hashes": [None],
        "named": [0],
        "kept": [False],
        "wait_run_ids": [],
        "wait_step_ids": [],
    },
}


@pytest.mark.parametrize("name", ENDINGS)
async def test_only_the_current_token_gives_a_run_away(connection: Connection, name: str) -> None:
    run_id = await given.run(connection, "RUNNING")
    before = await look(connection, "workflow_runs", "run_id", run_id)
    values = {"run_ids": [run_id], "operation_ids": [new_id()], **ENDINGS[name]}
    assert await run(connection, name, tokens=[new_id()], **values) == []
    assert await look(connection, "workflow_runs", "run_id", run_id) == before
    assert await run(connection, name, tokens=[before["claim_token"]], **values) != []


@pytest.mark.parametrize("name", ["leases.progress", "suspensions.set_state", "suspensions.warn"])
async def test_only_a_run_that_is_held_is_written_for(connection: Connection, name: str) -> None:
    run_id = await given.run(connection, "SLEEPING", crashes=3)
    before = await look(connection, "workflow_runs", "run_id", run_id)
    given_values: dict[str, dict[str, Any]] = {
        "leases.progress": {},
        "suspensions.set_state": {"states": ["{}"], "numbers": [7]},
        "suspensions.warn": {"step_ids": ["a"], "messages": ["m"]},
    }
    await run(connection, name, run_ids=[run_id], **given_values[name])
    assert await look(connection, "workflow_runs", "run_id", run_id) == before


async def test_a_signal_is_stored_once_by_its_id(connection: Connection) -> None:
    run_id, signal_id = await given.run(connection), new_id()
    values = {"run_ids": [run_id], "names": ["go"], "payloads": [None], "payload_encodings": [None]}
    for _ in range(2):
        await run(connection, "signals.send", signal_ids=[signal_id], **values)
    assert await connection.fetchval("select count(*) from kagzi.signals where signal_id = $1", signal_id) == 1


@pytest.mark.parametrize(
    ("status", "step", "columns", "woken"),
    [
        ("SLEEPING", "RUNNING", {}, True),
        ("RUNNING", "RUNNING", {}, True),
        ("PENDING", "RUNNING", {}, False),
        ("SLEEPING", "COMPLETED", {}, False),
        ("SLEEPING", "RUNNING", {"parked_hash": "x"}, False),
    ],
)
@pytest.mark.parametrize("by", ["signals.wake", "endings.wake_parents"])
async def test_news_wakes_who_waits_for_it_and_nobody_else(
    connection: Connection, by: str, status: str, step: str, columns: dict[str, Any], woken: bool
) -> None:
    run_id = await given.run(connection, status, "1 hour", **columns)
    kind = {"signals.wake": "SIGNAL", "endings.wake_parents": "CHILD_WORKFLOW"}[by]
    await given.step(connection, run_id, "wait", status=step, kind=kind, target="go")
    values = {"names": ["go"]} if by == "signals.wake" else {}
    assert bool(await run(connection, by, run_ids=[run_id], **values)) == woken
    assert ((await given.seen(connection, run_id))["lease_s"] <= 0) == (woken and status == "SLEEPING")


async def test_a_signal_that_another_attempt_has_is_not_received_again(connection: Connection) -> None:
    run_id, signal_id, first = await given.run(connection, "RUNNING"), new_id(), new_id()
    values = {"run_ids": [run_id], "names": ["go"], "payloads": [None], "payload_encodings": [None]}
    await run(connection, "signals.send", signal_ids=[signal_id], **values)
    taken = {"signal_ids": [signal_id], "run_ids": [run_id]}
    assert await run(connection, "signals.receive", attempt_ids=[first], **taken)
    assert await run(connection, "signals.receive", attempt_ids=[first], **taken)
    assert await run(connection, "signals.receive", attempt_ids=[new_id()], **taken) == []
    assert str((await look(connection, "signals", "signal_id", signal_id))["received_by"]) == first


def attempt(run_id: str, attempt_id: str, number: int = 1, **values: Any) -> dict[str, Any]:
    return {
        "run_ids": [run_id],
        "step_ids": ["a"],
        "attempt_ids": [attempt_id],
        "attempt_numbers": [number],
        "positions": [1],
        "kinds": ["FUNCTION"],
        "input_hashes": [None],
        "child_run_ids": [None],
        **values,
    }


def completed(run_id: str, attempt_id: str, number: int = 1) -> dict[str, Any]:
    ended = {"completed_seqs": [1], "outputs": [b"1"], "output_encodings": [None], "signal_ids": [None]}
    return attempt(run_id, attempt_id, number, **ended, elapsed_us=[0])


def failed(run_id: str, attempt_id: str, number: int = 1, status: str = "FAILED", unclear: int = 0) -> dict[str, Any]:
    ended = {"completed_seqs": [1], "statuses": [status], "errors": ["{}"], "retry_ms": [5], "unclear": [unclear]}
    return attempt(run_id, attempt_id, number, **ended, elapsed_us=[0])


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "ABANDONED", "INTERRUPTED"])
@pytest.mark.parametrize("make", [completed, failed])
async def test_what_became_of_an_attempt_stands(connection: Connection, make: Any, status: str) -> None:
    run_id = await given.run(connection, "RUNNING")
    known = await given.step(connection, run_id, "a", status=status)
    before = await look(connection, "step_runs", "run_id", run_id)
    await run(connection, f"steps.{'complete' if make is completed else 'fail'}", **make(run_id, known))
    assert await look(connection, "step_runs", "run_id", run_id) == before


@pytest.mark.parametrize("make", [completed, failed])
async def test_an_attempt_is_written_for_by_its_own_id_alone(connection: Connection, make: Any) -> None:
    name = f"steps.{'complete' if make is completed else 'fail'}"
    run_id = await given.run(connection, "RUNNING")
    await given.step(connection, run_id, "a", status="RUNNING")
    before = await look(connection, "step_runs", "run_id", run_id)
    await run(connection, name, **make(run_id, new_id()))
    assert await look(connection, "step_runs", "run_id", run_id) == before


@pytest.mark.parametrize("name", ["complete", "fail"])
async def test_an_attempt_without_a_number_has_the_one_on_record(connection: Connection, name: str) -> None:
    run_id = await given.run(connection, "RUNNING")
    await given.step(connection, run_id, "a", status="INTERRUPTED", is_latest=False)
    second = await given.step(connection, run_id, "a", status="RUNNING", attempt_number=2)
    make = completed if name == "complete" else failed
    await run(connection, f"steps.{name}", **make(run_id, second, 0))
    rows = await connection.fetch(
        "select status from kagzi.step_runs where run_id = $1 order by attempt_number", run_id
    )
    assert [row["status"] for row in rows] == ["INTERRUPTED", "COMPLETED" if name == "complete" else "FAILED"]


async def test_a_doubt_is_written_again_only_when_the_reconciler_was_asked_again(connection: Connection) -> None:
    run_id = await given.run(connection, "RUNNING")
    known = await given.step(connection, run_id, "a", status="UNKNOWN", effect=True, unclear=2)
    assert await run(connection, "steps.fail", **failed(run_id, known, status="UNKNOWN", unclear=2)) == []
    assert await run(connection, "steps.fail", **failed(run_id, known, status="UNKNOWN", unclear=3)) != []
    assert await run(connection, "steps.fail", **failed(run_id, known, status="FAILED")) != []


async def test_a_step_is_reached_once(connection: Connection) -> None:
    run_id, known = await given.run(connection, "RUNNING"), new_id()
    started = {"effects": [False], "durations_ms": [None], "wake_ats": [None], "targets": [None]}
    for number in (1, 1, 0):
        await run(connection, "steps.start", **attempt(run_id, known, number, **started))
    assert await connection.fetchval("select count(*) from kagzi.step_runs where run_id = $1", run_id) == 1
    await connection.execute("update kagzi.step_runs set is_latest = false where run_id = $1", run_id)
    await given.step(connection, run_id, "a", status="RUNNING", attempt_number=2)
    assert await run(connection, "steps.start", **attempt(run_id, known, 0, **started)) == []


@pytest.mark.parametrize(
    ("columns", "gives_way"),
    [
        ({"status": "RUNNING"}, True),
        ({"status": "INTERRUPTED"}, True),
        ({"status": "COMPLETED"}, False),
        ({"status": "FAILED"}, False),
        ({"status": "RUNNING", "effect": True}, False),
        ({"status": "UNKNOWN", "effect": True}, False),
        ({"status": "UNKNOWN", "effect": True, "retry": True}, False),
        ({"status": "FAILED", "retry": True}, True),
    ],
    ids=str,
)
async def test_only_what_may_happen_again_gives_way(
    connection: Connection, columns: dict[str, Any], gives_way: bool
) -> None:
    run_id = await given.run(connection, "RUNNING")
    kept = {name: value for name, value in columns.items() if name != "retry"}
    known = await given.step(connection, run_id, "a", **kept)
    if "retry" in columns:
        await connection.execute("update kagzi.step_runs set retry_at = kagzi.now() where run_id = $1", run_id)
    values = {"run_ids": [run_id], "step_ids": ["a"]}
    await run(connection, "steps.supersede", attempt_ids=[known], **values)
    assert (await look(connection, "step_runs", "run_id", run_id))["is_latest"], "a repeat made way for itself"
    await run(connection, "steps.supersede", attempt_ids=[new_id()], **values)
    assert (await look(connection, "step_runs", "run_id", run_id))["is_latest"] != gives_way


async def test_what_has_its_result_is_not_interrupted(connection: Connection) -> None:
    run_id = await given.run(connection, "CANCELLED")
    await given.step(connection, run_id, "a", status="COMPLETED")
    await run(connection, "steps.interrupt", run_ids=[run_id])
    assert (await look(connection, "step_runs", "run_id", run_id))["status"] == "COMPLETED"


async def test_only_live_children_fall_with_their_parent(connection: Connection) -> None:
    parent = await given.run(connection, "FAILED")
    live = await given.run(connection, "PENDING", parent_run_id=parent)
    for status in ("COMPLETED", "FAILED", "CANCELLED"):
        await given.run(connection, status, parent_run_id=parent)
    await given.run(connection, "PENDING", parent_run_id=parent, detached=True)
    assert [str(row["run_id"]) for row in await run(connection, "endings.children", run_ids=[parent])] == [live]


async def test_a_signal_that_was_received_stays_where_it_was(connection: Connection) -> None:
    run_id, successor = await given.run(connection, "COMPLETED"), new_id()
    sent = [new_id(), new_id()]
    values = {"names": ["go"] * 2, "payloads": [None] * 2, "payload_encodings": [None] * 2}
    await run(connection, "signals.send", signal_ids=sent, run_ids=[run_id] * 2, **values)
    await run(connection, "signals.receive", signal_ids=sent[:1], run_ids=[run_id], attempt_ids=[new_id()])
    moved = {"run_id": run_id, "new_run_id": successor, "seed": 1, "dedupe_forever": False}
    await run(connection, "endings.continue_as_new", **moved, input=None, input_encoding=None)
    assert str((await look(connection, "signals", "signal_id", sent[0]))["run_id"]) == run_id
    assert str((await look(connection, "signals", "signal_id", sent[1]))["run_id"]) == successor


@pytest.mark.parametrize("status", ["PENDING", "RUNNING"])
async def test_an_answer_wakes_only_who_is_suspended(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, status, "1 hour")
    assert await run(connection, "answers.wake", run_id=run_id) == []
    assert await run(connection, "resolutions.wake", run_id=run_id) == []
    assert await run(connection, "runs.resume", run_id=run_id, resume_id=new_id()) == []


async def test_a_resolution_wakes_nobody_who_is_parked(connection: Connection) -> None:
    run_id = await given.run(connection, "SLEEPING", "1 hour", parked_hash="x")
    assert await run(connection, "resolutions.wake", run_id=run_id) == []


def started(run_id: str, parent: str | None = None) -> dict[str, Any]:
    columns: dict[str, Any] = {name: [None] for name in STATEMENTS["runs", "start"].parameters}
    columns |= {"run_ids": [run_id], "task_queues": ["q"], "workflow_types": ["t"], "versions": [""], "priorities": [2]}
    columns |= {"seeds": [1], "detached": [False], "dedupe_forever": [False], "lease": None, "parent_run_ids": [parent]}
    del columns["namespace"]
    return columns


async def test_a_start_is_stored_although_something_of_it_was_left_behind(connection: Connection) -> None:
    run_id = new_id()
    await connection.execute("insert into kagzi.workflow_payloads (namespace, run_id) values ('default', $1)", run_id)
    [row] = await run(connection, "runs.start", **started(run_id))
    assert row["started"] == 1


@pytest.mark.parametrize(("status", "count"), [("SCHEDULED", 0), ("PAUSED", 0), ("COMPLETED", 1), ("RUNNING", 1)])
async def test_a_schedule_is_nobodys_parent(connection: Connection, status: str, count: int) -> None:
    [row] = await run(connection, "runs.start", **started(new_id(), await given.run(connection, status)))
    assert row["started"] == count


async def test_the_next_run_of_a_schedule_waits_for_every_awaited_run_that_does_not_wait_itself(
    connection: Connection,
) -> None:
    template = new_id()
    signalled = await given.run(connection, "SLEEPING", "never", schedule_id=template)
    ended = await given.run(connection, "COMPLETED", schedule_id=template, awaited=True)
    waiting = await given.run(connection, "PENDING", "never", schedule_id=template, awaited=True)
    locked = await run(connection, "instances.lock_waiting", template_ids=[template])
    assert [str(row["run_id"]) for row in locked] == [waiting]
    await run(connection, "instances.await_ends", run_ids=[ended, signalled])
    assert (await look(connection, "workflow_runs", "run_id", signalled))["awaited"]
    both = [waiting, signalled]
    assert await run(connection, "instances.release", run_ids=both) == [], "one that waits for a signal lives"
    await connection.execute("update kagzi.workflow_runs set awaited = false where run_id = $1", signalled)
    released = await run(connection, "instances.release", run_ids=both)
    assert [str(row["run_id"]) for row in released] == [waiting]


async def test_the_end_of_what_has_ended_is_not_awaited(connection: Connection) -> None:
    ended = await given.run(connection, "COMPLETED", schedule_id=new_id())
    await run(connection, "instances.await_ends", run_ids=[ended])
    assert not (await look(connection, "workflow_runs", "run_id", ended))["awaited"]


async def test_a_worker_that_comes_back_gives_back_only_what_it_holds(connection: Connection) -> None:
    worker_id = new_id()
    asleep = await given.run(connection, "SLEEPING", "1 hour", locked_by=worker_id)
    held = await given.run(connection, "RUNNING", "1 hour", locked_by=worker_id)
    token = (await look(connection, "workflow_runs", "run_id", held))["claim_token"]
    values = {"worker_id": worker_id, "everything": True, "lease_ms": 0, "age_ms": 0}
    assert await run(connection, "workers.put_back", run_ids=[held], tokens=[token], **values) == []
    assert len(await run(connection, "workers.put_back", run_ids=[], tokens=[], **values)) == 1
    assert (await look(connection, "workflow_runs", "run_id", asleep))["status"] == "SLEEPING"


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED"])
async def test_what_has_ended_is_neither_cancelled_nor_terminated(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, status)
    before = await look(connection, "workflow_runs", "run_id", run_id)
    asked = {"run_ids": [run_id], "errors": ["{}"]}
    assert await run(connection, "endings.cancel", reasons=["why"], **asked) == []
    assert await run(connection, "endings.terminate", statuses=["CANCELLED"], **asked) == []
    assert await look(connection, "workflow_runs", "run_id", run_id) == before


async def test_only_a_run_that_is_parked_asleep_is_resumed(connection: Connection) -> None:
    run_id = await given.run(connection, "PENDING", "1 hour", parked_hash="x")
    assert await run(connection, "runs.resume", run_id=run_id, resume_id=new_id()) == []


async def test_what_came_before_the_failed_step_is_kept_unless_it_was_given_up(connection: Connection) -> None:
    run_id = await given.run(connection, "RUNNING", attempts=1)
    await given.step(connection, run_id, "kept", position=1)
    await given.step(connection, run_id, "given up", position=2, status="ABANDONED")
    await given.step(connection, run_id, "failed", position=3, status="FAILED")
    await run(connection, "steps.set_aside", run_ids=[run_id], step_ids=["failed"])
    rows = await connection.fetch("select step_id from kagzi.step_runs where run_id = $1 and is_latest", run_id)
    assert [row["step_id"] for row in rows] == ["kept"]


@pytest.mark.parametrize("status", ["SCHEDULED", "PAUSED"])
async def test_a_schedule_is_no_run_to_resolve_or_to_fork(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, status)
    assert await run(connection, "resolutions.lock", run_id=run_id) == []
    assert await run(connection, "forks.source", run_id=run_id) == []


@pytest.mark.parametrize("status", ["RUNNING", "COMPLETED", "FAILED"])
async def test_only_what_is_in_doubt_is_resolved(connection: Connection, status: str) -> None:
    run_id = await given.run(connection, "SLEEPING", "never")
    await given.step(connection, run_id, "a", status=status, effect=True)
    answer = {"resolution": "APPLIED", "output": None, "output_encoding": None, "reason": None, "attempt_id": None}
    assert await run(connection, "resolutions.resolve", run_id=run_id, step_id="a", resolution_id=None, **answer) == []


def advanced(run_id: str, token: str, attempt_id: str) -> dict[str, Any]:
    """The short way of one result of one run."""
    return {
        "run_ids": [run_id],
        "tokens": [token],
        "steps": [1],
        "ends": [False],
        "slacks": [1_000],
        "step_run_ids": [run_id],
        "step_ids": ["a"],
        "attempt_ids": [attempt_id],
        "positions": [1],
        "completed_seqs": [1],
        "kinds": ["FUNCTION"],
        "input_hashes": [None],
        "outputs": [b"other"],
        "output_encodings": [None],
        "elapsed_us": [0],
        "end_run_ids": [],
        "operation_ids": [],
        "end_outputs": [],
        "end_encodings": [],
    }


async def test_the_short_way_writes_no_result_over_another(connection: Connection) -> None:
    run_id = await given.run(connection, "RUNNING")
    token = (await look(connection, "workflow_runs", "run_id", run_id))["claim_token"]
    known = await given.step(connection, run_id, "a", status="RUNNING")
    for stranger in (advanced(run_id, token, new_id()), advanced(run_id, new_id(), known)):
        assert await run(connection, "express.advance", **stranger) == []
        assert (await look(connection, "step_runs", "run_id", run_id))["status"] == "RUNNING"
    assert len(await run(connection, "express.advance", **advanced(run_id, token, known))) == 1
    for status in ("COMPLETED", "FAILED", "ABANDONED", "INTERRUPTED"):
        await connection.execute("update kagzi.step_runs set status = $2 where run_id = $1", run_id, status)
        assert await run(connection, "express.advance", **advanced(run_id, token, known)) == []


WAITS: dict[str, tuple[dict[str, Any], str]] = {
    "a timer": ({"kind": "SLEEP", "status": "RUNNING", "wake_at": "1 hour"}, "then"),
    "a timer that has rung": ({"kind": "SLEEP", "status": "COMPLETED", "wake_at": "1 hour"}, "now"),
    "a timer in doubt": ({"kind": "SLEEP", "status": "UNKNOWN", "wake_at": "1 hour"}, "never"),
    "a signal": ({"kind": "SIGNAL", "status": "RUNNING", "target": "go"}, "never"),
    "a signal that was given up": ({"kind": "SIGNAL", "status": "UNKNOWN", "target": "sent"}, "never"),
    "a signal that is there": ({"kind": "SIGNAL", "status": "RUNNING", "target": "sent"}, "now"),
    "a signal that was received": ({"kind": "SIGNAL", "status": "RUNNING", "target": "received"}, "never"),
    "a child": ({"kind": "CHILD_WORKFLOW", "status": "RUNNING", "child": "PENDING"}, "never"),
    "a child that has ended": ({"kind": "CHILD_WORKFLOW", "status": "RUNNING", "child": "FAILED"}, "now"),
    "a child in doubt": ({"kind": "CHILD_WORKFLOW", "status": "UNKNOWN", "child": "FAILED"}, "never"),
    "a stranger in doubt": ({"kind": "CHILD_WORKFLOW", "status": "UNKNOWN", "child": "stranger"}, "never"),
    "a stranger": ({"kind": "CHILD_WORKFLOW", "status": "RUNNING", "child": "stranger"}, "soon"),
    "a stranger that was not started": ({"kind": "CHILD_WORKFLOW", "status": "PENDING", "child": "stranger"}, "never"),
    "a retry": ({"kind": "FUNCTION", "status": "FAILED", "retry_at": "1 hour"}, "then"),
    "a body that was cut off": (
        {"kind": "FUNCTION", "status": "RUNNING", "effect": True, "retry_at": "1 hour"},
        "never",
    ),
    "a doubt": ({"kind": "FUNCTION", "status": "UNKNOWN", "effect": True}, "never"),
    "a doubt that was resolved": ({"kind": "FUNCTION", "status": "UNKNOWN", "resolution": "APPLIED"}, "now"),
    "a resolution of old": ({"kind": "SIGNAL", "status": "RUNNING", "target": "go", "resolution": "FAIL"}, "never"),
    "nothing any more": ({"kind": "FUNCTION", "status": "ABANDONED"}, "now"),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_a_run_is_suspended_until_what_it_waits_for(connection: Connection, wait: str) -> None:
    columns, due = WAITS[wait]
    run_id = await given.run(connection, "RUNNING")
    token = (await look(connection, "workflow_runs", "run_id", run_id))["claim_token"]
    sent = {"signal_ids": [new_id(), taken := new_id()], "run_ids": [run_id] * 2, "names": ["sent", "received"]}
    await run(connection, "signals.send", **sent, payloads=[None] * 2, payload_encodings=[None] * 2)
    await run(connection, "signals.receive", signal_ids=[taken], run_ids=[run_id], attempt_ids=[new_id()])
    plain = {name: value for name, value in columns.items() if name not in ("child", "wake_at", "retry_at")}
    if "child" in columns:
        own = columns["child"] != "stranger"
        status = columns["child"] if own else "PENDING"
        plain["child_run_id"] = await given.run(connection, status, parent_run_id=run_id if own else None)
    await given.step(connection, run_id, "a", **plain)
    for name in {"wake_at", "retry_at"} & columns.keys():
        await connection.execute(
            f"update kagzi.step_runs set {name} = kagzi.now() + interval '1 hour' where run_id = $1",  # noqa: S608
            run_id,
        )
    values = {**ENDINGS["suspensions.suspend"], "named": [1], "wait_run_ids": [run_id], "wait_step_ids": ["a"]}
    given_values = {"run_ids": [run_id], "tokens": [token], "operation_ids": [new_id()], **values}
    assert len(await run(connection, "suspensions.suspend", **given_values)) == 1
    left = (await given.seen(connection, run_id))["lease_s"]
    found = "never" if left is None else "now" if left <= 0 else "soon" if left < 60 else "then"
    assert found == due
