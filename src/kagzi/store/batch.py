"""One flush: operations of one namespace, applied in one transaction. The runs are locked first; then the operations
apply in waves, kind by kind, so that many of them share a statement while those of one run keep their order. A batch is
not a fate: an operation that cannot be applied is refused alone, with what follows it in its own run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi import faults
from kagzi.protocol.v1.common_pb2 import STEP_ABANDONED, ErrorDetail
from kagzi.protocol.v1.worker_pb2 import WaitAnswer
from kagzi.store import (
    children,
    commits,
    endings,
    errors,
    express,
    facts,
    histories,
    leases,
    mutations,
    namespaces,
    peeks,
    preparations,
    repeats,
    runs,
    signals,
    steps,
    suspensions,
    unary,
    waves,
)
from kagzi.store.database import Database
from kagzi.store.leases import Fence
from kagzi.store.operation import BUSY, HANDLING, NOT_HANDLING, UNFENCED, Kind, Operation, Outcome
from kagzi.store.rules import Rules
from kagzi.store.standings import Ground

log = structlog.get_logger(__name__)

_PROGRESS = frozenset(
    {
        Kind.COMPLETE_STEP,
        Kind.FAIL_STEP,
        Kind.FAIL_STEP_AND_GIVE_BACK,
        Kind.COMMIT_PREPARE,
        Kind.FINISH_MUTATION,
    }
)
# Kinds that change something of an automation, whose row is locked along.
_LOCKING = HANDLING - {Kind.PEEK_EVENTS, Kind.GET_EVENTS}
_RULES = Rules()


async def flush(
    database: Database,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    patience: float,
    rules: Rules = _RULES,
) -> list[Outcome]:
    """Applies the operations and commits. Each has its answer afterwards; one outcome for each transaction it took."""
    outcomes = await _shortly(database, namespace, operations, lease, patience, rules)
    left = [operation for operation in operations if operation.answer is None]
    return outcomes + await _at_length(database, namespace, left, lease, patience, rules) if left else outcomes


async def _shortly(
    database: Database,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    patience: float,
    rules: Rules,
) -> list[Outcome]:
    """What can go the short way has its answer afterwards."""
    for operation in operations:
        operation.answer = None
    outcomes = []
    starts = express.starts(operations)
    if starts:
        outcomes += await _one_way(database, lambda c: express.start(c, namespace, starts, lease), patience)
    advances = express.advances(operations, rules)
    if advances:
        outcomes += await _one_way(database, lambda c: express.advance(c, namespace, advances, rules), patience)
    return outcomes


async def _one_way(
    database: Database, way: Callable[[Connection], Awaitable[Outcome | None]], patience: float
) -> list[Outcome]:
    async def work(connection: Connection) -> Outcome | None:
        if faults.ON:
            faults.reach("transaction.commit")
        try:
            outcome = await way(connection)
        except asyncpg.LockNotAvailableError as error:
            raise _Waits from error
        if faults.ON:
            faults.reach("transaction.committed")
        return outcome

    try:
        outcome = await database.read(work, patience)
        return [] if outcome is None else [outcome]
    except errors.Unreachable:
        raise
    except Exception as error:  # noqa: BLE001 - the longer way finds out whose fault it is
        log.debug("short_way_failed", error=type(error).__name__)
        return []


async def _at_length(
    database: Database,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    patience: float,
    rules: Rules,
) -> list[Outcome]:
    async def work(connection: Connection) -> Outcome:
        try:
            return await apply(connection, namespace, operations, lease, rules)
        except asyncpg.LockNotAvailableError as error:
            raise _Waits from error

    try:
        return [await database.transact(work, patience)]
    except errors.Unreachable:
        raise
    except _Waits:
        left = _set_waiting(operations)
        return await _at_length(database, namespace, left, lease, patience, rules) if left else [Outcome()]
    except Exception as error:  # noqa: BLE001 - whatever one operation runs into is not the fate of the others
        if len(operations) == 1:
            operations[0].answer = _unwritable(operations[0], error)
            return [Outcome()]
        return await _apart(database, namespace, operations, lease, patience, rules)


class _Waits(Exception):
    """Something in the batch waits for a transaction that somebody else has open."""


def _set_waiting(operations: Sequence[Operation]) -> list[Operation]:
    """Answers BUSY what may have to wait for others, with all that follows in its run; leaves what never waits."""
    busy = {operation.run_id for operation in operations if _may_wait(operation)}
    for operation in operations:
        operation.answer = BUSY
    return [operation for operation in operations if busy and operation.run_id not in busy]


def _may_wait(operation: Operation) -> bool:
    """Whether it may meet rows beyond those its fence has locked: a taken id, an external id, children."""
    match operation.kind:
        case Kind.START | Kind.START_CHILD | Kind.AWAIT_CHILD | Kind.SIGNAL | Kind.CONTINUE_AS_NEW:
            return True
        case Kind.FAIL | Kind.FAIL_STEP | Kind.CANCEL | Kind.TERMINATE | Kind.COMMIT_HANDLER:
            return True
        case Kind.SUSPEND:
            return bool(operation.body.parked_json)
    return False


async def _apart(
    database: Database,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    patience: float,
    rules: Rules,
) -> list[Outcome]:
    """Something in the batch cannot be written. Halves it until that operation stands alone and is refused."""
    by_run: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        # Whatever it was answered went back with the transaction.
        operation.answer = None
        by_run[operation.run_id].append(operation)
    halves = list(by_run.values()) if len(by_run) > 1 else [[operation] for operation in operations]
    middle = len(halves) // 2
    outcomes: list[Outcome] = []
    for half in (halves[:middle], halves[middle:]):
        part = [operation for group in half for operation in group]
        left = waves.unfallen(part, operations)
        if left:
            outcomes += await _at_length(database, namespace, left, lease, patience, rules)
    return outcomes


def _unwritable(operation: Operation, error: Exception) -> ErrorDetail:
    if isinstance(error, errors.Refused):
        # Refused after something had been written for it, which is undone now.
        return error.detail
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
    if isinstance(error, asyncpg.UniqueViolationError) and operation.kind is Kind.CONTINUE_AS_NEW:
        new_run_id = operation.body.new_run_id
        message = f"run id {new_run_id} belongs to another run: make a new one"
        return errors.conflict(message, new_run_id, "continue_as_new.new_run_id").detail
    if isinstance(error, asyncpg.DataError | ValueError | OverflowError | asyncpg.CheckViolationError):
        message = f"{operation.kind.name} holds a value that cannot be stored: {type(error).__name__}"
        return errors.invalid("", message, operation.run_id).detail
    message = f"{operation.kind.name} failed inside the database ({type(error).__name__}); see the server's log"
    return ErrorDetail(code=ErrorDetail.INTERNAL, message=message, subject=operation.run_id)


async def apply(
    connection: Connection,
    namespace: str,
    operations: Sequence[Operation],
    lease: timedelta,
    rules: Rules = _RULES,
) -> Outcome:
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
        await commits.give_back(connection, namespace, rest, outcome)
        beyond = await histories.beyond(connection, namespace, rest, fence, rules)
        flush = _Flush(connection, namespace, lease, fence, outcome, rules, _ground(connection, namespace, rest, fence))
        crashed: set[str] = set()
        closed: set[str] = set()
        # What is refused, or waits, and takes along what follows in its run.
        stopped = [operation for operation in rest if operation.refused or operation.answer is BUSY]
        for wave in waves.waves(rest):
            late = [operation for _, group in wave for operation in group if operation.run_id in closed]
            if late:
                await _fence_again(flush, waves.unfallen(late, stopped))
                stopped += [operation for operation in late if operation.refused or operation.answer is BUSY]
            for kind, group in wave:
                left = waves.unfallen([operation for operation in group if operation.answer is None], stopped)
                if beyond:
                    left = waves.stop(left, beyond, stopped)
                if left:
                    await _APPLY[kind](flush, left)
                    await histories.require_room(connection, namespace, left, rules)
                    waves.keep_order(left)
                    stopped += [operation for operation in left if operation.refused or operation.answer is BUSY]
                if kind in waves.CLOSING:
                    closed.update(operation.run_id for operation in left)
                if kind in _PROGRESS:
                    crashed.update(operation.run_id for operation in left if _crashed(operation, fence))
            await flush.ground.write()
        if crashed:
            await leases.progress(connection, namespace, list(crashed))
    return outcome


def _crashed(operation: Operation, fence: Fence) -> bool:
    lock = fence.of(operation)
    return lock is not None and lock.crashed and not operation.refused


async def _stop_at_fence(
    connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence, *, again: bool = False
) -> None:
    """Answers what may not pass: runs that somebody has locked or that do not exist, and tokens that are not current,
    unless the operation repeats one that took effect.
    """
    stale: list[Operation] = []
    unknown: list[Operation] = []
    for operation in operations:
        lock = fence.of(operation)
        if lock is None and operation.run_id in fence.busy:
            operation.answer = BUSY
        elif lock is None:
            unknown.append(operation)
        elif operation.kind not in UNFENCED and not lock.held:
            stale.append(operation)
        elif (operation.kind in HANDLING and lock.automation is None) or (
            operation.kind in NOT_HANDLING and lock.automation is not None
        ):
            operation.answer = _unfit(operation)
    if unknown:
        await _blame(connection, namespace, unknown)
    if stale:
        await repeats.answer(connection, namespace, stale, fence, of_this_batch=again)


async def _blame(connection: Connection, namespace: str, unknown: Sequence[Operation]) -> None:
    """Answers operations on runs that do not exist, be it for want of their namespace."""
    known = await namespaces.exists(connection, namespace)
    for operation in unknown:
        streamed = operation.chained or operation.kind in HANDLING
        field = "run_id" if operation.token is None or streamed else "run.run_id"
        refused = errors.not_found("run", operation.run_id, field) if known else namespaces.unknown(namespace)
        operation.answer = refused.detail


def _unfit(operation: Operation) -> ErrorDetail:
    """A handler run ends with CommitHandler or Fail; no other run knows phases."""
    is_handler = operation.kind in NOT_HANDLING
    message = f"run {operation.run_id} is {'a' if is_handler else 'no'} handler run of an automation"
    return errors.precondition(f"{message}: {operation.kind.name} is not for it", operation.run_id).detail


def _ground(connection: Connection, namespace: str, operations: Sequence[Operation], fence: Fence) -> Ground:
    """What the batch knows of its handler runs; nothing is read before it is needed."""
    ground = Ground(connection, namespace)
    for operation in operations:
        lock = fence.of(operation) if operation.kind in HANDLING and operation.answer is None else None
        if lock is not None and lock.automation is not None:
            if operation.run_id in ground.run_ids:
                ground.several.add(operation.run_id)
            ground.run_ids.add(operation.run_id)
            if operation.kind in _LOCKING:
                ground.automations[operation.run_id] = lock.automation
    return ground


async def _fence_again(flush: _Flush, operations: Sequence[Operation]) -> None:
    """What follows the giving away of its run in the same batch meets the run as that left it: a worker's write is
    refused, a client is told the status the run has now.
    """
    if operations:
        fence = await leases.fence(flush.connection, flush.namespace, operations)
        flush.fence.locks.update(fence.locks)
        await _stop_at_fence(flush.connection, flush.namespace, operations, fence, again=True)


@dataclass(frozen=True, slots=True)
class _Flush:
    """What applying an operation may need besides the operation."""

    connection: Connection
    namespace: str
    lease: timedelta
    fence: Fence
    outcome: Outcome
    rules: Rules
    ground: Ground


_Group = Sequence[Operation]


async def _complete_steps(flush: _Flush, group: _Group) -> None:
    received = [operation for operation in group if operation.body.signal_id]
    if received:
        await signals.receive(flush.connection, flush.namespace, received)
        group = [operation for operation in group if not operation.refused]
    if group:
        await steps.complete(flush.connection, flush.namespace, group)
    for operation in received:
        if isinstance(operation.answer, ErrorDetail):
            # Its signal may be marked as received, by a step that is not on record.
            raise errors.Refused(operation.answer)


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
    Kind.WARN: lambda f, group: suspensions.warn(f.connection, f.namespace, group),
    Kind.WAIT: _wait,
    Kind.SIGNAL: lambda f, group: signals.send(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.CANCEL: lambda f, group: endings.cancel(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.TERMINATE: lambda f, group: endings.terminate(f.connection, f.namespace, group, f.fence, f.outcome),
    Kind.SUSPEND: lambda f, group: suspensions.suspend(f.connection, f.namespace, group, f.outcome),
    Kind.RELEASE: lambda f, group: suspensions.release(f.connection, f.namespace, group, f.outcome),
    Kind.COMPLETE: lambda f, group: endings.complete(f.connection, f.namespace, group, f.outcome),
    Kind.FAIL: lambda f, group: endings.fail(f.connection, f.namespace, group, f.outcome),
    Kind.CONTINUE_AS_NEW: lambda f, group: endings.continue_as_new(f.connection, f.namespace, group, f.outcome),
    Kind.PEEK_EVENTS: lambda f, group: peeks.peek(f.connection, f.namespace, group, f.ground),
    Kind.GET_EVENTS: lambda f, group: peeks.get(f.connection, f.namespace, group, f.ground),
    Kind.COMMIT_PREPARE: lambda f, group: preparations.commit(
        f.connection, f.namespace, group, f.ground, f.rules, f.outcome
    ),
    Kind.BEGIN_MUTATION: lambda f, group: mutations.begin(f.connection, f.namespace, group, f.ground),
    Kind.FINISH_MUTATION: lambda f, group: mutations.finish(f.connection, f.namespace, group, f.ground),
    Kind.COMMIT_HANDLER: lambda f, group: commits.commit(
        f.connection, f.namespace, group, f.ground, f.rules, f.lease, f.outcome
    ),
    Kind.BEGIN_STEP: _each(lambda f, one: unary.begin(f.connection, one)),
    Kind.RECEIVE_SIGNAL: _each(lambda f, one: unary.receive(f.connection, one)),
    Kind.AWAIT_CHILD: _each(lambda f, one: unary.await_child(f.connection, one, f.lease, f.outcome)),
    Kind.SLEEP: _each(lambda f, one: unary.sleep(f.connection, one, f.outcome)),
    Kind.FAIL_STEP_AND_GIVE_BACK: _each(lambda f, one: unary.fail_and_give_back(f.connection, one, f.outcome)),
}
