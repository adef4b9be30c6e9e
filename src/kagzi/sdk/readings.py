"""What the code of a run reads without waiting: the clock, patches, counters behind its random numbers; and the
timers of asyncio. Whatever could differ in replay is put on record when it is first read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kagzi.protocol.v1.common_pb2 import NOW, PATCH, SLEEP, Payload
from kagzi.protocol.v1.worker_pb2 import SetState, Warn
from kagzi.sdk import abandonment
from kagzi.sdk.history import OWN, Request
from kagzi.sdk.pending import Pending
from kagzi.sdk.source import caller

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution

# What is noted on a run by one execution of it; more of the same tell a person nothing new.
_MOST_WARNINGS = 20
# Documents are numbered on from here with each try of the whole workflow, so that a new try's are the newer ones.
_STATES_OF_A_TRY = 100_000


class Readings:
    """The clock of a run's loop, and its other readings."""

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._now: float | None = None
        self._patches: dict[str, bool] = {}
        self._counts: dict[str, int] = {}
        self._warnings = 0
        self._state_number = run.delivery.attempts * _STATES_OF_A_TRY

    def moved(self) -> None:
        """A result is about to be handed over: time has passed for the code."""
        self._now = None

    def now(self) -> float:
        """The loop's clock, as the code reads it through asyncio: once between two results, and on record."""
        if self._now is None:
            self._now = self._read(self._run.ledger.request(f"{OWN}time", NOW)) / 1_000_000
        return self._now

    def read_clock(self) -> int:
        """The database's time in microseconds; on record, so that replayed code reads the same."""
        return self._read(self._run.ledger.request(f"{OWN}now", NOW, *caller()))

    def _read(self, request: Request) -> int:
        record = request.record
        if record is not None and record.completed_seq:
            self._run.ledger.hand_over(record)
            return int(record.output.data)
        now_us = self._run.waits.now_us()
        if not self._run.loop.dropped:
            self._record(request, Payload(data=str(now_us).encode()))
        return now_us

    def patched(self, name: str) -> bool:
        """Whether the run takes the path of this patch; decided when the code first comes here, and kept."""
        step_id = f"{OWN}patch:{name}"
        if step_id not in self._patches:
            self._patches[step_id] = self._pass(step_id)
        return self._patches[step_id]

    def _pass(self, step_id: str) -> bool:
        ledger = self._run.ledger
        if ledger.knows(step_id):
            record = ledger.request(step_id, PATCH, *caller()).record
            assert record is not None
            ledger.hand_over(record)
            return True
        if ledger.behind or ledger.replaying:
            # The run went on from here before there was a patch.
            return False
        self._record(ledger.request(step_id, PATCH, *caller()), None)
        return True

    def _record(self, request: Request, output: Payload | None) -> None:
        pending = Pending(request, self._run.future(), lambda _: None)
        pending.next_attempt()
        self._run.handover.record(pending.completed(self._run.ledger.next_seq(), output))

    def count(self, what: str) -> int:
        """How often the code has asked for something that is derived and not recorded."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def input_changed(self, request: Request) -> None:
        """A recorded step is asked for with another input: its recorded result is given back all the same."""
        ledger = self._run.ledger
        message = f"step {request.step_id!r} at {request.where} is called with another input than the one on record"
        if self._run.definition.strict_inputs:
            ledger.mismatch = ledger.mismatch or ledger.compare(message)
        else:
            self.warn(request.step_id, message)

    def warn(self, step_id: str, message: str) -> None:
        """Notes something on the run for a person; also in replay, where the run's own logger is silent."""
        logging.getLogger(f"kagzi.workflow.{self._run.workflow_type}").warning(
            "%s (run %s of %r)", message, self._run.run_id, self._run.workflow_type
        )
        self._warnings += 1
        if self._warnings <= _MOST_WARNINGS:
            self._run.send("warn", Warn(step_id=step_id, message=message))

    def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
        """A timer of asyncio's own: durable, under a name of ours."""
        run = self._run
        pending = Pending(
            run.ledger.request(f"{OWN}timer", SLEEP),
            run.future(),
            lambda _: None,
            duration_ms=max(1, round(delay * 1_000)),
        )
        run.agenda.add(pending)
        pending.future.add_done_callback(lambda future: None if future.cancelled() else fire())

        def cancel() -> None:
            if pending.future.cancel():
                abandonment.waiter_gone(run, pending)

        return cancel

    def set_state(self, document: str) -> None:
        """Publishes a document, unless the code only repeats what it did before."""
        self._state_number += 1
        if not self._run.ledger.replaying and self._state_number > self._run.delivery.state_number:
            self._run.send("set_state", SetState(state_json=document, number=self._state_number))
