"""What the code of a run reads without waiting: the clock, patches, counters behind its random numbers; and the
timers of asyncio. Whatever could differ in replay is put on record when it is first read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kagzi.protocol.v1.common_pb2 import NOW, PATCH, SLEEP, Payload
from kagzi.protocol.v1.worker_pb2 import SetState
from kagzi.sdk.history import OWN, Request
from kagzi.sdk.pending import Pending

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution


class Readings:
    """The clock of a run's loop, and its other readings."""

    def __init__(self, run: Execution) -> None:
        self._run = run
        self._now: float | None = None
        self._patches: dict[str, bool] = {}
        self._counts: dict[str, int] = {}
        self._state_number = 0

    def moved(self) -> None:
        """A result was handed over: time has passed for the code."""
        self._now = None

    def now(self) -> float:
        """The loop's clock, as the code reads it through asyncio: once between two results, and on record."""
        if self._now is None:
            self._now = self.read_clock(f"{OWN}time") / 1_000_000
        return self._now

    def read_clock(self, name: str = f"{OWN}now") -> int:
        """The database's time in microseconds; on record, so that replayed code reads the same."""
        request = self._run.ledger.request(name, NOW, "")
        record = request.record
        if record is not None and record.completed_seq:
            self._run.ledger.hand_over(record)
            return int(record.output.data)
        now_us = self._run.waits.now_us()
        pending = Pending(request, self._run.future(), lambda _: None)
        pending.next_attempt()
        output = Payload(data=str(now_us).encode())
        if self._run.ledger.mismatch is None and not self._run.loop.dropped:
            self._run.record(pending.completed(self._run.ledger.next_seq(), output, 0, ""))
        return now_us

    def patched(self, name: str) -> bool:
        """Whether the run takes the path of this patch; decided when the code first comes here, and kept."""
        step_id = f"{OWN}patch:{name}"
        if step_id not in self._patches:
            if self._run.ledger.knows(step_id):
                record = self._run.ledger.request(step_id, PATCH, "").record
                assert record is not None
                self._run.ledger.hand_over(record)
                self._patches[step_id] = True
            elif self._run.ledger.behind or self._run.ledger.replaying:
                self._patches[step_id] = False
            else:
                pending = Pending(self._run.ledger.request(step_id, PATCH, ""), self._run.future(), lambda _: None)
                pending.next_attempt()
                self._run.record(pending.completed(self._run.ledger.next_seq(), None, 0, ""))
                self._patches[step_id] = True
        return self._patches[step_id]

    def count(self, what: str) -> int:
        """How often the code has asked for something that is derived and not recorded."""
        self._counts[what] = self._counts.get(what, 0) + 1
        return self._counts[what]

    def input_changed(self, request: Request) -> None:
        """A recorded step is asked for with another input: its recorded result is given back all the same."""
        message = f"step {request.step_id!r} at {request.where} is called with another input than the one on record"
        if self._run.definition.strict_inputs:
            self._run.mismatch = self._run.mismatch or self._run.ledger.compare(message)
        else:
            logging.getLogger(f"kagzi.workflow.{self._run.workflow_type}").warning(
                "%s (run %s)", message, self._run.run_id
            )

    def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
        """A timer of asyncio's own: durable, under a name of ours."""
        request = self._run.ledger.request(f"{OWN}timer", SLEEP, "asyncio")
        pending = Pending(request, self._run.future(), lambda _: None, duration_ms=max(1, round(delay * 1_000)))
        self._run.request(pending).add_done_callback(lambda future: None if future.cancelled() else fire())
        return lambda: None if pending.future.done() else self._drop_timer(pending)

    def _drop_timer(self, pending: Pending) -> None:
        pending.future.cancel()

    def set_state(self, document: str) -> None:
        """Publishes a document, unless the code only repeats what it did before."""
        self._state_number += 1
        if not self._run.ledger.replaying and self._state_number > self._run.delivery.state_number:
            self._run.send("set_state", SetState(state_json=document, number=self._state_number))
