"""The ledger of mutations: what a handler is about to change outside, written down before it is tried, and what became
of it. One a run; decided by its row, never by the phase of a run. A mutation whose outcome nobody knows blocks its
automation until a person says; nothing here repeats one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import (
    BeginMutation,
    FinishMutation,
    Mutation,
    MutationBegun,
    MutationFinished,
)
from kagzi.protocol.v1.common_pb2 import FUNCTION, Failure
from kagzi.protocol.v1.worker_pb2 import StepFailed
from kagzi.store import blocks, errors, ledger, rows, steps
from kagzi.store.operation import Kind, Operation
from kagzi.store.preparations import record
from kagzi.store.queries import Queries
from kagzi.store.rules import TRIES, pause
from kagzi.store.standings import Ground, Standing

_sql = Queries("mutations.sql")
_begin = _sql.bind("begin", columns=("holder_id", "created_at"))
_finish = _sql.bind("finish", columns=("mutation_id", "status", "next_check_at"))
_interrupt = _sql.bind("interrupt")

_One = tuple[Operation, Standing]


async def begin(connection: Connection, namespace: str, group: Sequence[Operation], ground: Ground) -> None:
    """Writes intents down and answers whether the tool may be called: only for the attempt that wrote its row."""
    taken = await ground.take(group)
    standings = await ground.of(taken)
    fresh: list[_One] = []
    for operation in taken:
        standing = standings[operation.run_id]
        if standing.mutation_id is None and _may_begin(operation, standing):
            fresh.append((operation, standing))
    if fresh:
        await _write(connection, namespace, fresh)
        for operation, _ in fresh:
            if not operation.refused:
                _begun(operation, ground)
    asked = [operation for operation in taken if operation.answer is None]
    await _answer_begun(connection, namespace, asked)


def _may_begin(operation: Operation, standing: Standing) -> bool:
    if standing.kind == "CONSUMER" and standing.prepared and standing.reserving:
        return True
    name = f"{standing.automation}.{standing.handler}"
    message = f"{name} may mutate only in `mutate`, after a `prepare` that reserved something"
    operation.answer = errors.precondition(message, operation.run_id).detail
    return False


async def _write(connection: Connection, namespace: str, fresh: Sequence[_One]) -> None:
    """The ledger says that it is under way; its step is put on record when it is over."""
    bodies: list[BeginMutation] = [operation.body for operation, _ in fresh]
    written = await _begin.fetch(
        connection,
        namespace=namespace,
        mutation_ids=[body.mutation_id for body in bodies],
        automations=[standing.automation for _, standing in fresh],
        handlers=[standing.handler for _, standing in fresh],
        run_ids=[operation.run_id for operation, _ in fresh],
        attempt_ids=[body.step.attempt_id for body in bodies],
        claim_tokens=[operation.token for operation, _ in fresh],
        tools=[body.tool for body in bodies],
        idempotency_keys=[body.idempotency_key for body in bodies],
        titles=[standing.title for _, standing in fresh],
        parameters=[body.parameters.data if body.HasField("parameters") else None for body in bodies],
        encodings=[body.parameters.encoding or None for body in bodies],
        has_reconciler=[body.has_reconciler for body in bodies],
    )
    created = {str(row["holder_id"]): row["created_at"] for row in written}
    for operation, standing in fresh:
        mutation_id = operation.body.mutation_id
        if operation.run_id not in created:
            message = f"mutation id {mutation_id} belongs to another mutation: make a new one"
            operation.answer = errors.conflict(message, mutation_id, "mutation_id").detail
            continue
        mutation = _mutation(operation, standing)
        mutation.created_at.FromDatetime(created[operation.run_id])
        operation.answer = MutationBegun(may_call=True, mutation=mutation)


def _begun(operation: Operation, ground: Ground) -> None:
    body: BeginMutation = operation.body
    ground.became(
        operation.run_id,
        mutation_id=body.mutation_id,
        mutation_status="IN_FLIGHT",
        mutation_attempt=body.step.attempt_id,
        mutation_token=operation.token,
        has_reconciler=body.has_reconciler,
        checks=0,
    )


def _mutation(operation: Operation, standing: Standing) -> Mutation:
    """The ledger's row as it was just written."""
    body: BeginMutation = operation.body
    return Mutation(
        mutation_id=body.mutation_id,
        handler=standing.handler,
        run_id=operation.run_id,
        tool=body.tool,
        idempotency_key=body.idempotency_key,
        title=standing.title,
        status=ledger.STATUS["IN_FLIGHT"],
        parameters=body.parameters if body.HasField("parameters") else None,
        has_reconciler=body.has_reconciler,
    )


