"""The order of operations inside one batch. Operations of many runs share a statement where they are of one kind; those
of one run apply in the order they came, and what follows a refused one of the same run and token falls with it. Pure:
nothing here touches a database.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.store import errors
from kagzi.store.operation import BUSY, GIVING_AWAY, Kind, Operation

# Kinds after which the run is not what its fence saw: what follows them in one batch is fenced anew.
CLOSING = GIVING_AWAY | {Kind.CANCEL, Kind.TERMINATE}
# Kinds that look before they write and therefore apply one at a time.
_ONE_BY_ONE = frozenset(
    {Kind.BEGIN_STEP, Kind.RECEIVE_SIGNAL, Kind.AWAIT_CHILD, Kind.SLEEP, Kind.FAIL_STEP_AND_GIVE_BACK}
)


def waves(operations: Sequence[Operation]) -> Iterator[list[tuple[Kind, list[Operation]]]]:
    """Groups operations by kind so that those of one run still apply in their order: one that would have to go back in
    the order of kinds, or follows the giving away of its run, waits for the next wave, and so does everything after it.
    """
    reached: dict[str, tuple[int, Kind | None]] = {}
    waves: list[dict[Kind, list[Operation]]] = []
    for operation in operations:
        if operation.answer is not None:
            continue
        wave, last = reached.get(operation.run_id, (0, None))
        if last is not None and (operation.kind < last or last in CLOSING or _alone_after(operation, last)):
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


def unfallen(group: Sequence[Operation], operations: Sequence[Operation]) -> list[Operation]:
    """Leaves out what follows a refused operation of the same run and token, or one that waits for its run."""
    fallen = {
        (operation.run_id, operation.token) for operation in operations if operation.chained and operation.refused
    }
    busy = {operation.run_id for operation in operations if operation.answer is BUSY}
    if not fallen and not busy:
        return list(group)
    left = []
    for operation in group:
        if operation.chained and (operation.run_id, operation.token) in fallen:
            operation.answer = errors.predecessor_refused(operation.run_id)
        elif operation.run_id in busy:
            operation.answer = BUSY
        else:
            left.append(operation)
    return left


def stop(group: Sequence[Operation], refusals: Mapping[int, ErrorDetail], stopped: list[Operation]) -> list[Operation]:
    """Refuses the operations that `refusals` holds by identity, at their place in the order: what stands before them in
    their run applies, what follows falls.
    """
    left = []
    fallen: set[tuple[str, str | None]] = set()
    for operation in group:
        pair = (operation.run_id, operation.token)
        if operation.chained and pair in fallen:
            operation.answer = errors.predecessor_refused(operation.run_id)
        elif id(operation) in refusals:
            operation.answer = refusals[id(operation)]
            stopped.append(operation)
            fallen.add(pair)
        else:
            left.append(operation)
    return left


def keep_order(group: Sequence[Operation]) -> None:
    """A refused operation takes along what followed it and shared its statement. When that took effect the transaction
    has to be undone, which whoever catches Refused does.
    """
    fallen: set[tuple[str, str | None]] = set()
    for operation in group:
        if not operation.chained:
            continue
        pair = (operation.run_id, operation.token)
        if pair in fallen:
            if not operation.refused:
                raise errors.Refused(errors.predecessor_refused(operation.run_id))
            operation.answer = errors.predecessor_refused(operation.run_id)
        elif operation.refused:
            fallen.add(pair)
