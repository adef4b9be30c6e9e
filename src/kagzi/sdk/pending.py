"""A step that the code waits for: its place in the history, the future the code awaits, and what is known of it so
far.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

import uuid_utils

from kagzi.protocol.v1.common_pb2 import (
    STEP_RUNNING,
    STEP_STATUS_UNSPECIFIED,
    Failure,
    Payload,
    RetryPolicy,
    StepStatus,
)
from kagzi.protocol.v1.worker_pb2 import StartChild, StepCompleted, StepFailed, StepStarted
from kagzi.sdk.definition import Step
from kagzi.sdk.history import Request


class State(Enum):
    """What a step is doing."""

    # Asked for; the run has not come to rest since.
    NEW = auto()
    # Its body may run once everything before it is durable.
    WAITING = auto()
    # Its body runs, or its intent is on its way.
    RUNNING = auto()
    # It waits for time, a signal, a child, a person, or a further attempt.
    HELD = auto()
    # The code has its result, or gave it up.
    CLOSED = auto()


@dataclass(slots=True, eq=False)
class Pending:
    """One requested step until its result is handed over."""

    request: Request
    future: asyncio.Future[Any]
    # Turns the recorded bytes into what the code gets.
    decode: Callable[[Payload | None], Any]
    state: State = State.NEW
    attempt_id: str = ""
    attempt_number: int = 0
    input_hash: int = 0
    # A FUNCTION: what to run.
    step: Step[..., Any] | None = None
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)
    retry: RetryPolicy | None = None
    # Where the code asked for it: what it has set there, its body sees.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    # A SLEEP or a SIGNAL with a timeout: how long, until the server says until when.
    duration_ms: int | None = None
    # When it is due, on the database's clock: timer, end of waiting, next attempt.
    due_us: int | None = None
    # A SIGNAL: its name. A CHILD_WORKFLOW: the child, and what to start.
    target: str = ""
    child_run_id: str = ""
    start_child: StartChild | None = None
    # It is on record, or the operation that records it has left.
    recorded: bool = False
    # Takes back a StepStarted that has not left.
    withdraw: Callable[[], bool] | None = None
    # Its body has begun.
    begun: bool = False
    # Stops what runs.
    stop: Callable[[], None] | None = None
    # An effect: its outcome is UNKNOWN on record; how often a reconciler could not say.
    in_doubt: bool = False
    unclear: int = 0

    @property
    def step_id(self) -> str:
        return self.request.step_id

    @property
    def effect(self) -> bool:
        return self.step is not None and self.step.effect

    def first_attempt(self) -> None:
        """Goes on from the attempt on record, or is the first one."""
        record = self.request.record
        if record is not None and record.status == STEP_RUNNING:
            self.continue_attempt()
        else:
            self.attempt_number = 0 if record is None else record.attempt_number
            self.next_attempt()

    def continue_attempt(self) -> None:
        """Takes up the attempt on record."""
        record = self.request.record
        assert record is not None
        self.attempt_id, self.attempt_number, self.recorded = record.attempt_id, record.attempt_number, True

    def next_attempt(self) -> None:
        """A further attempt, under an id of its own."""
        self.attempt_id = str(uuid_utils.uuid4())
        self.attempt_number += 1
        self.recorded = self.begun = self.in_doubt = False
        self.withdraw = None

    def take_back(self) -> None:
        """Withdraws the record that it was reached, unless that has left."""
        if self.withdraw is not None:
            self.recorded = not self.withdraw()
            self.withdraw = None

    def stop_body(self) -> None:
        """Stops what runs for it, if something does."""
        if self.stop is not None:
            self.stop()
            self.stop = None

    def started(self) -> StepStarted:
        """The record that it was reached."""
        message = StepStarted(
            step_id=self.request.step_id,
            attempt_id=self.attempt_id,
            kind=self.request.kind,
            attempt_number=self.attempt_number,
            position=self.request.position,
            input_hash=self.input_hash,
            effect=self.effect,
            target=self.target,
            child_run_id=self.child_run_id,
        )
        if self.duration_ms is not None:
            message.duration_ms = self.duration_ms
        elif self.due_us is not None:
            message.wake_at_us = self.due_us
        return message

    def completed(
        self, seq: int, output: Payload | None = None, elapsed_us: int = 0, signal_id: str = ""
    ) -> StepCompleted:
        """The record of its result."""
        return StepCompleted(
            step_id=self.request.step_id,
            attempt_id=self.attempt_id,
            kind=self.request.kind,
            attempt_number=self.attempt_number,
            position=self.request.position,
            completed_seq=seq,
            output=output,
            input_hash=self.input_hash,
            elapsed_us=elapsed_us,
            signal_id=signal_id,
            child_run_id=self.child_run_id,
        )

    def failed(
        self,
        seq: int,
        failure: Failure | None,
        elapsed_us: int = 0,
        outcome: StepStatus.ValueType = STEP_STATUS_UNSPECIFIED,
    ) -> StepFailed:
        """The record that an attempt did not end well."""
        return StepFailed(
            step_id=self.request.step_id,
            attempt_id=self.attempt_id,
            kind=self.request.kind,
            attempt_number=self.attempt_number,
            position=self.request.position,
            completed_seq=seq,
            failure=failure,
            retry=self.retry,
            input_hash=self.input_hash,
            elapsed_us=elapsed_us,
            outcome=outcome,
            child_run_id=self.child_run_id,
        )


class Completion(NamedTuple):
    """A result that waits to be handed to the code; exactly one is, then the code runs until it rests."""

    pending: Pending
    output: Payload | None = None
    failure: Failure | None = None
    elapsed_us: int = 0
    signal_id: str = ""
