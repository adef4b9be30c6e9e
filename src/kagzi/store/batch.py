"""One flush: operations of one namespace, applied in one transaction. The runs are locked first; then the operations
apply in waves, kind by kind, so that many of them share a statement while those of one run keep their order. A batch is
not a fate: an operation that cannot be applied is refused alone, with what follows it in its own run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import STEP_ABANDONED, ErrorDetail
from kagzi.protocol.v1.worker_pb2 import WaitAnswer
from kagzi.store import children, endings, errors, facts, leases, runs, signals, steps, suspensions, unary
from kagzi.store.database import Database
from kagzi.store.leases import Fence
from kagzi.store.operation import BUSY, GIVING_AWAY, UNFENCED, Kind, Operation, Outcome

log = structlog.get_logger(__name__)

_STEPS = frozenset({Kind.COMPLETE_STEP, Kind.FAIL_STEP, Kind.START_STEP, Kind.FAIL_STEP_AND_GIVE_BACK})
_PROGRESS = frozenset({Kind.COMPLETE_STEP, Kind.FAIL_STEP})
# Kinds after which the run is not what its fence saw: what follows them in one batch is fenced anew.
_CLOSING = GIVING_AWAY | {Kind.CANCEL, Kind.TERMINATE}
# Kinds that look before they write and therefore apply one at a time.
_ONE_BY_ONE = frozenset(
    {Kind.BEGIN_STEP, Kind.RECEIVE_SIGNAL, Kind.AWAIT_CHILD, Kind.SLEEP, Kind.FAIL_STEP_AND_GIVE_BACK}
)


async def flush(
    database: Database, namespace: str, operations: Sequence[Operation], lease: timedelta, patience: float
) -> list[Outcome]:
    """Applies the operations and commits. Each has its answer afterwards; one outcome for each transaction it took."""
    try:
        return [await database.transact(lambda connection: apply(connection, namespace, operations, lease), patience)]
    except (asyncpg.PostgresError, asyncpg.DataError, ValueError, OverflowError) as error:
        if len(operations) == 1:
            operations[0].answer = _unwritable(operations[0], error)
            return [Outcome()]
        return await _apart(database, namespace, operations, lease, patience)


async def _apart(
    database: Database, namespace: str, operations: Sequence[Operation], lease: timedelta, patience: float
) -> list[Outcome]:
    """Something in the batch cannot be written. Halves it until that operation stands alone and is refused."""
    by_run: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_run[operation.run_id].append(operation)
    halves = list(by_run.values()) if len(by_run) > 1 else [[operation] for operation in operations]
    middle = len(halves) // 2
    outcomes: list[Outcome] = []
    for half in (halves[:middle], halves[middle:]):
        part = [operation for group in half for operation in group]
        _fall_with_predecessors(operations, part)
        left = [operation for operation in part if operation.answer is None]
        if left:
            outcomes += await flush(database, namespace, left, lease, patience)
    return outcomes


def _fall_with_predecessors(applied: Sequence[Operation], part: Sequence[Operation]) -> None:
    fallen = {(operation.run_id, operation.token) for operation in applied if operation.chained and operation.refused}
    for operation in part:
        if operation.answer is not None and not operation.refused:
            operation.answer = None
        if operation.chained and not operation.refused and (operation.run_id, operation.token) in fallen:
            operation.answer = errors.predecessor_refused(operation.run_id)


def _unwritable(operation: Operation, error: Exception) -> ErrorDetail:
    log.error(
        "operation_refused",
        kind=operation.kind.name,
        namespace=operation.namespace,
        run=operation.run_id,
        error=type(error).__name__,
        constraint=getattr(error, "constraint_name", None),
    )
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == "step_latest":
        step = getattr(operation.body, "step_id", "")
        message = f"step {step!r} of run {operation.run_id} has its outcome on record and gets no further attempt"
        return errors.precondition(message, step).detail
    if isinstance(error, asyncpg.DataError | ValueError | OverflowError | asyncpg.CheckViolationError):
        message = f"{operation.kind.name} holds a value that cannot be stored: {type(error).__name__}"
        return errors.invalid("", message, operation.run_id).detail
    message = f"{operation.kind.name} failed inside the database ({type(error).__name__}); see the server's log"
    return ErrorDetail(code=ErrorDetail.INTERNAL, message=message, subject=operation.run_id)


async def apply(connection: Connection, namespace: str, operations: Sequence[Operation], lease: timedelta) -> Outcome:
    """Applies the operations inside the caller's transaction."""
    outcome = Outcome()
    for operation in operations:
        operation.answer = None
    starts = [operation for operation in operations if operation.kind is Kind.START]
    if starts:
        await runs.start(connection, namespace, starts, lease, outcome)
    rest = [operation for operation in operations if operation.kind is not Kind.START]
    if rest:
        fence = await leases.fence(connection, namespace, rest)
        await _stop_at_fence(connection, namespace, rest, fence)
        flush = _Flush(connection, namespace, lease, fence, outcome)
        crashed: set[str] = set()
        closed: set[str] = set()
        for wave in _waves(rest):
            await _fence_again(flush, [one for _, group in wave for one in group if one.run_id in closed])
            for kind, group in wave:
                left = _unfallen([operation for operation in group if operation.answer is None], rest)
                if left:
                    await _APPLY[kind](flush, left)
                if kind in _CLOSING:
                    closed.update(operation.run_id for operation in left)
                if kind in _PROGRESS:
                    crashed.update(operation.run_id for operation in left if _crashed(operation, fence))
        if crashed:
            await leases.progress(connection, namespace, list(crashed))
    return outcome


