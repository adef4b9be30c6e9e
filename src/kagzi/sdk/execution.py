"""One run, executed. The code runs on a loop of its own until it rests; then exactly one result is handed to it, on
record or new, and it runs again. No step body begins while results on record remain, or before every result the code
has got is durable. When nothing can move by itself the run is given back with what it waits for; its code is left as it
is, to go on from there when the run comes back here before anything else happened to it.

`_turn` is the whole of it: it shows every way a run goes on and every way it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import CHILD_WORKFLOW, SIGNAL, ErrorDetail, Payload
from kagzi.sdk import abandonment, attempts, endings, tracing
from kagzi.sdk.agenda import Agenda
from kagzi.sdk.context import Context
from kagzi.sdk.current import CurrentStep
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import NondeterminismError, PayloadError
from kagzi.sdk.handover import Handover
from kagzi.sdk.history import Ledger, Mismatch
from kagzi.sdk.host import Host
from kagzi.sdk.journal import RunLogger
from kagzi.sdk.leftover import Leftover
from kagzi.sdk.loop import RunLoop, Spinning
from kagzi.sdk.pending import Completion, Pending
from kagzi.sdk.readings import Readings
from kagzi.sdk.values import Values
from kagzi.sdk.waits import Waits

if TYPE_CHECKING:
    from kagzi.sdk.spans import Sitting

log = logging.getLogger("kagzi.worker")

# A run that goes on from memory and finds, this often in a row, nothing of what it was woken for is given back to be
# replayed: if the record knows of something that memory does not, it would go round for ever.
_FRUITLESS = 3
# What a run takes besides its payloads, each of its steps, and each byte of a payload once the code has it as a value.
_BYTES_A_RUN = 16_384
_BYTES_A_STEP = 512
_BYTES_A_BYTE = 4


class Execution:
    """A delivered run until it is given away, and after that for as long as it stays in memory."""

    def __init__(self, delivery: pb.Delivery, definition: Workflow[Any, Any], host: Host) -> None:
        self.run_id = delivery.run_id
        self.token = delivery.claim_token
        self.workflow_type = delivery.workflow_type
        self.queue = delivery.task_queue
        self.delivery = delivery
        self.definition = definition
        self.host = host
        self.values = Values(host.codecs, host.namespace, delivery.workflow_type)
        self.ledger = Ledger(delivery.history, host.most_steps)
        self.waits = Waits(delivery)
        self.agenda = Agenda()
        self.readings = Readings(self)
        self.handover = Handover(self)
        self.loop = RunLoop(self.readings, on_trouble=self._trouble)
        self.over = False
        self.draining = False
        # It was given back and stays in memory: nothing moves.
        self.suspended = False
        # How far it was when it was last suspended, and how often it came back since without getting further.
        self._reached = (-1, -1)
        self._fruitless = 0
        self._root: asyncio.Task[Any] | None = None
        # What the root has left behind, once it is done.
        self._leftover: Leftover | None = None
        self._real = asyncio.get_running_loop()
        self._turning = False
        self._timer: asyncio.TimerHandle | None = None
        # The span of this sitting, where somebody traces.
        self.sitting: Sitting | None = None

    @property
    def busy(self) -> bool:
        """Whether a step body runs."""
        return self.agenda.running > 0

    @property
    def replaying(self) -> bool:
        """Whether what the code does now it has done before."""
        return self.ledger.replaying or self.ledger.behind

    @cached_property
    def logger(self) -> RunLogger:
        """Says something about the run, unless the code only repeats what it did."""
        return RunLogger(self)

    def begin(self) -> None:
        """Runs the code from the top."""
        self.sitting = tracing.sitting(self.host.namespace, self.delivery)
        context = Context(self)
        try:
            arguments = (context, self._input()) if self._takes_input else (context,)
        except PayloadError as error:
            self._finish(*endings.undecodable(error))
            return
        self._root = self.loop.create_root(self.definition.function(*arguments), contextvars.copy_context())  # type: ignore[arg-type]
        self._turn()

    @property
    def _takes_input(self) -> bool:
        given = self.delivery.HasField("input")
        return self.definition.takes_input and (given or not self.definition.has_default)

    def _input(self) -> Any:
        # No input is None, which must be one that the workflow takes.
        given = self.delivery.input if self.delivery.HasField("input") else Payload(data=b"null")
        return self.values.decode(given, self.definition.input, "input")

    def resume(self, delivery: pb.Delivery) -> None:
        """The run is this worker's again, and nothing was recorded since it was suspended: it goes on from there."""
        self.token = delivery.claim_token
        self.suspended = False
        self.sitting = tracing.sitting(self.host.namespace, delivery)
        self.waits.resume(delivery)
        self._turn()

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes."""
        payloads = self._delivered_bytes + self.handover.given_bytes
        return _BYTES_A_RUN + _BYTES_A_STEP * len(self.ledger.requests) + _BYTES_A_BYTE * payloads

    @cached_property
    def _delivered_bytes(self) -> int:
        return self.delivery.ByteSize()

    def wake(self, facts: Sequence[pb.Fact]) -> None:
        """Something happened that the run may wait for."""
        self.waits.learn(facts)
        self.turn()

    def cancel(self, request: pb.CancelRequested) -> None:
        """Somebody asks the run to end."""
        self.waits.learn([pb.Fact(cancel_requested=request)])
        self.turn()

    def complete(self, completion: Completion) -> None:
        """A new result, to be handed over at its turn."""
        self.handover.add(completion)
        self.turn()

    def turn(self) -> None:
        """Takes a turn soon; any number of calls before it are one."""
        if not self._turning and not self.over and not self.suspended:
            self._turning = True
            self._real.call_soon(self._turn)

    def _turn(self) -> None:
        """Runs the code until it rests, handing over one result at a time; then goes on, waits, or ends."""
        self._turning = False
        if self.over or self.suspended or self._root is None:
            return
        try:
            if not self.loop.quiescent:
                self.loop.pump()
            while not self._ended(self._root) and self.ledger.mismatch is None and self.handover.next():
                self.loop.pump()
        except Spinning as error:
            if self._leftover is None:
                self._finish(*endings.failed(error, self))
                return
            self._leftover.drop_all(str(error))
        mismatch = self.ledger.mismatch or self.ledger.unreached()
        if mismatch is not None:
            mismatch = endings.explained(mismatch, self._root)
            self._tell_of(mismatch)
            self._finish(*endings.parked(mismatch, self.definition))
        elif self._ended(self._root):
            abandonment.everything(self)
            self._finish(*endings.of(self._root, self))
        elif self.draining:
            self._finish("release", endings.release())
        elif not self.handover:
            self._go_on()
        # Otherwise the next result waits for the server's word, which brings another turn.

    def _ended(self, root: asyncio.Task[Any]) -> bool:
        """Whether the code has ended, with all that it left behind."""
        if not root.done():
            return False
        if self._leftover is None:
            if not self.loop.busy:
                return True
            self._leftover = Leftover(self)
        return self._leftover.ended()

    def _tell_of(self, mismatch: Mismatch) -> None:
        # Not the run's own logger, which is silent in replay.
        error = NondeterminismError(mismatch.message, recorded=mismatch.recorded, requested=mismatch.requested)
        log.error(
            "run %s of %r stands still until other code, or a person, helps it. %s",
            self.run_id,
            self.workflow_type,
            error,
        )

    def _go_on(self) -> None:
        """The code rests and waits for something new: begins bodies, waits in place, or gives the run back."""
        attempts.begin_bodies(self)
        due_us = self.agenda.earliest_due_us()
        soon = due_us is not None and due_us - self.waits.now_us() < self.host.in_place_us
        if soon or self.agenda.moves_by_itself(self.host.in_place_us):
            self._wait_in_place(due_us)
        elif self.agenda.held:
            self._suspend()
        else:
            self._finish(*endings.stuck(self))

    def _suspend(self) -> None:
        """Gives the run back. Its code hears nothing of that, unless it cannot stay in memory."""
        held = self.agenda.held.values()
        if self._leftover is not None:
            self._leftover.tell()
        if not self.host.residents.open:
            self._finish("suspend", endings.suspended(held, kept=False))
            return
        reached = (self.ledger.position, self.ledger.seq)
        self._fruitless = self._fruitless + 1 if reached == self._reached else 0
        self._reached = reached
        if self._fruitless >= _FRUITLESS:
            self._finish("release", endings.release())
            return
        self._stop_timer()
        self.suspended = True
        self.send("suspend", endings.suspended(held, kept=True), self._stay)
        self._rise("suspend")
        self.host.done(self)

    def _stay(self, _: pb.Answer | None) -> None:
        if self.host.residents.open:
            self.host.residents.keep(self)
        else:
            self.drop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_in_place(self, due_us: int | None) -> None:
        self._stop_timer()
        if due_us is not None:
            delay = max(0.0, (due_us - self.waits.now_us()) / 1_000_000)
            self._timer = self._real.call_later(delay, self.turn)
        step_ids = [
            pending.step_id
            for pending in self.agenda.held.values()
            if pending.request.kind in (SIGNAL, CHILD_WORKFLOW) or pending.in_doubt
        ]
        if step_ids and self.waits.register(step_ids):
            self.send("wait", pb.Wait(step_ids=step_ids), self._waited)

    def _waited(self, answer: pb.Answer | None) -> None:
        if answer is not None and answer.HasField("wait"):
            self.wake(answer.wait.facts)

    def open_new(self) -> None:
        """What the code asked for since it last rested begins."""
        for pending in self.agenda.take_new():
            self._open_up(pending)

    def _open_up(self, pending: Pending) -> None:
        attempts.open_up(self, pending)

    def cancel_root(self, reason: str) -> None:
        """The code is asked to end, where it waits: its root, or all that its root has left behind."""
        assert self._root is not None
        self.waits.cancel_reason = reason
        if self._leftover is not None:
            self._leftover.cancel()
        else:
            self._root.cancel(reason or "the run was asked to cancel")

    async def result(self, pending: Pending) -> Any:
        """What the code gets for a step it asked for; called by its Context."""
        self.agenda.add(pending)
        try:
            return await pending.future
        except asyncio.CancelledError:
            abandonment.waiter_gone(self, pending)
            raise

    def current(self, pending: Pending) -> CurrentStep:
        """What a body can know of the step it runs for."""
        return CurrentStep(
            namespace=self.host.namespace,
            run_id=self.run_id,
            workflow_attempt=self.delivery.attempts,
            step_id=pending.step_id,
            attempt_id=pending.attempt_id,
            idempotency_key=f"{self.run_id}/{pending.step_id}",
        )

    def future(self) -> asyncio.Future[Any]:
        """A future of the run's loop that its code never sees bare."""
        return asyncio.Future(loop=self.loop)

    def send(self, name: str, body: Message, answered: Callable[[pb.Answer | None], None] | None = None) -> None:
        """An operation of this run. A refused one ends the execution here: its run is somebody else's, or no one's.
        Code that does not fit its history is not believed: what it does is sent no more.
        """

        def heard(answer: pb.Answer | None) -> None:
            if answer is not None and answer.HasField("refused"):
                self._refused(name, answer.refused)
            elif answered is not None and not self.over:
                answered(answer)

        if not self.over and self.ledger.mismatch is None:
            self.host.send(self, name, body, heard)

    def _refused(self, name: str, refusal: ErrorDetail) -> None:
        if self.over:
            return
        if refusal.code == ErrorDetail.LIMIT_EXCEEDED:
            self.logger.error("%s was refused, and the run has failed: %s", name, refusal.message)
        elif refusal.code not in (ErrorDetail.LEASE_LOST, ErrorDetail.PREDECESSOR_REFUSED):
            self.logger.error("%s was refused: %s. The run is tried again from its history", name, refusal.message)
        self.drop()

    def interrupt(self) -> None:
        """The worker's time is over: bodies are cancelled without counting a failure, and the run is given back."""
        self.draining = True
        abandonment.interrupt(self)
        self.turn()

    def drop(self) -> None:
        """The run is not this worker's any more: closes everything, records nothing."""
        self._stop()
        self._rise("nothing")
        self.loop.drop()
        self.host.done(self)

    def _finish(self, name: str, body: Message) -> None:
        """The last operation of this execution."""
        if self.over:
            return
        self._stop()
        self.host.send(self, name, body, None)
        self._rise(name)
        self.loop.drop()
        self.host.done(self)

    def _rise(self, how: str) -> None:
        """The sitting is over."""
        if self.sitting is not None:
            self.sitting.end(how)
            self.sitting = None

    def _stop(self) -> None:
        self.over = True
        self._leftover = None
        self._stop_timer()
        for pending in self.agenda.open.values():
            pending.stop_body()
            pending.take_back()

    def _trouble(self, trouble: dict[str, Any]) -> None:
        self.logger.error("%s", trouble.get("message"), exc_info=trouble.get("exception"))
