"""The step whose body is running here, found by context variable: it travels into tasks and threads of the body. What
a body starts gets its id from the step, so that a repeated body starts it once. Nothing here knows the server.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count

from kagzi.sdk.errors import ConfigError

# Any constant will do, as long as all versions of the SDK agree on it.
_STARTED_BY_STEPS = uuid.UUID("6b61677a-6900-5000-8000-737465700001")


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """One attempt of a step, as its body may know it."""

    namespace: str
    run_id: str
    # Tries of the whole workflow: what an earlier one started is not what this one starts.
    workflow_attempt: int
    step_id: str
    attempt_id: str
    # The same for every attempt of the step, so that others can recognise a repetition.
    idempotency_key: str
    counter: Iterator[int] = field(default_factory=lambda: count(1))

    def next_run_id(self) -> str:
        """The id of the next run that the body starts; a repeated body gets the same ids in the same order."""
        parts = (self.namespace, self.run_id, str(self.workflow_attempt), self.step_id, str(next(self.counter)))
        return str(uuid.uuid5(_STARTED_BY_STEPS, "\x1f".join(parts)))


current_step: ContextVar[CurrentStep | None] = ContextVar("kagzi_current_step", default=None)


def idempotency_key() -> str:
    """A key for the outside world: the same whenever this step runs again, another for every other step."""
    current = current_step.get()
    if current is None:
        raise ConfigError(
            "kagzi.idempotency_key() has a meaning only while a step's body runs: call it inside the function that is "
            "given to ctx.step(...), not in the workflow or outside of one."
        )
    return current.idempotency_key
