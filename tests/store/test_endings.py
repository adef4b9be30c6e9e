"""What the end of a run leaves of its steps."""

from __future__ import annotations

from datetime import timedelta

from asyncpg.connection import Connection

from kagzi.protocol.v1.workflow_pb2 import TerminateWorkflowRequest
from kagzi.store import batch
from kagzi.store.operation import Kind, Operation
from tests.store import given


async def test_bodies_of_a_run_that_was_ended_from_outside_run_no_more(connection: Connection) -> None:
    run_id = await given.run(connection, "RUNNING", "30 s")
    await given.step(connection, run_id, "done", position=1)
    await given.step(connection, run_id, "body", position=2, status="RUNNING")
    await given.step(connection, run_id, "effect", position=3, status="RUNNING", effect=True)
    await given.step(connection, run_id, "timer", position=4, status="RUNNING", kind="SLEEP")
    terminate = Operation(Kind.TERMINATE, "default", run_id, TerminateWorkflowRequest(reason="enough"))
    async with connection.transaction():
        await batch.apply(connection, "default", [terminate], timedelta(seconds=30))
    found = await connection.fetch("select status from kagzi.step_runs where run_id = $1 order by position", run_id)
    assert [row["status"] for row in found] == ["COMPLETED", "INTERRUPTED", "UNKNOWN", "RUNNING"]
