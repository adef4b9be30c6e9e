"""Repeats: operations whose token is no longer the current one although they took effect, because their answer was lost
on the way. They are recognised by the ids their sender made, attempt and operation, and answered as the first time.
Everything else with such a token is refused. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpg.connection import Connection

from kagzi.protocol.v1.worker_pb2 import EndAnswer, SetStateResponse, StartChildAnswer, WaitAnswer
from kagzi.store import commits, endings, errors, mutations, preparations, rows, steps, unary
from kagzi.store.leases import Fence
from kagzi.store.operation import Kind, Operation

_STEPS = frozenset({Kind.COMPLETE_STEP, Kind.FAIL_STEP, Kind.START_STEP, Kind.FAIL_STEP_AND_GIVE_BACK})


async def answer(
    connection: Connection, namespace: str, stale: Sequence[Operation], fence: Fence, *, of_this_batch: bool
) -> None:
    """Answers each of these operations: as the first time, or LEASE_LOST. With `of_this_batch` their runs were given
    away by this very batch, and what follows that was never part of it.
    """
    attempts = [operation for operation in stale if operation.kind in _STEPS]
    if attempts:
        # Known by their attempts, whoever has the run now.
        await steps.recognise(connection, namespace, attempts)
    await _recognise_phases(connection, namespace, stale)
    gave_away = {operation for operation in stale if operation.kind not in _STEPS and _gave_away(operation, fence)}
    if gave_away:
        committed = [operation for operation in gave_away if operation.kind is Kind.COMMIT_HANDLER]
        await commits.answer_again(connection, namespace, committed)
        await endings.answer_again(connection, namespace, gave_away.difference(committed))
    committed_with = {} if of_this_batch else _last_of_each(stale, gave_away)
    lost: set[tuple[str, str | None]] = set()
    for number, operation in enumerate(stale):
        if operation.kind is Kind.SLEEP and operation in gave_away:
            await unary.sleep_again(connection, operation)
        elif operation.kind is Kind.START_CHILD:
            await _recognise_child(connection, operation)
        elif number < committed_with.get((operation.run_id, operation.token), 0):
            _accept(operation)
        if operation.answer is None or operation.refused or (operation.run_id, operation.token) in lost:
            operation.answer = errors.lease_lost(operation.run_id)
            if operation.chained:
                lost.add((operation.run_id, operation.token))


async def _recognise_phases(connection: Connection, namespace: str, stale: Sequence[Operation]) -> None:
    """Ends of phases, known by their attempts. The intent of a mutation is not among them: whoever has lost the run
    must not call its tool, whether the intent was written or not.
    """
    prepared = [operation for operation in stale if operation.kind is Kind.COMMIT_PREPARE]
    if prepared:
        await preparations.answer_again(connection, namespace, prepared)
    finished = [operation for operation in stale if operation.kind is Kind.FINISH_MUTATION]
    if finished:
        await mutations.answer_again(connection, namespace, finished)


def _gave_away(operation: Operation, fence: Fence) -> bool:
    lock = fence.of(operation)
    return lock is not None and operation.operation_id is not None and operation.operation_id == lock.done


def _last_of_each(stale: Sequence[Operation], gave_away: set[Operation]) -> dict[tuple[str, str | None], int]:
    """Where each run was given away. What stands before that in the same batch was committed together with it."""
    return {
        (operation.run_id, operation.token): number for number, operation in enumerate(stale) if operation in gave_away
    }


def _accept(operation: Operation) -> None:
    match operation.kind:
        case Kind.SET_STATE:
            operation.answer = SetStateResponse(number=operation.body.number)
        case Kind.WAIT:
            operation.answer = WaitAnswer()
        case Kind.WARN:
            operation.answer = EndAnswer()


async def _recognise_child(connection: Connection, operation: Operation) -> None:
    record = await steps.latest(connection, operation.namespace, operation.run_id, operation.body.step_id)
    if record is not None and str(record["attempt_id"]) == operation.body.attempt_id:
        child_run_id = rows.identity(record["child_run_id"])
        operation.answer = StartChildAnswer(
            child_run_id=child_run_id, already_exists=child_run_id != operation.body.child.run_id
        )
