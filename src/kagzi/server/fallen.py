"""What was refused, as far as it matters to what comes after: every later operation of the same run and token falls
with it, so that no run ends over a result that is not on record. A memory of this process; it decides nothing else.
"""

from __future__ import annotations

from collections import OrderedDict

from kagzi.store import errors
from kagzi.store.operation import Operation

# Pairs of run and token; a worker that goes on sending for older ones has long heard of it.
_MOST = 10_000
_ID = 36


class Fallen:
    """Remembers the runs and tokens of refused operations."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[tuple[str, str | None], None] = OrderedDict()

    def takes(self, operation: Operation) -> bool:
        """Whether the operation was refused already, or falls now because it follows one that was."""
        if operation.refused:
            self.note(operation)
            return True
        if operation.chained and (operation.run_id, operation.token) in self._pairs:
            operation.answer = errors.predecessor_refused(operation.run_id)
            return True
        return False

    def note(self, operation: Operation) -> None:
        """The operation has its answer."""
        # What is no id was never anybody's run, and must not be remembered at its length.
        if (
            operation.chained
            and operation.refused
            and len(operation.run_id) <= _ID
            and len(operation.token or "") <= _ID
        ):
            self._pairs[operation.run_id, operation.token] = None
            if len(self._pairs) > _MOST:
                self._pairs.popitem(last=False)
