"""Steps of a run as an operator reads them: one by one, in pages, and never more than a message can carry."""

from __future__ import annotations

import pytest
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import STEP_COMPLETED, STEP_FAILED, ErrorDetail, Failure, Step
from kagzi.store import inspection, rows
from kagzi.store.errors import Refused
from kagzi.store.inspection import BEGINNING, Place, StepFilter
from tests.store import given

EVERYTHING = StepFilter(superseded=True, outputs=True)


def place(step: Step) -> Place:
    return step.position, step.attempt_number, step.step_id


async def listed(
    connection: Connection, run_id: str, wanted: StepFilter, *, most: int = 2, most_bytes: int = 1_000_000
) -> list[tuple[str, int]]:
    """All pages, each of which but the last says that more follow."""
    found: list[Step] = []
    after, more = BEGINNING, True
    while more:
        page, more = await inspection.steps(
            connection, "default", run_id, wanted, most=most, after=after, most_bytes=most_bytes
        )
        found += page
        after = place(found[-1]) if found else BEGINNING
    return [(step.step_id, step.attempt_number) for step in found]


async def test_a_step_carries_every_column_to_its_field(connection: Connection) -> None:
    run_id = await given.run(connection)
    failure = Failure(type="ValueError", message="no", traceback="line 1", retry_after_ms=0)
    attempt_id = await given.step(
        connection,
        run_id,
        "charge",
        status="FAILED",
        kind="CHILD_WORKFLOW",
        position=3,
        completed_seq=2,
        output=b"{}",
        output_encoding="json+zlib",
        error=rows.failure_text(failure),
        target="ship",
        child_run_id=given.new_id(),
        input_hash=-1,
        effect=True,
    )
    step = await inspection.step_by_id(connection, "default", run_id, "charge")
    assert step == await inspection.step_by_attempt(connection, "default", run_id, attempt_id)
    assert (step.attempt_id, step.status, step.position, step.completed_seq) == (attempt_id, STEP_FAILED, 3, 2)
    assert (step.output.data, step.output.encoding, step.target) == (b"{}", "json+zlib", "ship")
    assert (step.failure, step.input_hash, step.effect) == (failure, -1, True)
    assert not step.HasField("retry_at")
    assert step.HasField("created_at")


async def test_a_step_is_its_latest_attempt(connection: Connection) -> None:
    run_id = await given.run(connection)
    for number in (1, 2, 3):
        await given.step(connection, run_id, "charge", attempt_number=number, is_latest=number == 2)
    assert (await inspection.step_by_id(connection, "default", run_id, "charge")).attempt_number == 2


async def test_a_run_and_a_step_that_do_not_exist_are_told_apart(connection: Connection) -> None:
    run_id = await given.run(connection)
    template = await given.run(connection, "SCHEDULED")
    calls = {
        "step_id": inspection.step_by_id(connection, "default", run_id, "charge"),
        "attempt_id": inspection.step_by_attempt(connection, "default", run_id, given.new_id()),
        "run_id": inspection.steps(connection, "default", template, StepFilter(), most=1),
    }
    for field, call in calls.items():
        with pytest.raises(Refused) as refusal:
            await call
        assert (refusal.value.detail.code, refusal.value.detail.field) == (ErrorDetail.NOT_FOUND, field)
    assert await inspection.steps(connection, "default", run_id, StepFilter(), most=1) == ([], False)


async def test_steps_are_listed_in_the_order_the_code_asked_for_them(connection: Connection) -> None:
    run_id = await given.run(connection)
    await given.step(connection, run_id, "ship", position=2, status="RUNNING")
    await given.step(connection, run_id, "charge", position=1, attempt_number=1, status="FAILED", is_latest=False)
    await given.step(connection, run_id, "charge", position=1, attempt_number=2)
    # Set aside by a retry of the whole workflow: another step has its position now.
    await given.step(connection, run_id, "old", position=2, is_latest=False, set_aside=True)
    assert await listed(connection, run_id, StepFilter()) == [("charge", 2), ("ship", 1)]
    everything = [("charge", 1), ("charge", 2), ("old", 1), ("ship", 1)]
    for most in (1, 2, 3, 4, 5):
        assert await listed(connection, run_id, EVERYTHING, most=most) == everything
    assert await listed(connection, run_id, StepFilter(statuses=["RUNNING"])) == [("ship", 1)]
    assert await listed(connection, run_id, StepFilter(step_id="charge", superseded=True)) == everything[:2]


async def test_outputs_come_only_when_asked_for_and_end_a_page_by_their_size(connection: Connection) -> None:
    run_id = await given.run(connection)
    for number in range(1, 6):
        await given.step(connection, run_id, f"s{number}", position=number, output=b"x" * 400)
    page, more = await inspection.steps(
        connection, "default", run_id, StepFilter(outputs=True), most=5, most_bytes=1_000
    )
    assert ([len(step.output.data) for step in page], more) == ([400, 400], True)
    # A single output that is larger than a page still comes.
    for most_bytes in (1, 1_000, 2_000):
        names = await listed(connection, run_id, StepFilter(outputs=True), most=5, most_bytes=most_bytes)
        assert names == [(f"s{number}", 1) for number in range(1, 6)]
    page, more = await inspection.steps(connection, "default", run_id, StepFilter(), most=5, most_bytes=1_000)
    assert ([step.HasField("output") for step in page], more) == ([False] * 5, False)
    assert {step.status for step in page} == {STEP_COMPLETED}


async def test_the_database_says_which_schema_it_has(connection: Connection) -> None:
    info = await inspection.database(connection)
    assert info.schema == info.known_schema >= 1
    assert info.version[:2].isdigit()


async def test_steps_by_their_ids_come_in_pages_that_hold_all_of_them_once(connection: Connection) -> None:
    run_id = await given.run(connection)
    for position in range(1, 8):
        await given.step(connection, run_id, f"step {9 - position}", position=position, output=b"1")
    wanted = StepFilter(by_id=True, outputs=True)
    assert await listed(connection, run_id, wanted, most=3) == [(f"step {number}", 1) for number in range(2, 9)]
