"""The steps by which the phases of a handler run are on record. The names are fixed, so that people and servers know a
phase when they see it. Numbers go on from the delivered history; nothing here sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import uuid_utils

from kagzi.protocol.v1.automation_pb2 import PhaseStep
from kagzi.protocol.v1.common_pb2 import FUNCTION, SLEEP, STEP_COMPLETED, STEP_RUNNING, Failure, Step
from kagzi.protocol.v1.worker_pb2 import StepCompleted, StepFailed, StepStarted

# The timer before the reconciler is asked again.
CHECK = "check"
RECONCILE = "reconcile"


@dataclass(frozen=True, slots=True)
class Record:
    """One attempt of one step."""

    step_id: str
    attempt_id: str
    attempt: int
    position: int

    def phase(self, seq: int = 0, elapsed_us: int = 0) -> PhaseStep:
        """As the operation that ends its phase names it."""
        return PhaseStep(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            attempt_number=self.attempt,
            position=self.position,
            completed_seq=seq,
            elapsed_us=elapsed_us,
        )

    def started(self) -> StepStarted:
        """That its body runs."""
        return StepStarted(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            kind=FUNCTION,
            attempt_number=self.attempt,
            position=self.position,
        )

    def completed(self, seq: int, elapsed_us: int) -> StepCompleted:
        """That its body returned, where no other operation says so."""
        return StepCompleted(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            kind=FUNCTION,
            attempt_number=self.attempt,
            position=self.position,
            completed_seq=seq,
            elapsed_us=elapsed_us,
        )

    def failed(self, seq: int, failure: Failure) -> StepFailed:
        """That its body raised, and is not tried again within the run."""
        message = StepFailed(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            kind=FUNCTION,
            attempt_number=self.attempt,
            position=self.position,
            completed_seq=seq,
            failure=failure,
        )
        message.failure.non_retryable = True
        return message

    def timer(self, wake_at_us: int) -> StepStarted:
        """That it waits until then."""
        return StepStarted(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            kind=SLEEP,
            attempt_number=self.attempt,
            position=self.position,
            wake_at_us=wake_at_us,
        )

    def elapsed(self, seq: int) -> StepCompleted:
        """That it has waited."""
        return StepCompleted(
            step_id=self.step_id,
            attempt_id=self.attempt_id,
            kind=SLEEP,
            attempt_number=self.attempt,
            position=self.position,
            completed_seq=seq,
        )


class Records:
    """What is on record of one run, and what comes next."""

    def __init__(self, history: Iterable[Step]) -> None:
        self._steps = {step.step_id: step for step in history}
        self._position = max((step.position for step in self._steps.values()), default=0)
        self._seq = max((step.completed_seq for step in self._steps.values()), default=0)

    def attempt(self, name: str) -> Record:
        """The next attempt of a step that a run has once."""
        return self._attempt(name)

    def occurrence(self, name: str) -> Record:
        """The next attempt of the last occurrence of a step while that has not ended, else the next occurrence."""
        step_id, count = name, 1
        while step_id in self._steps and self._steps[step_id].status != STEP_RUNNING:
            count += 1
            step_id = f"{name}#{count}"
        return self._attempt(step_id)

    def running(self, name: str) -> Record | None:
        """The occurrence of a step that has not ended, as it is on record."""
        for step in self._steps.values():
            if step.step_id.partition("#")[0] == name and step.status == STEP_RUNNING:
                return Record(step.step_id, step.attempt_id, step.attempt_number, step.position)
        return None

    def _attempt(self, step_id: str) -> Record:
        known = self._steps.get(step_id)
        if known is None:
            self._position += 1
            known = Step(step_id=step_id, position=self._position)
            self._steps[step_id] = known
        known.attempt_number += 1
        known.attempt_id = str(uuid_utils.uuid4())
        known.status = STEP_RUNNING
        return Record(step_id, known.attempt_id, known.attempt_number, known.position)

    def ended(self, record: Record) -> int:
        """The step has its result: answers its number."""
        self._steps[record.step_id].status = STEP_COMPLETED
        self._seq += 1
        return self._seq
