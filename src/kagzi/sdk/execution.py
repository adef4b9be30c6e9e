"""One run, executed. The code runs on a loop of its own until it rests; then exactly one result is handed to it, on
record or new, and it runs again. No step body begins while results on record remain, or before every result the code
has got is durable. When nothing can move by itself the run is given back with what it waits for.

`_turn` is the whole of it: it shows every way a run goes on and every way it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import (
    CANCEL,
    CHILD_WORKFLOW,
    FUNCTION,
    SIGNAL,
    STEP_FAILED,
    Payload,
    Step,
)
from kagzi.sdk import abandonment, effects, endings
from kagzi.sdk.agenda import Agenda
from kagzi.sdk.context import Context
from kagzi.sdk.definition import Workflow, result_of
from kagzi.sdk.errors import PayloadError
from kagzi.sdk.history import Ledger, Mismatch
from kagzi.sdk.host import Host
from kagzi.sdk.loop import RunLoop, Spinning
from kagzi.sdk.pending import Completion, Pending, State
from kagzi.sdk.readings import Readings
from kagzi.sdk.values import Values, error_of
from kagzi.sdk.waits import Waits

_RECHECK_SECS = 0.2


class Execution:
    """A delivered run until it is given away."""

    def __init__(self, delivery: pb.Delivery, definition: Workflow[Any, Any], host: Host) -> None:
        self.run_id = delivery.run_id
        self.token = delivery.claim_token
        self.workflow_type = delivery.workflow_type
        self.queue = delivery.task_queue
        self.delivery = delivery
        self.definition = definition
        self.host = host
        self.values = Values(host.codecs, host.namespace, delivery.workflow_type)
        self.ledger = Ledger(delivery.history)
        self.waits = Waits(delivery)
        self.agenda = Agenda()
        self.readings = Readings(self)
        self.loop = RunLoop(self.readings, on_trouble=self._trouble)
        self._root: asyncio.Task[Any] | None = None
        self._real = asyncio.get_running_loop()
        # New results, in the order they will be handed over.
        self._ready: deque[Completion] = deque()
        # A failed attempt at the head of `_ready` whose fate the server has not said yet.
        self._judged = False
        # Results the code has got that are not durable yet.
        self._unacknowledged = 0
        self._turning = False
        self.over = False
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self.mismatch: Mismatch | None = None

    @property
    def busy(self) -> bool:
        """Whether a step body runs."""
        return self.agenda.running > 0

    @property
    def replaying(self) -> bool:
        """Whether what the code does now it has done before."""
        return self.ledger.replaying

    def begin(self) -> None:
        """Runs the code from the top."""
        context = Context(self)
        try:
            arguments = (context, self._input()) if self.definition.takes_input else (context,)
        except PayloadError as error:
            self._finish(*endings.undecodable(error))
            return
        self._root = self.loop.create_root(self.definition.function(*arguments), contextvars.copy_context())  # type: ignore[arg-type]
        self._turn()

    def _input(self) -> Any:
        given = self.delivery.input if self.delivery.HasField("input") else None
        return self.values.decode(given, self.definition.input, "input")

    def wake(self, facts: Sequence[pb.Fact]) -> None:
        """Something happened that the run may wait for."""
        self.waits.learn(facts)
        self.turn()

    def cancel(self, request: pb.CancelRequested) -> None:
        """Somebody asks the run to end."""
        self.waits.learn([pb.Fact(cancel_requested=request)])
        self.turn()

    def turn(self) -> None:
        """Takes a turn soon; any number of calls before it are one."""
        if not self._turning and not self.over:
            self._turning = True
            self._real.call_soon(self._turn)

    def _turn(self) -> None:
        """Runs the code until it rests, handing over one result at a time; then goes on, waits, or ends."""
        self._turning = False
        if self.over or self._root is None:
            return
        try:
            self.loop.pump()
            while not self._root.done() and self.mismatch is None and self._hand_over_next():
                self.loop.pump()
        except Spinning as error:
            self._finish(*endings.failed(error))
            return
        mismatch = self.mismatch or self.ledger.mismatch or (self.ledger.unreached() if self._at_rest() else None)
        if mismatch is not None:
            self._finish(*endings.parked(mismatch, self.definition))
        elif self._root.done():
            abandonment.everything(self)
            self._finish(*endings.of(self._root, self))
        elif self._draining:
            self._finish("release", endings.release())
        elif self.ledger.replaying or self._ready:
            # The head of the queue waits for the server's word on a failed attempt.
            return
        else:
            self._go_on()

    def _at_rest(self) -> bool:
        assert self._root is not None
        return self._root.done() or (self.ledger.replaying and not self._judged)

    def _go_on(self) -> None:
        """The code rests and waits for something new: begins bodies, waits in place, or gives the run back."""
        self._begin_bodies()
        due_us = self.agenda.earliest_due_us()
        soon = due_us is not None and due_us - self.waits.now_us() < self.host.in_place_us
        if soon or self.agenda.moves_by_itself(self.host.in_place_us):
            self._wait_in_place(due_us)
        elif self.agenda.held:
            self._finish("suspend", endings.suspended(list(self.agenda.held.values())))
        else:
            self._finish(*endings.stuck(self))

    def _open_up(self, pending: Pending) -> None:
        """A step the code asked for, now that the run is live: a body may run, anything else goes on record."""
        kind = pending.request.kind
        record = pending.request.record
        if kind == FUNCTION:
            effects.resume(self, pending) if effects.in_doubt(pending) else self._schedule(pending)
            return
        self.agenda.set(pending, State.HELD)
        pending.first_attempt()
        if record is not None and record.HasField("wake_at"):
            pending.due_us = record.wake_at.ToMicroseconds()
            pending.duration_ms = None
        if pending.recorded:
            return
        pending.recorded = True
        if kind == CHILD_WORKFLOW and pending.start_child is not None:
            pending.start_child.attempt_id = pending.attempt_id
            pending.start_child.child.run_id = pending.child_run_id = endings.child_run_id(pending.attempt_id)
            self.send("start_child", pending.start_child, lambda answer: self._child_started(pending, answer))
        else:
            self.send("step_started", pending.started(), lambda answer: self._timer_started(pending, answer))

    def _schedule(self, pending: Pending) -> None:
        """A plain step: its first attempt, the one after a crash, or the next one when its delay is over."""
        record = pending.request.record
        pending.attempt_number = 0 if record is None else record.attempt_number
        if record is not None and record.status == STEP_FAILED:
            pending.due_us = record.retry_at.ToMicroseconds()
            self.agenda.set(pending, State.HELD)
            return
        pending.next_attempt()
        self.agenda.set(pending, State.WAITING)

    def _child_started(self, pending: Pending, answer: pb.Answer | None) -> None:
        if answer is not None and answer.HasField("start_child"):
            pending.child_run_id = answer.start_child.child_run_id
            self.turn()

    def _timer_started(self, pending: Pending, answer: pb.Answer | None) -> None:
        pending.duration_ms = None
        if answer is not None and answer.HasField("step_started"):
            self.waits.observe(answer.step_started.now_us)
            if answer.step_started.HasField("wake_at_us"):
                pending.due_us = answer.step_started.wake_at_us
        self.turn()

    def _begin_bodies(self) -> None:
        if self._unacknowledged or self._draining:
            return
        if self.agenda.waiting and not self.host.may_begin(self):
            # The lease is too old; a heartbeat renews it, or says that it is lost.
            self._real.call_later(_RECHECK_SECS, self.turn)
            return
        for pending in self.agenda.take_waiting():
            self.agenda.set(pending, State.RUNNING)
            if pending.effect:
                pending.recorded = True
                self.send("step_started", pending.started(), partial(self._intent_durable, pending))
            else:
                pending.withdraw = self.host.send_soon(self, "step_started", pending.started())
                effects.run_body(self, pending)

    def _intent_durable(self, pending: Pending, _: pb.Answer | None) -> None:
        if pending.state is State.RUNNING and not self.over:
            effects.run_body(self, pending)

    def body_ended(self, pending: Pending, result: Any, error: BaseException | None, elapsed_us: int) -> None:
        """A step's body has ended; called on the worker's loop."""
        if self.over or pending.state is not State.RUNNING:
            return
        pending.stop = None
        if error is None:
            assert pending.step is not None
            try:
                output = self.values.encode(result, result_of(pending.step.function), "step")
                self.complete(Completion(pending, output=output, elapsed_us=elapsed_us))
                return
            except PayloadError as refused:
                error = refused
        effects.failed(self, pending, error, elapsed_us)

    def complete(self, completion: Completion) -> None:
        """A new result, to be handed over at its turn."""
        self._ready.append(completion)
        self.turn()

    def _hand_over_next(self) -> bool:
        """Hands exactly one result to the code; answers whether it did."""
        self.readings.moved()
        record = self.ledger.pending()
        if record is not None:
            return self._hand_over_recorded(record)
        if self._draining and not self._ready:
            return False
        if not self._ready:
            for pending in self.agenda.take_new():
                self._open_up(pending)
            self._collect()
        while self._ready:
            completion = self._ready[0]
            if completion.pending.state is State.CLOSED:
                self._ready.popleft()
                self.waits.give_back(completion)
            elif completion.failure is not None:
                return self._judge(completion)
            else:
                self._ready.popleft()
                self._hand_over(completion)
                return True
        return False

    def _hand_over_recorded(self, record: Step) -> bool:
        if record.kind == CANCEL:
            self.ledger.cancel_request()
            self.ledger.hand_over(record)
            self._cancel_root()
            return True
        pending = self.agenda.open.get(record.step_id)
        if pending is None:
            return False
        self.ledger.hand_over(record)
        self._resolve(pending, record.output if record.HasField("output") else None, record)
        return True

    def _resolve(self, pending: Pending, output: Payload | None, record: Step | None = None) -> None:
        """Gives the code its result: always the decoded copy of the recorded bytes."""
        self.agenda.set(pending, State.CLOSED)
        if pending.future.done():
            return
        if record is not None and record.status == STEP_FAILED:
            pending.future.set_exception(error_of(pending, record.failure, record.attempt_number))
            return
        try:
            pending.future.set_result(pending.decode(output))
        except PayloadError as error:
            pending.future.set_exception(error)

    def _hand_over(self, completion: Completion) -> None:
        pending = completion.pending
        if pending.withdraw is not None:
            pending.withdraw()
        seq = self.ledger.next_seq()
        if pending.request.kind == CANCEL:
            self.agenda.set(pending, State.CLOSED)
            self.record(pending.completed(seq, None, 0, ""))
            self._cancel_root()
            return
        message = pending.completed(seq, completion.output, completion.elapsed_us, completion.signal_id)
        self.record(message)
        self._resolve(pending, completion.output)

    def record(self, message: pb.StepCompleted) -> None:
        """Sends a result that the code has got; no body begins before it is durable."""
        self._unacknowledged += 1
        self.send("step_completed", message, self._durable)

    def _durable(self, _: pb.Answer | None) -> None:
        self._unacknowledged -= 1
        if not self._unacknowledged:
            self.turn()

    def _judge(self, completion: Completion) -> bool:
        """A failed attempt: the server decides whether another follows. Nothing is handed over before it has."""
        if not self._judged:
            self._judged = True
            pending = completion.pending
            if pending.withdraw is not None:
                pending.withdraw()
            message = pending.failed(self.ledger.next_seq(), completion.failure, completion.elapsed_us)
            self.send("step_failed", message, lambda answer: self._verdict(completion, answer))
        return False

    def _verdict(self, completion: Completion, answer: pb.Answer | None) -> None:
        self._judged = False
        if self.over or not self._ready or self._ready[0] is not completion:
            return
        self._ready.popleft()
        pending = completion.pending
        judged = answer.step_failed if answer is not None and answer.HasField("step_failed") else pb.StepFailedAnswer()
        if pending.state is State.CLOSED:
            pass
        elif judged.will_retry:
            self.agenda.set(pending, State.HELD)
            pending.due_us = self.waits.now_us() + judged.delay_ms * 1_000
        elif not pending.future.done():
            assert completion.failure is not None
            self.agenda.set(pending, State.CLOSED)
            pending.future.set_exception(error_of(pending, completion.failure, pending.attempt_number))
        self.turn()

    def _collect(self) -> None:
        """Looks whether something the code waits for has happened: a cancel, a signal, a child's end, a time."""
        cancel = self.waits.take_cancel()
        if cancel:
            pending = Pending(self.ledger.cancel_request(), self.future(), lambda _: None)
            pending.next_attempt()
            self._ready.append(Completion(pending))
            return
        if not self.agenda.held:
            return
        now_us = self.waits.now_us()
        for pending in list(self.agenda.held.values()):
            completion = self.waits.met(pending, now_us)
            if completion is not None:
                self._ready.append(completion)
            elif pending.request.kind == FUNCTION and pending.due_us is not None and pending.due_us <= now_us:
                pending.due_us = None
                pending.next_attempt()
                self.agenda.set(pending, State.WAITING)

    def _wait_in_place(self, due_us: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_us is not None:
            delay = max(0.0, (due_us - self.waits.now_us()) / 1_000_000)
            self._timer = self._real.call_later(delay, self.turn)
        step_ids = [
            pending.step_id for pending in self.agenda.held.values() if pending.request.kind in (SIGNAL, CHILD_WORKFLOW)
        ]
        if step_ids and self.waits.register(step_ids):
            self.send("wait", pb.Wait(step_ids=step_ids), self._waited)

    def _waited(self, answer: pb.Answer | None) -> None:
        if answer is not None and answer.HasField("wait"):
            self.wake(answer.wait.facts)

    def _cancel_root(self) -> None:
        assert self._root is not None
        self._root.cancel(self.waits.cancel_reason)

    def request(self, pending: Pending) -> asyncio.Future[Any]:
        """The code waits for a step; called by its Context."""
        self.agenda.add(pending)
        pending.future.add_done_callback(
            lambda future: abandonment.waiter_gone(self, pending) if future.cancelled() else None
        )
        return pending.future

    def future(self) -> asyncio.Future[Any]:
        """A future of the run's loop that its code never sees bare."""
        return asyncio.Future(loop=self.loop)

    def send(self, name: str, body: Message, answered: Callable[[pb.Answer | None], None] | None = None) -> None:
        """An operation of this run. A refused one ends the execution here: its run is somebody else's, or no one's."""

        def heard(answer: pb.Answer | None) -> None:
            if answer is not None and answer.HasField("refused"):
                self.drop()
            elif answered is not None and not self.over:
                answered(answer)

        self.host.send(self, name, body, heard)

    def interrupt(self) -> None:
        """The worker's time is over: bodies are cancelled without counting a failure, and the run is given back."""
        self._draining = True
        abandonment.interrupt(self)
        self.turn()

    def drop(self) -> None:
        """The run is not this worker's any more: closes everything, records nothing."""
        self._stop()
        self.loop.drop()
        self.host.done(self)

    def _finish(self, name: str, body: Message) -> None:
        """The last operation of this execution."""
        if self.over:
            return
        self._stop()
        self.host.send(self, name, body, None)
        self.loop.drop()
        self.host.done(self)

    def _stop(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        for pending in self.agenda.open.values():
            if pending.stop is not None:
                pending.stop()
            if pending.withdraw is not None:
                pending.withdraw()

    def _trouble(self, trouble: dict[str, Any]) -> None:
        if not self.replaying:
            Context(self).logger.error("%s", trouble.get("message"), exc_info=trouble.get("exception"))
