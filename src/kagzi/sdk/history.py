"""The ledger of one run: what is on record, what the code has asked for so far, and whether the two agree. Pure: it
sends nothing, waits for nothing and knows no clock. Steps are known by name and occurrence; the order of requests is
their position, the order in which results were handed to the code is their sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import NamedTuple

from kagzi.protocol.v1.common_pb2 import CANCEL, Step, StepKind
from kagzi.sdk.errors import LimitExceeded

# Steps that Kagzi asks for by itself; users' names cannot begin with it.
OWN = "$"
# How many steps a run may have, unless its server says otherwise.
MOST_STEPS = 20_000


class Request(NamedTuple):
    """One step the code asked for, and what is on record of it."""

    step_id: str
    kind: StepKind.ValueType
    position: int
    record: Step | None
    # Where in the code it was asked for; shown only when it differs from the record.
    code: CodeType | None = None
    line: int = 0

    @property
    def where(self) -> str:
        """The place in the source, as "file.py:12"; "asyncio" when it was asked for underneath the code."""
        return "asyncio" if self.code is None else f"{self.code.co_filename.rpartition('/')[2]}:{self.line}"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The code and the record do not agree: both lists, side by side, from the first difference on."""

    message: str
    recorded: tuple[str, ...]
    requested: tuple[str, ...]


class Ledger:
    """What a run has on record, against what its code asks for."""

    __slots__ = (
        "_by_id",
        "_by_position",
        "_counts",
        "_last",
        "_most",
        "_next",
        "_order",
        "mismatch",
        "position",
        "requests",
        "seq",
    )

    def __init__(self, records: Iterable[Step], most: int = MOST_STEPS) -> None:
        self._most = most
        self._by_id: dict[str, Step] = {}
        self._by_position: dict[int, Step] = {}
        for record in records:
            self._by_id[record.step_id] = record
            self._by_position[record.position] = record
        # Results in the order the code got them.
        self._order = sorted(
            (record for record in self._by_id.values() if record.completed_seq), key=lambda record: record.completed_seq
        )
        self._next = 0
        self._last = max(self._by_position, default=0)
        self._counts: dict[str, int] = {}
        self.requests: list[Request] = []
        # The last position that was given out, and the last sequence number.
        self.position = 0
        self.seq = self._order[-1].completed_seq if self._order else 0
        self.mismatch: Mismatch | None = None

    @property
    def replaying(self) -> bool:
        """Whether results on record remain that the code has not got yet."""
        return self._next < len(self._order)

    @property
    def behind(self) -> bool:
        """Whether steps are on record that the code has not asked for yet."""
        return self.position < self._last

    def request(self, name: str, kind: StepKind.ValueType, code: CodeType | None = None, line: int = 0) -> Request:
        """The code asks for a step, at a line of `code`. A difference is kept in `mismatch`, the first one only."""
        # The last place is kept for a cancel.
        if self.position >= self._most - 1:
            raise LimitExceeded(
                f"A run has at most {self._most} steps: hand what is left to a new run with ctx.continue_as_new(...) "
                "before that."
            )
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        step_id = name if count == 1 else f"{name}#{count}"
        self.position += 1
        record = self._by_id.get(step_id)
        there = self._by_position.get(self.position)
        request = Request(step_id, kind, self.position, record, code, line)
        self.requests.append(request)
        if record is not there and self.mismatch is None:
            self._differ(request, there or record)
        elif record is not None and record.kind != kind and self.mismatch is None:
            self._differ(request, record)
        return request

    def knows(self, step_id: str) -> bool:
        """Whether the step is on record at the position the code is about to ask for."""
        there = self._by_position.get(self.position + 1)
        return there is not None and there.step_id == step_id

    def pending(self) -> Step | None:
        """The next result on record."""
        return self._order[self._next] if self._next < len(self._order) else None

    def hand_over(self, record: Step) -> None:
        """A result on record was given to the code: the pending one, or one that the code got as it asked."""
        if self._next < len(self._order) and self._order[self._next] is record:
            self._next += 1
        else:
            self._order.remove(record)

    def cancel_request(self) -> Request:
        """A cancel request, which no code asks for: it takes the next position when it is handed over."""
        self.position += 1
        return Request(f"{OWN}cancel", CANCEL, self.position, None)

    def next_seq(self) -> int:
        """The number of the next result that is handed over live."""
        self.seq += 1
        return self.seq

    def unreached(self) -> Mismatch | None:
        """What the code, which rests or has ended, has not asked for or has given up although it is on record. What
        leads to a record is recorded before it, so code that is the same gets there.
        """
        if not self.replaying and not self.behind:
            return None
        asked = {request.step_id for request in self.requests}
        missing = [
            record.step_id
            for record in self._by_id.values()
            if record.step_id not in asked and not (record.kind == CANCEL and record.position <= self.position)
        ]
        if missing:
            names = ", ".join(map(repr, missing[:3]))
            return self.compare(
                f"the code no longer asks for {names}, which {'is' if len(missing) == 1 else 'are'} on record"
            )
        left = self.pending()
        return None if left is None else self.compare(f"the code gave up {left.step_id!r}, whose result is on record")

    def _differ(self, request: Request, record: Step | None) -> None:
        if record is None:
            message = f"step {request.step_id!r} is asked for at {request.where}"
        elif record.step_id == request.step_id and record.kind != request.kind:
            message = (
                f"step {request.step_id!r} at {request.where} is a {StepKind.Name(request.kind)} now, "
                f"and a {StepKind.Name(record.kind)} on record"
            )
        elif record.step_id == request.step_id:
            message = (
                f"step {request.step_id!r} at {request.where} is asked for as number {request.position}, "
                f"and number {record.position} on record"
            )
        else:
            message = (
                f"the code asks for {request.step_id!r} at {request.where} where {record.step_id!r} is on record "
                f"(number {request.position})"
            )
        self.mismatch = self.compare(message)

    def compare(self, message: str) -> Mismatch:
        """Both lists by position; recorded steps that the code has not reached are shown too."""
        asked: dict[int, Request] = {request.position: request for request in self.requests}
        last = max([*self._by_position, *asked], default=0)
        recorded, requested = [], []
        for position in range(1, last + 1):
            record = self._by_position.get(position)
            request = asked.get(position)
            if record is None and request is None:
                continue
            shown = "-" if record is None else f"{record.step_id} ({StepKind.Name(record.kind)})"
            recorded.append(shown)
            if request is not None:
                requested.append(f"{request.step_id} ({StepKind.Name(request.kind)}) at {request.where}")
            else:
                # Nobody asks for a cancel: it was handed over here.
                handed = record is not None and record.kind == CANCEL and position <= self.position
                requested.append(shown if handed else "-")
        return Mismatch(message, *_around_difference(recorded, requested))


def _around_difference(recorded: Sequence[str], requested: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """At most 40 lines, from a little before the first difference on."""
    first = next(
        (i for i, (old, new) in enumerate(zip(recorded, requested, strict=True)) if old != new.partition(" at ")[0]), 0
    )
    start = max(0, first - 5)
    return tuple(recorded[start : start + 40]), tuple(requested[start : start + 40])