def _crashed(operation: Operation, fence: Fence) -> bool:
    lock = fence.of(operation)
    return lock is not None and lock.crashed and not operation.refused


async def _stop_at_fence(connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence) -> None:
    """Answers what may not pass: runs that somebody has locked or that do not exist, and tokens that are not current,
    unless the operation repeats one that took effect.
    """
    stale_steps: list[Operation] = []
    repeats: list[Operation] = []
    for operation in operations:
        lock = fence.of(operation)
        if lock is None:
            if operation.run_id in fence.busy:
                operation.answer = BUSY
            else:
                field = "run_id" if operation.token is None or operation.chained else "run.run_id"
                operation.answer = errors.not_found("run", operation.run_id, field).detail
        elif operation.kind in UNFENCED or lock.held:
            continue
        elif operation.kind in _STEPS:
            # Known by its attempt, whoever has the run now.
            stale_steps.append(operation)
        elif operation.operation_id and operation.operation_id == lock.done:
            repeats.append(operation)
        else:
            operation.answer = errors.lease_lost(operation.run_id)
    if stale_steps:
        await steps.recognise(connection, namespace, stale_steps)
        for operation in stale_steps:
            if operation.refused:
                operation.answer = errors.lease_lost(operation.run_id)
    if repeats:
        await endings.status_answers(connection, namespace, repeats)
    for operation in repeats:
        if operation.kind is Kind.SLEEP:
            await unary.sleep_again(connection, operation)


async def _fence_again(flush: _Flush, operations: Sequence[Operation]) -> None:
    """What follows the giving away of its run in the same batch meets the run as that left it: a worker's write is
    refused, a client is told the status the run has now.
    """
    if operations:
        fence = await leases.fence(flush.connection, flush.namespace, operations)
        flush.fence.locks.update(fence.locks)
        await _stop_at_fence(flush.connection, flush.namespace, operations, fence)


def _waves(operations: Sequence[Operation]) -> Iterator[list[tuple[Kind, list[Operation]]]]:
    """Groups operations by kind so that those of one run still apply in their order: one that would have to go back in
    the order of kinds, or follows the giving away of its run, waits for the next wave, and so does everything after it.
    """
    reached: dict[str, tuple[int, Kind | None]] = {}
    waves: list[dict[Kind, list[Operation]]] = []
    for operation in operations:
        if operation.answer is not None:
            continue
        wave, last = reached.get(operation.run_id, (0, None))
        if last is not None and (operation.kind < last or last in _CLOSING or _alone_after(operation, last)):
            wave += 1
        reached[operation.run_id] = (wave, operation.kind)
        while len(waves) <= wave:
            waves.append(defaultdict(list))
        waves[wave][operation.kind].append(operation)
    for groups in waves:
        yield sorted(groups.items())