async def _answer_begun(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Answers those whose run has a mutation already: the same attempt may call its tool, another may only ask."""
    if not operations:
        return
    held = await ledger.of_runs(connection, namespace, [operation.run_id for operation in operations])
    for operation in operations:
        row = held[operation.run_id]
        ours = str(row["attempt_id"]) == operation.body.step.attempt_id
        if not ours and str(row["claim_token"]) == operation.token:
            message = f"run {operation.run_id} has begun mutation {row['mutation_id']}: a consumer performs one a run"
            operation.answer = errors.precondition(message, operation.run_id, "mutation_id").detail
        else:
            may_call = ours and row["status"] == "IN_FLIGHT"
            operation.answer = MutationBegun(may_call=may_call, mutation=ledger.message_of(row))


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the ledger is to say of a mutation."""

    status: str
    checks: int
    pause: timedelta = timedelta(0)


async def finish(connection: Connection, namespace: str, group: Sequence[Operation], ground: Ground) -> None:
    """Writes down what became of mutations. In doubt the reconciler is asked again later, or a person."""
    taken = await ground.take(group)
    standings = await ground.of(taken)
    await answer_again(connection, namespace, [one for one in taken if _may_repeat(one.body, standings[one.run_id])])
    fresh = [(operation, standings[operation.run_id]) for operation in taken if operation.answer is None]
    fresh = [(operation, standing) for operation, standing in fresh if _may_finish(operation, standing)]
    fresh = await _record(connection, namespace, fresh, ground)
    if fresh:
        judged = [(one, standing, _judge(one.body, standing)) for one, standing in fresh]
        await _finish_all(connection, namespace, judged)
        for operation, _, verdict in judged:
            if verdict.status == "INDETERMINATE":
                # Its automation is blocked as well.
                ground.touched([operation])
            else:
                ground.became(operation.run_id, mutation_status=verdict.status, checks=verdict.checks)


def _may_repeat(body: FinishMutation, standing: Standing) -> bool:
    """Whether it could have taken effect before: only doubt leaves a mutation as it was."""
    return standing.mutation_status != "IN_FLIGHT" or body.verdict == FinishMutation.VERDICT_UNCLEAR


def _may_finish(operation: Operation, standing: Standing) -> bool:
    if standing.mutation_id == operation.body.mutation_id and standing.mutation_status == "IN_FLIGHT":
        return True
    known = "is not one of this run"
    if standing.mutation_id == operation.body.mutation_id and standing.mutation_status:
        known = f"is {standing.mutation_status.lower()} already"
    message = f"mutation {operation.body.mutation_id} {known}"
    operation.answer = errors.precondition(message, operation.body.mutation_id, "mutation_id").detail
    return False


def _judge(body: FinishMutation, standing: Standing) -> _Verdict:
    checks = standing.checks + body.from_reconciler
    if body.verdict == FinishMutation.VERDICT_APPLIED:
        return _Verdict("APPLIED", checks)
    if body.verdict == FinishMutation.VERDICT_NOT_APPLIED:
        return _Verdict("FAILED", checks)
    if not standing.has_reconciler or checks >= TRIES:
        return _Verdict("INDETERMINATE", checks)
    return _Verdict("IN_FLIGHT", checks, pause(checks) if checks else timedelta(0))


async def _record(connection: Connection, namespace: str, given: Sequence[_One], ground: Ground) -> list[_One]:
    """Puts the steps on record that called a tool or asked a reconciler."""
    failed = {one: _failed(one) for one, _ in given if one.body.HasField("failure")}
    done = [one for one, _ in given if one not in failed]
    ground.record(record(one, one.body.result if one.body.HasField("result") else None) for one in done)
    if failed:
        await steps.fail(connection, namespace, list(failed.values()))
    for operation, written in failed.items():
        if written.refused:
            operation.answer = written.answer
    return [(operation, standing) for operation, standing in given if operation.answer is None]


def _failed(operation: Operation) -> Operation:
    step = operation.body.step
    failure = Failure()
    failure.CopyFrom(operation.body.failure)
    failure.non_retryable = True
    body = StepFailed(
        step_id=step.step_id,
        attempt_id=step.attempt_id,
        kind=FUNCTION,
        attempt_number=step.attempt_number,
        position=step.position,
        completed_seq=step.completed_seq,
        elapsed_us=step.elapsed_us,
        failure=failure,
    )
    return Operation(Kind.FAIL_STEP, operation.namespace, operation.run_id, body, token=operation.token)


async def _finish_all(
    connection: Connection, namespace: str, judged: Sequence[tuple[Operation, Standing, _Verdict]]
) -> None:
    bodies: list[FinishMutation] = [operation.body for operation, _, _ in judged]
    found = await _finish.fetch(
        connection,
        namespace=namespace,
        mutation_ids=[body.mutation_id for body in bodies],
        statuses=[verdict.status for _, _, verdict in judged],
        results=[body.result.data if body.HasField("result") else None for body in bodies],
        encodings=[body.result.encoding or None for body in bodies],
        failures=[rows.failure_text(body.failure) if body.HasField("failure") else None for body in bodies],
        checks=[verdict.checks for _, _, verdict in judged],
        pauses=[verdict.pause for _, _, verdict in judged],
    )
    asked = [body.mutation_id for body in bodies if body.from_reconciler]
    if asked:
        await _interrupt.execute(connection, namespace=namespace, mutation_ids=asked)
    written = {str(row["mutation_id"]): row for row in found}
    for operation, _, _ in judged:
        operation.answer = _finished(written[operation.body.mutation_id])
    doubtful = [standing for _, standing, verdict in judged if verdict.status == "INDETERMINATE"]
    await blocks.block(connection, namespace, [blocks.indeterminate(standing) for standing in doubtful])


async def answer_again(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Answers repeats of what is on record as the first time, whoever has the run now."""
    if not operations:
        return
    attempts = [(one.run_id, one.body.step.step_id, one.body.step.attempt_id) for one in operations]
    known = await steps.ended(connection, namespace, attempts)
    repeats = [operation for operation in operations if operation.body.step.attempt_id in known]
    if repeats:
        found = await ledger.by_id(connection, namespace, [operation.body.mutation_id for operation in repeats])
        for operation in repeats:
            row = found.get(operation.body.mutation_id)
            operation.answer = None if row is None else _finished(row)


def _finished(row: Record) -> MutationFinished:
    return MutationFinished(status=ledger.STATUS[row["status"]], check_at=rows.timestamp(row["next_check_at"]))
