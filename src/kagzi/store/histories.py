"""How large the history of a run may become. The limits hold at the exact boundary and cost nothing far from it: a run
keeps an upper bound of what its history holds beyond an even share of the bytes for each step, which only results
larger than that share move. While bound and shares together stay below the limit nothing is counted; otherwise the
history is, once, and the bound is set anew. What goes beyond a limit is refused, and a run whose worker cannot go on
after that is to be failed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure
from kagzi.protocol.v1.worker_pb2 import BeginStepResponse, Fail
from kagzi.store import errors
from kagzi.store.leases import Fence
from kagzi.store.operation import Kind, Operation
from kagzi.store.queries import Queries
from kagzi.store.rules import Rules

_sql = Queries("histories.sql")
_measure = _sql.bind("measure", columns=("run_id", "top", "bytes"))
_known = _sql.bind("known", columns=("attempt_id",))
_bound = _sql.bind("bound")

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Kinds that put something on record.
_RECORDING = frozenset(
    {
        Kind.COMPLETE_STEP,
        Kind.FAIL_STEP,
        Kind.START_STEP,
        Kind.START_CHILD,
        Kind.BEGIN_STEP,
        Kind.RECEIVE_SIGNAL,
        Kind.AWAIT_CHILD,
        Kind.SLEEP,
        Kind.FAIL_STEP_AND_GIVE_BACK,
    }
)


# Refusals by the identity of the operations they are for.
Beyond = dict[int, ErrorDetail]


def size(operation: Operation) -> int:
    """The bytes that an operation adds: a result, or the texts of an error."""
    body = operation.body
    if operation.kind is Kind.COMPLETE_STEP:
        return len(body.output.data)
    if operation.kind in (Kind.FAIL_STEP, Kind.FAIL_STEP_AND_GIVE_BACK):
        return sum(len(text.encode()) for text in (body.failure.type, body.failure.message, body.failure.traceback))
    return 0


async def beyond(
    connection: Connection, namespace: str, operations: Iterable[Operation], fence: Fence, rules: Rules
) -> Beyond:
    """Of the operations that workers have numbered, the first one of each run that goes beyond a limit, and why."""
    bounds: dict[str, int] = {}
    grown: set[str] = set()
    doubtful: dict[str, list[Operation]] = defaultdict(list)
    numbered = [operation for operation in operations if operation.answer is None and _position(operation)]
    for operation in numbered:
        lock = fence.of(operation)
        if lock is None:
            continue
        more = size(operation) - rules.history_share
        bound = bounds.setdefault(operation.run_id, lock.history_excess) + max(0, more)
        bounds[operation.run_id] = bound
        if more > 0:
            grown.add(operation.run_id)
        if bound > rules.history_slack(_position(operation)):
            doubtful[operation.run_id] = []
    for operation in numbered:
        if operation.run_id in doubtful:
            doubtful[operation.run_id].append(operation)
    found: Beyond = {}
    if doubtful:
        bounds |= await _judge(connection, namespace, doubtful, rules, found)
    moved = [run_id for run_id in bounds if run_id in grown or run_id in doubtful]
    if moved:
        await _bound.execute(
            connection, namespace=namespace, run_ids=moved, bounds=[bounds[run_id] for run_id in moved]
        )
    return found


def _position(operation: Operation) -> int:
    return operation.body.position if operation.kind in _RECORDING and hasattr(operation.body, "position") else 0


async def _judge(
    connection: Connection, namespace: str, doubtful: dict[str, list[Operation]], rules: Rules, found: Beyond
) -> dict[str, int]:
    """Counts what is on record and adds the operations in their order; answers the new bounds, and adds to `found`."""
    known = await _known_attempts(connection, namespace, doubtful)
    measured = await measure(connection, namespace, list(doubtful))
    bounds = {}
    for run_id, operations in doubtful.items():
        top, total = measured.get(run_id, (0, 0))
        for operation in operations:
            if operation.body.attempt_id in known:
                # A repeat: it is counted already.
                continue
            top, total = max(top, _position(operation)), total + size(operation)
            refusal = _refusal(operation, top, total, rules)
            if refusal is not None:
                found[id(operation)] = refusal
                break
        bounds[run_id] = total - rules.history_share * top
    return bounds


async def _known_attempts(connection: Connection, namespace: str, doubtful: dict[str, list[Operation]]) -> set[str]:
    given = [operation for operations in doubtful.values() for operation in operations]
    found = await _known.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation in given],
        step_ids=[operation.body.step_id for operation in given],
        attempt_ids=[operation.body.attempt_id for operation in given],
    )
    return {str(row["attempt_id"]) for row in found}


async def measure(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The last position and the bytes of what these runs have on record."""
    found = await _measure.fetch(connection, namespace=namespace, run_ids=run_ids)
    return {str(row["run_id"]): (row["top"], row["bytes"]) for row in found}


async def require_room(connection: Connection, namespace: str, operations: Iterable[Operation], rules: Rules) -> None:
    """Undoes, of the operations that the server has numbered, what went beyond a limit."""
    given = [
        operation
        for operation in operations
        if operation.kind in _RECORDING and not _position(operation) and _recorded(operation)
    ]
    if not given:
        return
    measured = await measure(connection, namespace, list({operation.run_id for operation in given}))
    for operation in given:
        refusal = _refusal(operation, *measured.get(operation.run_id, (0, 0)), rules)
        if refusal is not None:
            raise errors.Refused(refusal)


def _recorded(operation: Operation) -> bool:
    answer = operation.answer
    return not operation.refused and not (isinstance(answer, BeginStepResponse) and not answer.should_execute)


def _refusal(operation: Operation, top: int, total: int, rules: Rules) -> ErrorDetail | None:
    if top > rules.history_steps:
        message = f"a run has at most {rules.history_steps} steps: continue as new before that"
        field = "position"
    elif total > rules.history_bytes:
        message = (
            f"the history of a run holds at most {rules.history_bytes} bytes of results and errors, and would hold "
            f"{total}: store them elsewhere, or continue as new before that"
        )
        field = "output"
    else:
        return None
    step: Any = getattr(operation.body, "step_id", "")
    return ErrorDetail(code=ErrorDetail.LIMIT_EXCEEDED, message=message, subject=step, field=f"step.{field}")


def failing(operation: Operation) -> Operation | None:
    """The operation that ends a run whose worker was refused something for its size: what follows in the run is refused
    too, and the next worker would come no further. None when the worker can go on.
    """
    refusal = operation.answer
    over = isinstance(refusal, ErrorDetail) and refusal.code == ErrorDetail.LIMIT_EXCEEDED
    if not (over and operation.chained and _ID.fullmatch(operation.run_id) and _ID.fullmatch(operation.token or "")):
        return None
    assert isinstance(refusal, ErrorDetail)
    fail = Fail(failure=Failure(type="LimitExceeded", message=refusal.message, non_retryable=True))
    operation_id = str(uuid_utils.uuid4())
    return Operation(
        Kind.FAIL, operation.namespace, operation.run_id, fail, token=operation.token, operation_id=operation_id
    )
