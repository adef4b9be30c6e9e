"""What a run waits for outside itself: times on the database's clock, signals, ends of children, a cancel. Facts are
learned as they arrive, in any order and more than once; each is given to the code at most once, and only then recorded.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    CANCEL,
    CANCELLED,
    CHILD_WORKFLOW,
    COMPLETED,
    SIGNAL,
    SLEEP,
    STEP_COMPLETED,
    Failure,
    Signal,
)
from kagzi.sdk import duration
from kagzi.sdk.duration import Duration
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.pending import Completion, Pending

# The longest wait that can be stored.
LONGEST_MS = 10 * 366 * 24 * 3_600_000
# The type of a recorded failure that stands for a child that was cancelled.
CHILD_CANCELLED = "RunCancelled"


def bounded_ms(length: Duration, option: str) -> int:
    """A length of time in milliseconds. ConfigError, with the option's name, when it is longer than can be stored."""
    milliseconds = duration.milliseconds(duration.named(length, option))
    if milliseconds > LONGEST_MS:
        raise ConfigError(
            f"{option}={length!r} is too long to wait: ten years are stored. Wait again in a new run after that."
        )
    return milliseconds


class Waits:
    """The facts of one run that are not in its history yet."""

    def __init__(self, delivery: pb.Delivery) -> None:
        self._now_us = delivery.now_us
        self._read_at = time.monotonic()
        self._signals: defaultdict[str, deque[Signal]] = defaultdict(deque)
        self._seen: set[str] = set()
        self._children: dict[str, pb.ChildEnded] = {}
        # What people said became of effects in doubt, by attempt: an answer about an earlier one says nothing.
        self.resolved: dict[str, pb.StepResolved] = {}
        self._registered: set[str] = set()
        # Whether a cancel was handed to the code, or is on record to be.
        self.cancelled = any(record.kind == CANCEL for record in delivery.history)
        self._cancel: pb.CancelRequested | None = None
        self.cancel_reason = ""
        self.learn(delivery.facts)

    def now_us(self) -> int:
        """The database's time, never ahead of it: counted on from the last reading, which was older when it arrived."""
        return self._now_us + int((time.monotonic() - self._read_at) * 1_000_000)

    def observe(self, now_us: int) -> None:
        """The database has said what time it is."""
        if now_us > self.now_us():
            self._now_us, self._read_at = now_us, time.monotonic()

    def resume(self, delivery: pb.Delivery) -> None:
        """The run goes on from memory: what came since, and nobody remembers what it asked to be told of."""
        self._registered.clear()
        self.observe(delivery.now_us)
        self.learn(delivery.facts)

    def learn(self, facts: Sequence[pb.Fact]) -> None:
        """Takes facts in; those known already change nothing."""
        for fact in facts:
            if fact.HasField("signal") and fact.signal.signal_id not in self._seen:
                self._seen.add(fact.signal.signal_id)
                self._signals[fact.signal.name].append(fact.signal)
            elif fact.HasField("child_ended"):
                self._children[fact.child_ended.child_run_id] = fact.child_ended
            elif fact.HasField("step_resolved"):
                self.resolved[fact.step_resolved.step.attempt_id] = fact.step_resolved
            elif fact.HasField("cancel_requested") and not self.cancelled:
                self._cancel = fact.cancel_requested

    def take_cancel(self) -> bool:
        """Whether a cancel is to be handed to the code; true once."""
        if self._cancel is None or self.cancelled:
            return False
        self.cancelled = True
        self.cancel_reason = self._cancel.reason
        return True

    def register(self, step_ids: Sequence[str]) -> bool:
        """Whether one of these waits is new, so that the server is to be asked to tell."""
        fresh = set(step_ids) - self._registered
        self._registered |= fresh
        return bool(fresh)

    def met(self, pending: Pending, now_us: int) -> Completion | None:
        """The result of a step that waits, if what it waits for has happened."""
        due = pending.due_us is not None and pending.due_us <= now_us
        match pending.request.kind:
            case kind if kind == SLEEP:
                return Completion(pending) if due else None
            case kind if kind == SIGNAL:
                waiting = self._signals.get(pending.target)
                if waiting:
                    signal = waiting.popleft()
                    output = signal.payload if signal.HasField("payload") else None
                    return Completion(pending, output=output, signal_id=signal.signal_id)
                return Completion(pending) if due else None
            case kind if kind == CHILD_WORKFLOW:
                ended = self._children.get(pending.child_run_id)
                return None if ended is None else _child(pending, ended)
        return None

    def resolution(self, pending: Pending) -> Completion | None:
        """What a person said became of an effect in doubt; given once."""
        resolved = self.resolved.pop(pending.attempt_id, None)
        if resolved is None:
            return None
        step = resolved.step
        if step.status == STEP_COMPLETED:
            return Completion(pending, output=step.output if step.HasField("output") else None)
        return Completion(pending, failure=step.failure)

    def give_back(self, completion: Completion) -> None:
        """The code gave the step up before it got the signal: the next one to wait gets it."""
        if completion.signal_id:
            signal = Signal(signal_id=completion.signal_id, name=completion.pending.target, payload=completion.output)
            self._signals[completion.pending.target].appendleft(signal)


def _child(pending: Pending, ended: pb.ChildEnded) -> Completion:
    if ended.status == COMPLETED:
        return Completion(pending, output=ended.output if ended.HasField("output") else None)
    failure = Failure(non_retryable=True)
    failure.MergeFrom(ended.failure)
    if ended.status == CANCELLED:
        failure.type = CHILD_CANCELLED
    failure.non_retryable = True
    return Completion(pending, failure=failure)
