"""One handler run on its worker. Its phases are a coroutine on the worker's own loop: nothing is replayed, because the
server says which phase comes next. Here is what the phases need: operations that are answered, bodies that can be
stopped, values by annotation, and every way a run ends. Nothing is sent once the run is somebody else's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import cached_property, partial
from typing import Any

import uuid_utils
from google.protobuf.message import Message

from kagzi.automations import phases
from kagzi.automations.beginning import Beginning
from kagzi.automations.faults import fault_of, place_of
from kagzi.automations.handlers import Handler
from kagzi.automations.mutation import open_phase
from kagzi.automations.records import Record, Records
from kagzi.protocol.v1 import automation_pb2 as automation
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure, Payload
from kagzi.sdk import bodies, payload
from kagzi.sdk.calls import error_from_detail
from kagzi.sdk.codec import Role
from kagzi.sdk.current import CurrentStep
from kagzi.sdk.errors import PayloadError
from kagzi.sdk.host import Host
from kagzi.sdk.values import Values, failure_of

# How soon a lease that is too old to begin is looked at again.
_RECHECK_SECS = 0.2
# What one operation may carry in all; the server takes no larger frame.
MOST_BYTES = 3_500_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Refusals that say what is wrong with what was asked; the others are no fault of the handler's code.
_SAYS_WHY = (
    ErrorDetail.INVALID_ARGUMENT,
    ErrorDetail.LIMIT_EXCEEDED,
    ErrorDetail.PRECONDITION_FAILED,
    ErrorDetail.NOT_FOUND,
    ErrorDetail.CONFLICT,
)


@dataclass(frozen=True, slots=True)
class Posted:
    """An operation that was sent, until its answer is drawn."""

    name: str
    # The attempt of the step whose phase it ends; empty if it ends none.
    attempt_id: str
    answered: asyncio.Future[pb.Answer | None]


class _End(Enum):
    """Why a run is stopped from outside."""

    DROP = auto()
    RELEASE = auto()
    CANCEL = auto()


class HandlerRun:
    """A delivered handler run until it is given away."""

    def __init__(self, delivery: pb.Delivery, handler: Handler, host: Host) -> None:
        self.run_id = delivery.run_id
        self.token = delivery.claim_token
        self.handler = handler
        self.host = host
        self.task = delivery.handler
        self.records = Records(delivery.history)
        # What a person said became of the mutation, when that arrives while the run is here.
        self.resolved: automation.Mutation | None = None
        self.cancelled: pb.CancelRequested | None = None
        self._values = Values(host.codecs, host.namespace, handler.automation.name)
        self._workflow_attempt = delivery.attempts
        self._now_us = delivery.now_us
        self._read_at = time.monotonic()
        self._flow: asyncio.Task[None] | None = None
        self._end: _End | None = None
        # A tool is under way: a cancel waits until what became of it is on record.
        self._uninterrupted = False
        self._over = False
        # The step whose body runs now, for people.
        self.body_of = ""
        # The step whose phase runs, until the operation that ends it is answered.
        self.open: Record | None = None
        self.wake(delivery.facts)

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Says something about the run."""
        name = f"{self.handler.automation.name}.{self.handler.name}"
        return logging.LoggerAdapter(
            logging.getLogger(f"kagzi.automation.{name}"), {"run_id": self.run_id, "workflow": name}
        )

    @property
    def trigger(self) -> str:
        """Why it was started, in a word."""
        return automation.HandlerTrigger.Name(self.task.trigger).removeprefix("TRIGGER_").lower()

    def now_us(self) -> int:
        """The database's time in microseconds, as far as it is known here."""
        return self._now_us + round((time.monotonic() - self._read_at) * 1_000_000)

    def now(self) -> datetime:
        """The same as a datetime."""
        return _EPOCH + timedelta(microseconds=self.now_us())

    def begin(self) -> None:
        """Goes on with the phase that the server named."""
        self._flow = asyncio.get_running_loop().create_task(self._live(), name=f"handler {self.handler.name}")

    def wake(self, facts: Sequence[pb.Fact]) -> None:
        """Something happened that concerns the run."""
        for fact in facts:
            if fact.HasField("mutation_resolved"):
                self.resolved = fact.mutation_resolved
            elif fact.HasField("cancel_requested"):
                self.cancel(fact.cancel_requested)

    def cancel(self, request: pb.CancelRequested) -> None:
        """Somebody asks the run to end. A tool under way is not cut off: that would only make its outcome doubtful."""
        self.cancelled = request
        if not self._uninterrupted:
            self._stop(_End.CANCEL)

    def interrupt(self) -> None:
        """The worker's time is over: the run is given back as it is."""
        self._stop(_End.RELEASE)

    def drop(self) -> None:
        """The run is not this worker's any more: stops everything, sends nothing."""
        self._over = True
        self._stop(_End.DROP)
        self.host.done(self)

    def _stop(self, end: _End) -> None:
        if self._end is not _End.DROP:
            self._end = end
        if self._flow is not None:
            self._flow.cancel()

    async def _live(self) -> None:
        """The whole of it: every way a run goes on is in `phases`, every way it ends is here."""
        try:
            self.heed()
            name, body = await phases.perform(self)
        except asyncio.CancelledError:
            if self._end is None:
                raise
            name, body = self._ended_from_outside()
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is what its run failed with
            name, body = self.failed(error)
        self._finish(name, body)

    def _ended_from_outside(self) -> tuple[str, Message]:
        if self._end is _End.CANCEL and self.cancelled is not None:
            reason = self.cancelled.reason or "the run was asked to cancel"
            return "fail", pb.Fail(failure=Failure(type="Cancelled", message=reason), operation_id=new_id())
        return "release", pb.Release(operation_id=new_id())

    def heed(self) -> None:
        """Ends the run here if somebody asked for that while it could not be cut off."""
        if self.asked_to_end:
            self._end = self._end or _End.CANCEL
            raise asyncio.CancelledError

    def failed(self, error: BaseException) -> tuple[str, pb.Fail]:
        """An error ends the run; what it means for the automation goes along. The step it came from shows it too."""
        failure = failure_of(error)
        fault = fault_of(error)
        if fault == automation.FAULT_DEFECT and (place := place_of(error)):
            failure.message = f"{failure.message} ({place})"
        trace = error if fault == automation.FAULT_DEFECT else None
        self.logger.warning("the run failed: %s: %s", failure.type, failure.message, exc_info=trace)
        fail = pb.Fail(failure=failure, fault=fault, operation_id=new_id())
        if self.open is not None:
            fail.failed_step_id = self.open.step_id
            self.tell("step_failed", self.open.failed(self.records.ended(self.open), failure))
        return "fail", fail

    def _finish(self, name: str, body: Message | None) -> None:
        """The last operation; None when it was answered already."""
        if self._over:
            return
        self._over = True
        if body is not None:
            self.host.send(self, name, body, None)
        self.host.done(self)

    @property
    def asked_to_end(self) -> bool:
        """Whether somebody wants the run to end here."""
        return self._end is not None or self.cancelled is not None

    async def ask(self, name: str, body: Message) -> pb.Answer:
        """Sends an operation and waits for its answer. Raises the ServerError that a refusal means."""
        return await self.answer(self.post(name, body))

    def post(self, name: str, body: Message) -> Posted:
        """Sends an operation whose answer is drawn later."""
        self.require_room(name, body)
        answered: asyncio.Future[pb.Answer | None] = asyncio.get_running_loop().create_future()

        def heard(answer: pb.Answer | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        self.host.send(self, name, body, heard)
        step = getattr(body, "step", None)
        return Posted(name, step.attempt_id if step is not None else "", answered)

    async def answer(self, posted: Posted) -> pb.Answer:
        """Waits for the answer. Raises the ServerError that a refusal means."""
        answer = await posted.answered
        if answer is not None and answer.HasField("refused"):
            if answer.refused.code not in _SAYS_WHY:
                self.logger.error("%s was refused: %s", posted.name, answer.refused.message)
                self.drop()
                raise asyncio.CancelledError
            raise error_from_detail(answer.refused)
        if self.open is not None and self.open.attempt_id == posted.attempt_id:
            self.open = None
        return answer if answer is not None else pb.Answer()

    def require_room(self, name: str, body: Message) -> None:
        """Raises PayloadError for what no frame can carry."""
        size = body.ByteSize()
        if size > MOST_BYTES:
            raise PayloadError(
                f"Handler {self.handler.name!r} has {size} bytes to store at once ({name}): at most {MOST_BYTES} fit. "
                "Publish less in one run, or put the values elsewhere and publish where they are."
            )

    def tell(self, name: str, body: Message) -> None:
        """Sends an operation whose answer says no more than that it was accepted."""
        self.host.send(self, name, body, None)

    async def body(
        self,
        record: Record,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any] | None = None,
        *,
        timeout: timedelta | None = None,
        key: str = "",
        intended: bool = False,
        waits: Callable[[], None] | None = None,
        behind: Callable[[], None] | None = None,
    ) -> tuple[Any, int]:
        """Runs the users' code for a step; answers its result and how long it took in microseconds. It begins only
        while the lease is young enough, and stops when the run does. What is `intended`, by an operation that made it
        durable, is on record already and is not cut off by a cancel. `waits` is called when it first waits. `behind`
        sends what has to leave before anything of this step; it is called only if the body does not end at once.
        """
        loop = asyncio.get_running_loop()
        while not self.host.may_begin(self):
            # A heartbeat renews the lease, or says that it is lost; neither tells us.
            if behind is not None:
                behind()
            await asyncio.sleep(_RECHECK_SECS)
        ended: asyncio.Future[tuple[Any, BaseException | None, int]] = loop.create_future()
        self._uninterrupted = intended
        self.open = None if intended else record
        # A body runs in a copy of this context.
        phase = open_phase.set("" if intended else f"`{record.step_id}` of {self.handler.name!r}")
        stop = bodies.run(
            function,
            arguments,
            keywords or {},
            current=self._current(record, key),
            timeout=timeout,
            executor=self.host.executor,
            ended=lambda *result: None if ended.done() else ended.set_result(result),
            may_begin=partial(self.host.may_begin, self),
        )
        open_phase.reset(phase)
        if waits is not None:
            # Behind the first step of the body's task, which is scheduled already.
            loop.call_soon(waits)
        beginning = None if intended else Beginning(self, record, ended, behind)
        self.body_of = record.step_id
        try:
            result, error, elapsed_us = await ended
        except asyncio.CancelledError:
            stop()
            raise
        finally:
            self._uninterrupted = False
            self.body_of = ""
            if beginning is not None:
                beginning.over()
        if isinstance(error, asyncio.CancelledError):
            error = RuntimeError("the handler was cancelled from within")
        if error is not None:
            raise error
        return result, elapsed_us

    def _current(self, record: Record, key: str) -> CurrentStep:
        return CurrentStep(
            namespace=self.host.namespace,
            run_id=self.run_id,
            workflow_attempt=self._workflow_attempt,
            step_id=record.step_id,
            attempt_id=record.attempt_id,
            idempotency_key=key or f"{self.run_id}/{record.step_id}",
        )

    def encode(self, value: Any, annotation: Any, role: Role) -> Payload:
        """A value as it is stored."""
        return self._values.encode(value, annotation, role)

    def decode(self, stored: Payload | None, annotation: Any, role: Role) -> Any:
        """A stored value; None when nothing is stored."""
        return self._values.decode(stored, annotation, role)

    def encode_bytes(self, data: bytes, role: Role) -> Payload:
        """What is JSON already, as it is stored."""
        return self._values.pack(payload.Payload(data), role)

    def decode_bytes(self, stored: Payload, role: Role) -> bytes:
        """The JSON that is stored."""
        return self._values.unpack(stored, role).data


def new_id() -> str:
    """The id of an operation."""
    return str(uuid_utils.uuid4())
