"""What the engine promises of runs, as plain Python: who holds one, what is on its record, when it is due. It knows no
locks, batches, tokens' comparison in SQL or transactions; that these add nothing and lose nothing is what is tested.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from math import inf

from kagzi.protocol.v1.common_pb2 import STEP_UNKNOWN
from kagzi.store.operation import Kind, Operation
from tests.model.lab import LEASE_MS

LIVE = ("PENDING", "RUNNING", "SLEEPING")
RETRY_MS = 1_000
POISON_AT = 5
GIVES_AWAY = (Kind.SUSPEND, Kind.RELEASE, Kind.COMPLETE, Kind.FAIL)


@dataclass(slots=True)
class Step:
    """The latest attempt of a step."""

    kind: str
    status: str
    attempt_id: str
    position: int
    output: bytes | None = None
    # When a timer ends or the next attempt is due.
    wake: float = inf
    seq: int = 0
    effect: bool = False
    final: bool = False
    resolution: str | None = None
    signal: str | None = None


@dataclass(slots=True)
class Run:
    """One run as it should stand."""

    run_id: str
    external_id: str | None = None
    tries: int = 1
    status: str = "PENDING"
    token: str | None = None
    holder: str | None = None
    # When it can be claimed: due time, or end of the lease; None once it has ended.
    due: float | None = 0
    started: bool = False
    crashes: int = 0
    attempts: int = 0
    cancelled: bool = False
    failed_step: str = ""
    steps: dict[str, Step] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    # Each as (signal id, attempt that received it), in the order they were sent.
    signals: list[tuple[str, str | None]] = field(default_factory=list)
    # The operation that gave it away last, and what was recorded by it and earlier, which is known again.
    last: str | None = None
    accepted: set[tuple[Kind, str, int]] = field(default_factory=set)

    @property
    def live(self) -> bool:
        return self.status in LIVE

    def hold(self, token: str, worker: str, now: int) -> None:
        self.status, self.token, self.holder, self.due, self.started = "RUNNING", token, worker, now + LEASE_MS, True

    def claimable(self, now: int) -> bool:
        return self.live and self.due is not None and self.due <= now

    def take(self, token: str, worker: str, now: int) -> bool:
        """Somebody claims it; False when that was once too often, and it is poisoned."""
        if self.status == "RUNNING":
            self.crashes += 1
            if self.crashes >= POISON_AT:
                self.end("FAILED")
                self.interrupt()
                return False
        self.hold(token, worker, now)
        return True

    def put_back(self, now: int) -> None:
        self.status, self.token, self.holder, self.due = "PENDING", None, None, now

    def end(self, status: str) -> None:
        self.status, self.token, self.holder, self.due = status, None, None, None

    def wakes(self, now: int) -> None:
        """Something it waits for is there."""
        if self.status == "SLEEPING" and self.due is not None:
            self.due = min(self.due, now)

    def interrupt(self) -> None:
        for step in self.steps.values():
            if step.kind == "FUNCTION" and step.status == "RUNNING":
                step.status = "UNKNOWN" if step.effect else "INTERRUPTED"

    def apply(self, operation: Operation, now: int) -> str:
        """A worker's operation: what it is answered, and what it changes."""
        if self.token is None or operation.token != self.token:
            return "LEASE_LOST"
        match operation.kind:
            case Kind.START_STEP:
                return self._started(operation, now)
            case Kind.COMPLETE_STEP:
                return self._completed(operation)
            case Kind.FAIL_STEP:
                return self._failed(operation, now)
            case Kind.SUSPEND:
                return self._suspended(operation, now)
            case Kind.RELEASE:
                self.crashes = 0
                self.put_back(now)
            case Kind.COMPLETE:
                self.crashes = 0
                self.end("COMPLETED")
            case Kind.FAIL:
                self._ended_badly(operation, now)
        self.last = operation.operation_id
        return "OK"

    def _takes(self, name: str, attempt_id: str) -> bool:
        """Whether the step may have this attempt: a result, a last failure and an effect in doubt stand for ever."""
        known = self.steps.get(name)
        if known is None or known.attempt_id == attempt_id:
            return known is None or known.status in ("RUNNING", "UNKNOWN")
        if known.status == "RUNNING":
            return not known.effect
        return known.status == "INTERRUPTED" or (known.status == "FAILED" and not known.final)

    def _started(self, operation: Operation, now: int) -> str:
        body = operation.body
        if not self._takes(body.step_id, body.attempt_id):
            return "PRECONDITION_FAILED"
        kind = {1: "FUNCTION", 2: "SLEEP", 3: "SIGNAL"}.get(body.kind, "FUNCTION")
        wake = now + body.duration_ms if body.HasField("duration_ms") else inf
        self.steps[body.step_id] = Step(kind, "RUNNING", body.attempt_id, body.position, wake=wake, effect=body.effect)
        return "OK"

    def _completed(self, operation: Operation) -> str:
        body = operation.body
        if not self._takes(body.step_id, body.attempt_id):
            return "PRECONDITION_FAILED"
        signal = body.signal_id or None
        if signal is not None:
            by = dict(self.signals).get(signal, "nobody sent it")
            if by not in (None, body.attempt_id):
                return "PRECONDITION_FAILED"
            self.signals = [(one, body.attempt_id if one == signal else to) for one, to in self.signals]
        known = self.steps.get(body.step_id)
        same = known is not None and known.attempt_id == body.attempt_id
        step = known if same and known is not None else Step("FUNCTION", "", body.attempt_id, body.position)
        step.status, step.output, step.seq, step.signal = "COMPLETED", body.output.data, body.completed_seq, signal
        step.wake = inf if step.kind == "FUNCTION" else step.wake
        self.steps[body.step_id] = step
        self.crashes = 0
        return "OK"

    def _failed(self, operation: Operation, now: int) -> str:
        body = operation.body
        if not self._takes(body.step_id, body.attempt_id):
            return "PRECONDITION_FAILED"
        known = self.steps.get(body.step_id)
        same = known is not None and known.attempt_id == body.attempt_id
        step = known if same and known is not None else Step("FUNCTION", "", body.attempt_id, body.position)
        self.steps[body.step_id] = step
        self.crashes = 0
        if body.outcome == STEP_UNKNOWN:
            step.status = "UNKNOWN"
            return "OK"
        failures = self.failures[body.step_id] = self.failures.get(body.step_id, 0) + 1
        step.status = "FAILED"
        step.final = body.failure.non_retryable or failures >= body.retry.maximum_attempts
        step.wake = inf if step.final else now + RETRY_MS
        step.seq = body.completed_seq if step.final else 0
        return "OK"

    def _suspended(self, operation: Operation, now: int) -> str:
        named = [self.steps.get(name) for name in operation.body.step_ids]
        waits = [step for step in named if step is not None]
        if len(waits) < len(named):
            return "PRECONDITION_FAILED"
        met = self.cancelled or any(self._met(step) for step in waits)
        self.status, self.token, self.holder, self.crashes = "SLEEPING", None, None, 0
        self.due = now if met else min((step.wake for step in waits), default=inf)
        self.last = operation.operation_id
        return "OK"

    def _met(self, step: Step) -> bool:
        if step.kind == "SIGNAL" and step.status == "RUNNING":
            return any(by is None for _, by in self.signals)
        if step.status == "UNKNOWN":
            return step.resolution is not None
        return step.final if step.status == "FAILED" else step.status != "RUNNING"

    def _ended_badly(self, operation: Operation, now: int) -> None:
        self.attempts += 1
        self.crashes = 0
        self.failed_step = operation.body.failed_step_id
        if self.cancelled or self.attempts >= self.tries:
            self.end("CANCELLED" if self.cancelled else "FAILED")
            return
        self.put_back(now + RETRY_MS)
        failed = self.steps.get(self.failed_step)
        if failed is not None:
            self._set_aside(failed.position)

    def _set_aside(self, position: int) -> None:
        for name, step in list(self.steps.items()):
            if step.position >= position:
                del self.steps[name]
                self.failures.pop(name, None)
                self.signals = [(one, None if one == step.signal else by) for one, by in self.signals]


def kept_by_retry(source: Run) -> dict[str, Step] | None:
    """The part of a history that a retry keeps; None when an effect before it is in doubt."""
    named = source.steps.get(source.failed_step)
    done = [step for step in source.steps.values() if step.seq]
    last = max(done, key=lambda step: step.seq, default=None)
    before = inf
    if named is not None:
        before = named.position
    elif last is not None and last.status == "FAILED":
        before = last.position
    kept: dict[str, Step] = {}
    early = [(name, step) for name, step in source.steps.items() if step.position < before]
    for name, step in early:
        if step.effect and step.status in ("RUNNING", "UNKNOWN"):
            if step.resolution is None:
                return None
            status = "COMPLETED" if step.resolution == "APPLIED" else "FAILED"
            kept[name] = Step("FUNCTION", status, step.attempt_id, step.position, seq=1_000, effect=True, final=True)
        elif step.seq or (step.kind in ("SLEEP", "SIGNAL") and step.status == "RUNNING"):
            kept[name] = copy(step)
            kept[name].resolution = None
    return kept
