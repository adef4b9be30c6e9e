"""A worker's side of one run that it believes to hold: what it was delivered, what it has sent since, and what of that
was not answered yet. It does what a worker does, and nothing that one would not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from kagzi.protocol.v1.common_pb2 import SIGNAL, SLEEP, STEP_UNKNOWN, Failure, Payload, RetryPolicy, StepStatus
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store.operation import Operation
from tests.laws import operations
from tests.laws.operations import Run
from tests.model.lab import offset

BODIES = ("a", "b", "c")
POSITIONS = {name: number for number, name in enumerate((*BODIES, "pay", "nap", "receive-paid"), 1)}
RETRY = RetryPolicy(maximum_attempts=2, initial_interval_ms=1_000)
NAP_MS = 5_000
ACTIONS = (
    *("step", "step", "fail step", "pay", "pay", "doubt", "nap", "nap", "receive", "receive", "suspend", "suspend"),
    *("suspend", "release", "complete", "fail"),
)


@dataclass(slots=True)
class Seen:
    """A step as this worker knows it."""

    status: str
    attempt_id: str
    number: int = 1
    wake: float = 0
    # It runs here, and nowhere else.
    mine: bool = False


@dataclass(slots=True)
class Holder:
    """One run at one worker."""

    worker: str
    run: Run
    new_id: Callable[[], str]
    steps: dict[str, Seen] = field(default_factory=dict)
    signals: list[str] = field(default_factory=list)
    resolved: str = ""
    # Sent, or to be sent, and not known to be answered; in order.
    outbox: list[Operation] = field(default_factory=list)
    gone: bool = False
    _seq: int = 0

    def learn(self, delivery: Delivery) -> None:
        for step in delivery.history:
            status = StepStatus.Name(step.status).removeprefix("STEP_")
            wake = offset(step.wake_at.ToDatetime(UTC)) if step.HasField("wake_at") else 0
            self.steps[step.step_id] = Seen(status, step.attempt_id, step.attempt_number, wake or 0)
            self._seq = max(self._seq, step.completed_seq)
        for fact in delivery.facts:
            if fact.HasField("signal"):
                self.signals.append(fact.signal.signal_id)
            elif fact.HasField("step_resolved"):
                self.resolved = "FAIL" if fact.step_resolved.step.status == StepStatus.STEP_FAILED else "APPLIED"

    def act(self, action: str, now: int) -> None:
        """Decides for this; nothing happens where a worker would not."""
        if self.gone:
            return
        match action:
            case "step" | "fail step":
                self._body(failing=action == "fail step")
            case "pay" | "doubt":
                self._pay(doubtful=action == "doubt")
            case "nap":
                self._nap(now)
            case "receive":
                self._receive()
            case "suspend":
                waits = [name for name, step in self.steps.items() if _waits(name, step)]
                if waits:
                    self._leave(operations.suspend(self.run, *waits))
            case "release":
                self._leave(operations.release(self.run))
            case "complete":
                self._leave(operations.complete(self.run, self.run.token.encode()))
            case "fail":
                failed = next((name for name, step in self.steps.items() if step.status == "FAILED"), "")
                self._leave(operations.fail(self.run, failed_step_id=failed))

    def _body(self, *, failing: bool) -> None:
        name = next((one for one in BODIES if self._status(one) != "COMPLETED"), None)
        if name is None:
            return
        number = self.steps[name].number + 1 if name in self.steps else 1
        given = self._given(name, number, self.new_id())
        if failing:
            self._send(operations.fail_step(self.run, name, retry=RETRY, **given))
        else:
            output = Payload(data=f"{name} {given['attempt_id']}".encode())
            self._send(operations.complete_step(self.run, name, output=output, **given))
        self.steps[name] = Seen("FAILED" if failing else "COMPLETED", str(given["attempt_id"]), number)

    def _pay(self, *, doubtful: bool) -> None:
        known = self.steps.get("pay")
        if known is None:
            known = self.steps["pay"] = Seen("RUNNING", self.new_id(), mine=True)
            self._send(
                operations.start_step(self.run, "pay", POSITIONS["pay"], attempt_id=known.attempt_id, effect=True)
            )
            return
        given = self._given("pay", known.number, known.attempt_id)
        if known.status == "RUNNING" and (doubtful or not known.mine):
            known.status = "UNKNOWN"
            self._send(operations.fail_step(self.run, "pay", outcome=STEP_UNKNOWN, **given))
        elif known.status == "RUNNING" or (known.status == "UNKNOWN" and self.resolved == "APPLIED"):
            known.status = "COMPLETED"
            self._send(operations.complete_step(self.run, "pay", output=Payload(data=b"paid"), **given))
        elif known.status == "UNKNOWN" and self.resolved == "FAIL":
            known.status = "FAILED"
            failure = Failure(type="ResolvedAsFailed", non_retryable=True)
            self._send(operations.fail_step(self.run, "pay", failure=failure, retry=RETRY, **given))

    def _nap(self, now: int) -> None:
        known = self.steps.get("nap")
        if known is None:
            known = self.steps["nap"] = Seen("RUNNING", self.new_id(), wake=now + NAP_MS)
            timer = operations.timer(self.run, "nap", POSITIONS["nap"], NAP_MS)
            timer.body.attempt_id = known.attempt_id
            self._send(timer)
        elif known.status == "RUNNING" and known.wake <= now:
            known.status = "COMPLETED"
            given = self._given("nap", known.number, known.attempt_id)
            self._send(operations.complete_step(self.run, "nap", kind=SLEEP, output=Payload(), **given))

    def _receive(self) -> None:
        name = "receive-paid"
        known = self.steps.get(name)
        if known is None:
            known = self.steps[name] = Seen("RUNNING", self.new_id())
            self._send(operations.await_signal(self.run, "paid", POSITIONS[name], attempt_id=known.attempt_id))
        elif known.status == "RUNNING" and self.signals:
            known.status = "COMPLETED"
            given = self._given(name, known.number, known.attempt_id)
            signal = self.signals.pop(0)
            output = Payload(data=signal.encode())
            self._send(operations.complete_step(self.run, name, kind=SIGNAL, signal_id=signal, output=output, **given))

    def _given(self, name: str, number: int, attempt_id: str) -> dict[str, Any]:
        self._seq += 1
        return {
            "position": POSITIONS[name],
            "attempt_number": number,
            "attempt_id": attempt_id,
            "completed_seq": self._seq,
        }

    def _status(self, name: str) -> str:
        return self.steps[name].status if name in self.steps else ""

    def _send(self, operation: Operation) -> None:
        self.outbox.append(operation)

    def _leave(self, operation: Operation) -> None:
        operation.operation_id = self.new_id()
        self.gone = True
        self._send(operation)


def _waits(name: str, step: Seen) -> bool:
    if name in BODIES:
        return step.status == "FAILED"
    return step.status in ("RUNNING", "UNKNOWN") and not (name == "pay" and step.status == "RUNNING")
