"""Handing results to the code of a run: exactly one, then the code runs until it rests, then the next. Those on record
come first, in their recorded order; new ones follow in the order in which they came, and are recorded as they are
handed over. What the server has to decide first holds up the rest, so that a replay meets the same order.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import CANCEL, FUNCTION, STEP_FAILED, Failure, Payload, Step
from kagzi.sdk import attempts, effects
from kagzi.sdk.errors import PayloadError
from kagzi.sdk.pending import Completion, Pending, State
from kagzi.sdk.values import error_of

if TYPE_CHECKING:
    from kagzi.sdk.execution import Execution


class Handover:
    """The results of one run on their way to its code."""

    def __init__(self, run: Execution) -> None:
        self._run = run
        # New results, in the order they will be handed over.
        self._ready: deque[Completion] = deque()
        # The first of them waits for the server's word.
        self._asked = False
        # Results the code has got that are not durable yet.
        self.unacknowledged = 0
        # What the code has got live, in bytes.
        self.given_bytes = 0

    def __bool__(self) -> bool:
        """Whether new results wait for their turn."""
        return bool(self._ready)

    def add(self, completion: Completion) -> None:
        """A new result."""
        self._ready.append(completion)

    def next(self) -> bool:
        """Hands exactly one result to the code; answers whether it did."""
        run = self._run
        run.readings.moved()
        record = run.ledger.pending()
        if record is not None:
            return self._hand_over_recorded(record)
        self._discard_unwanted()
        if not self._ready and not run.draining:
            run.open_new()
            self._collect()
        if not self._ready or self._asked:
            return False
        completion = self._ready[0]
        pending = completion.pending
        pending.take_back()
        seq = run.ledger.next_seq()
        if completion.failure is not None:
            message = pending.failed(seq, completion.failure, completion.elapsed_us)
            self._ask(completion, "step_failed", message, self._verdict)
            return False
        if pending.start_child is not None and pending.start_child.start_only:
            pending.start_child.completed_seq = seq
            self._ask(completion, "start_child", pending.start_child, self._child_started)
            return False
        self._ready.popleft()
        self._hand_over(completion, seq)
        return True

    def _discard_unwanted(self) -> None:
        """A result whose waiter is gone is not handed over, and not recorded as if it had been."""
        while self._ready and self._ready[0].pending.state is State.CLOSED:
            self._run.waits.give_back(self._ready.popleft())

    def _hand_over_recorded(self, record: Step) -> bool:
        ledger = self._run.ledger
        if record.kind == CANCEL:
            ledger.cancel_request()
            ledger.hand_over(record)
            reason = json.loads(record.output.data) if record.HasField("output") else ""
            self._run.cancel_root(reason)
            return True
        pending = self._run.agenda.open.get(record.step_id)
        if pending is None:
            return False
        ledger.hand_over(record)
        if record.status == STEP_FAILED:
            self._fail(pending, record.failure, record.attempt_number)
        else:
            self._give(pending, record.output if record.HasField("output") else None)
        return True

    def _hand_over(self, completion: Completion, seq: int) -> None:
        pending = completion.pending
        self.record(pending.completed(seq, completion.output, completion.elapsed_us, completion.signal_id))
        if pending.request.kind == CANCEL:
            self._run.agenda.set(pending, State.CLOSED)
            self._run.cancel_root(self._run.waits.cancel_reason)
        else:
            self._give(pending, completion.output)

    def _give(self, pending: Pending, output: Payload | None) -> None:
        """Gives the code its result: always the decoded copy of the recorded bytes."""
        self._run.agenda.set(pending, State.CLOSED)
        if pending.future.done():
            return
        if output is not None and pending.request.record is None:
            self.given_bytes += len(output.data)
        try:
            pending.future.set_result(pending.decode(output))
        except PayloadError as error:
            told = f"The result of {pending.request.step_id!r} cannot be read: {error}"
            pending.future.set_exception(PayloadError(told, type=error.type, path=error.path))

    def _fail(self, pending: Pending, failure: Failure, attempts: int) -> None:
        self._run.agenda.set(pending, State.CLOSED)
        if not pending.future.done():
            pending.future.set_exception(error_of(pending, failure, attempts))

    def record(self, message: pb.StepCompleted) -> None:
        """Sends a result that the code has got; no body begins before it is durable."""
        self.unacknowledged += 1
        self._run.send("step_completed", message, self._durable)

    def _durable(self, _: pb.Answer | None) -> None:
        self.unacknowledged -= 1
        # Bodies are all that waits for this: a whole turn would find nothing else to do.
        attempts.begin_bodies(self._run)

    def _ask(
        self,
        completion: Completion,
        name: str,
        message: Message,
        answered: Callable[[Completion, pb.Answer | None], None],
    ) -> None:
        """Asks the server about the first result; nothing is handed over before it has answered."""

        def heard(answer: pb.Answer | None) -> None:
            self._asked = False
            self._ready.popleft()
            answered(completion, answer)
            self._run.turn()

        self._asked = True
        self._run.send(name, message, heard)

    def _verdict(self, completion: Completion, answer: pb.Answer | None) -> None:
        """Whether another attempt follows a failed one."""
        pending = completion.pending
        judged = answer.step_failed if answer is not None and answer.HasField("step_failed") else pb.StepFailedAnswer()
        if judged.will_retry:
            self._run.agenda.set(pending, State.HELD)
            pending.in_doubt = False
            pending.due_us = judged.retry_at_us or self._run.waits.now_us() + judged.delay_ms * 1_000
        else:
            assert completion.failure is not None
            self._fail(pending, completion.failure, pending.attempt_number)

    def _child_started(self, completion: Completion, answer: pb.Answer | None) -> None:
        """A child that is not waited for exists: its handle is the result."""
        pending = completion.pending
        if answer is not None and answer.HasField("start_child"):
            pending.child_run_id = answer.start_child.child_run_id
        self._give(pending, None)

    def _collect(self) -> None:
        """Looks whether something the code waits for has happened: a cancel, an answer, a signal, an end, a time."""
        run = self._run
        if run.waits.take_cancel():
            pending = Pending(run.ledger.cancel_request(), run.future(), lambda _: None)
            pending.next_attempt()
            self.add(Completion(pending, output=Payload(data=json.dumps(run.waits.cancel_reason).encode())))
            return
        if run.waits.resolved:
            effects.hear(run)
        if not run.agenda.held:
            return
        now_us = run.waits.now_us()
        # Of times that have come together, the earlier first: a run may wake up late.
        for pending in sorted(run.agenda.held.values(), key=_due_us):
            completion = run.waits.met(pending, now_us)
            if completion is not None:
                self.add(completion)
            elif pending.request.kind != FUNCTION or pending.due_us is None or pending.due_us > now_us:
                continue
            elif pending.in_doubt:
                effects.ask(run, pending)
            else:
                pending.due_us = None
                pending.next_attempt()
                run.agenda.set(pending, State.WAITING)


def _due_us(pending: Pending) -> int:
    return pending.due_us or 0
