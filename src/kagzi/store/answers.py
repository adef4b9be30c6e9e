"""What a person says became of a mutation whose outcome nobody else can tell: it happened, it did not, skip it, or
check again. The answer is written down once, unblocks the automation, and wakes the run that waits for it; if that has
ended, the answer settles it. A mutation whose outcome is known stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

import asyncpg
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import ResolveMutationRequest
from kagzi.store import automations, blocks, choice, endings, errors, ledger, settlement, standings
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries
from kagzi.store.standings import Standing

_sql = Queries("answers.sql")
_hold = _sql.bind("hold", columns=("run_id", "status", "task_queue"))
_resolve = _sql.bind("resolve")
_wake = _sql.bind("wake", columns=("task_queue",))
_settle = _sql.bind("settle")

# What the ledger says with each answer.
STATUS = {"HAPPENED": "APPLIED", "DID_NOT": "FAILED", "SKIP": "SKIPPED", "CHECK_AGAIN": "IN_FLIGHT"}


async def resolve(connection: Connection, namespace: str, request: ResolveMutationRequest, outcome: Outcome) -> None:
    """Says what became of a mutation, and lets its automation go on."""
    answer = ResolveMutationRequest.Resolution.Name(request.resolution).removeprefix("RESOLUTION_")
    found = await _mutation(connection, namespace, request)
    holder = str(found["holder_id"])
    run = await _hold.first(connection, namespace=namespace, run_id=holder)
    await standings.lock(connection, namespace, [request.name])
    # Somebody may have answered, or another run may have taken it over, before the locks were had.
    found = await _mutation(connection, namespace, request)
    if str(found["holder_id"]) != holder:
        raise asyncpg.SerializationError("the mutation was taken over while it was looked at")
    if found["resolution"] == answer and found["status"] == STATUS[answer]:
        return
    standing = (await standings.read(connection, namespace, [holder])).get(holder)
    gone = standing is None or standing.removed
    _refuse(found, answer, None if run is None else run["status"], gone=gone)
    result = request.result if request.HasField("result") else None
    await _resolve.execute(
        connection,
        namespace=namespace,
        mutation_id=request.mutation_id,
        status=STATUS[answer],
        result=None if result is None else result.data,
        result_encoding=None if result is None else result.encoding or None,
        resolution=answer,
        reason=request.reason or None,
    )
    if standing is not None and standing.blocked_code == "INDETERMINATE":
        await blocks.unblock(connection, namespace, request.name)
    if run is not None and run["status"] in endings.LIVE:
        await _tell(connection, namespace, run, outcome)
    elif standing is not None:
        await _go_on(connection, namespace, replace(standing, mutation_status=STATUS[answer]), outcome)


async def _mutation(connection: Connection, namespace: str, request: ResolveMutationRequest) -> Record:
    found = (await ledger.by_id(connection, namespace, [request.mutation_id])).get(request.mutation_id)
    if found is None or found["automation"] != request.name:
        await automations.require(connection, namespace, request.name)
        raise errors.not_found("mutation", request.mutation_id, "mutation_id")
    return found


def _refuse(found: Record, answer: str, run_status: str | None, *, gone: bool) -> None:
    """Only a mutation in doubt takes an answer, and never while somebody may be calling its tool."""
    mutation_id = str(found["mutation_id"])
    if found["status"] not in ("INDETERMINATE", "IN_FLIGHT"):
        message = f"mutation {mutation_id} is {found['status']}: only one whose outcome is unknown takes an answer"
        raise errors.precondition(message, mutation_id, "mutation_id")
    if found["status"] == "IN_FLIGHT" and run_status in ("RUNNING", "PENDING"):
        message = f"mutation {mutation_id} is being looked into by a worker: answer when it is indeterminate"
        raise errors.precondition(message, mutation_id, "mutation_id")
    if answer == "CHECK_AGAIN" and (gone or not found["has_reconciler"]):
        message = f"{found['tool']} has no reconciler that could be asked again: say what became of it"
        raise errors.precondition(message, mutation_id, "resolution")


async def _tell(connection: Connection, namespace: str, run: Record, outcome: Outcome) -> None:
    """The run that waits for the answer hears of it; one that a worker still has, before it can wait."""
    run_id = str(run["run_id"])
    if run["status"] == "RUNNING":
        outcome.told.append(run_id)
    elif await _wake.first(connection, namespace=namespace, run_id=run_id) is not None:
        outcome.becomes_due(run["task_queue"], None)


async def _go_on(connection: Connection, namespace: str, standing: Standing, outcome: Outcome) -> None:
    """The run has ended: the answer says what is next."""
    decision = settlement.decide(standing)
    await _settle.execute(
        connection,
        namespace=namespace,
        name=standing.automation,
        run_id=standing.run_id,
        releases=decision.releases,
        continues=decision.continues,
        ending=decision.ending,
    )
    await choice.begin(connection, namespace, [standing.automation], outcome)