def _alone_after(operation: Operation, last: Kind) -> bool:
    """Whether two of one kind for one run cannot share a statement: the server numbers them, one after the other."""
    return operation.kind == last and (operation.kind in _ONE_BY_ONE or getattr(operation.body, "position", 1) == 0)


def _unfallen(group: Sequence[Operation], operations: Sequence[Operation]) -> list[Operation]:
    """Leaves out what follows a refused operation of the same run and token."""
    if not any(operation.refused for operation in operations):
        return list(group)
    fallen = {
        (operation.run_id, operation.token) for operation in operations if operation.chained and operation.refused
    }
    left = []
    for operation in group:
        if operation.chained and (operation.run_id, operation.token) in fallen:
            operation.answer = errors.predecessor_refused(operation.run_id)
        else:
            left.append(operation)
    return left


@dataclass(frozen=True, slots=True)
class _Flush:
    """What applying an operation may need besides the operation."""

    connection: Connection
    namespace: str
    lease: timedelta
    fence: Fence
    outcome: Outcome


_Group = Sequence[Operation]


async def _complete_steps(flush: _Flush, group: _Group) -> None:
    received = [operation for operation in group if operation.body.signal_id]
    if received:
        await signals.receive(flush.connection, flush.namespace, received)
        group = [operation for operation in group if not operation.refused]
    if group:
        await steps.complete(flush.connection, flush.namespace, group)


async def _fail_steps(flush: _Flush, group: _Group) -> None:
    await steps.fail(flush.connection, flush.namespace, group)
    given_up = [
        operation.body.child_run_id
        for operation in group
        if operation.body.outcome == STEP_ABANDONED and operation.body.child_run_id and not operation.refused
    ]
    reason = "its parent waits for it no longer"
    await endings.abandon_children(flush.connection, flush.namespace, given_up, reason, flush.outcome)


async def _wait(flush: _Flush, group: _Group) -> None:
    there = await facts.of(flush.connection, flush.namespace, [operation.run_id for operation in group])
    for operation in group:
        operation.answer = WaitAnswer(facts=there.get(operation.run_id))


def _each(
    apply_one: Callable[[_Flush, Operation], Awaitable[None]],
) -> Callable[[_Flush, _Group], Awaitable[None]]:
    async def apply_all(flush: _Flush, group: _Group) -> None:
        for operation in group:
            await apply_one(flush, operation)

    return apply_all


_APPLY: dict[Kind, Callable[[_Flush, _Group], Awaitable[None]]] = {
    Kind.COMPLETE_STEP: _complete_steps,
    Kind.FAIL_STEP: _fail_steps,
    Kind.START_STEP: lambda f, group: steps.start(f.connection, f.namespace, group),
    Kind.START_CHILD: lambda f, group: children.start(f.connection, f.namespace, group, f.lease, f.outcome),
    Kind.SET_STATE: lambda f, group: suspensions.set_state(f.connection, f.namespace, group),
    Kind.WAIT: _wait,
    Kind.SIGNAL: lambda f, group: signals.send(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.CANCEL: lambda f, group: endings.cancel(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.TERMINATE: lambda f, group: endings.terminate(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.SUSPEND: lambda f, group: suspensions.suspend(f.connection, f.namespace, group, f.outcome),
    Kind.RELEASE: lambda f, group: suspensions.release(f.connection, f.namespace, group, f.outcome),
    Kind.COMPLETE: lambda f, group: endings.complete(f.connection, f.namespace, group, f.outcome),
    Kind.FAIL: lambda f, group: endings.fail(f.connection, f.namespace, group, f.outcome),
    Kind.CONTINUE_AS_NEW: lambda f, group: endings.continue_as_new(f.connection, f.namespace, group, f.outcome),
    Kind.BEGIN_STEP: _each(lambda f, one: unary.begin(f.connection, one)),
    Kind.RECEIVE_SIGNAL: _each(lambda f, one: unary.receive(f.connection, one)),
    Kind.AWAIT_CHILD: _each(lambda f, one: unary.await_child(f.connection, one, f.lease, f.outcome)),
    Kind.SLEEP: _each(lambda f, one: unary.sleep(f.connection, one, f.outcome)),
    Kind.FAIL_STEP_AND_GIVE_BACK: _each(lambda f, one: unary.fail_and_give_back(f.connection, one, f.outcome)),
}
