"""What a client is told of automations: plain facts, frozen when they were read. Payloads stay encoded until they are
looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk.descriptions import Decode, RunStatus
from kagzi.sdk.failure import ErrorInfo
from kagzi.sdk.inputs import Input


class AutomationStatus(StrEnum):
    """Whether an automation starts runs. Equal to its name as text."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    BLOCKED = "BLOCKED"


class DeliveryStatus(StrEnum):
    """Where the delivery of one event to one consumer is. Equal to its name as text."""

    PENDING = "PENDING"
    RESERVED = "RESERVED"
    CONSUMED = "CONSUMED"
    SKIPPED = "SKIPPED"


class MutationStatus(StrEnum):
    """What the ledger knows of a mutation. Equal to its name as text."""

    IN_FLIGHT = "IN_FLIGHT"
    APPLIED = "APPLIED"
    FAILED = "FAILED"
    INDETERMINATE = "INDETERMINATE"
    SKIPPED = "SKIPPED"


class InputStatus(StrEnum):
    """Where an input is. Equal to its name as text."""

    PENDING = "PENDING"
    DONE = "DONE"
    SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class MutationInfo:
    """One row of the ledger: a change of the outside, written down before it was tried."""

    mutation_id: str
    handler: str
    run_id: str
    # The function that does it, and what the outside recognises a repeat by.
    tool: str
    idempotency_key: str
    title: str
    status: MutationStatus
    error: ErrorInfo | None
    has_reconciler: bool
    # How often the reconciler was asked, and when it is asked next.
    checks: int
    next_check_at: datetime | None
    resolved_by_person: bool
    created_at: datetime | None
    finished_at: datetime | None
    _parameters: Payload | None = field(repr=False, compare=False)
    _result: Payload | None = field(repr=False, compare=False)
    _decode: Decode = field(repr=False, compare=False)

    @property
    def parameters(self) -> Any:
        """What it was called with, by name; None where it was not read."""
        return self._decode(self._parameters)

    @property
    def result(self) -> Any:
        """What it returned; None unless APPLIED, or where it was not read."""
        return self._decode(self._result)


@dataclass(frozen=True, slots=True)
class BlockedInfo:
    """What stops an automation."""

    # RETRIES_USED_UP, NEEDS_ATTENTION, DEFECT, POISONED or INDETERMINATE.
    code: str
    message: str
    handler: str
    run_id: str
    # The mutation to resolve, when it is INDETERMINATE.
    mutation: MutationInfo | None
    since: datetime | None


@dataclass(frozen=True, slots=True)
class LiveRunInfo:
    """The one handler run of an automation that has not ended."""

    run_id: str
    handler: str
    status: RunStatus
    # schedule, event, wake, manual, deploy, release or continuation.
    trigger: str
    # Consumers: preparing, prepared, mutating, mutated, emitting or committed.
    phase: str
    title: str
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class HandlerInfo:
    """A handler and its scheduling state."""

    name: str
    # producer or consumer.
    kind: str
    publishes: Sequence[str]
    subscribes: Sequence[str]
    mutates: bool
    # Producers: when it runs, in words; when it is due, and when it ran.
    schedule: str
    timezone: str
    next_run_at: datetime | None
    last_run_at: datetime | None
    queued: bool
    # Consumers: when it wanted to be woken; whether something new may be there.
    wake_at: datetime | None
    dirty: bool
    failures: int
    not_before: datetime | None
    last_run_id: str | None
    last_error: ErrorInfo | None
    _state: Payload | None = field(repr=False, compare=False)
    _decode: Decode = field(repr=False, compare=False)

    @property
    def state(self) -> Any:
        """Its own state; only when it was asked for."""
        return self._decode(self._state)


@dataclass(frozen=True, slots=True)
class BacklogInfo:
    """What is left to do in one topic for one consumer."""

    topic: str
    consumer: str
    pending: int
    reserved: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class AutomationInfo:
    """An automation as it was when it was read. Handlers and backlog only from `get`."""

    namespace: str
    name: str
    status: AutomationStatus
    paused_at: datetime | None
    blocked: BlockedInfo | None
    live_run: LiveRunInfo | None
    # When a handler may start next by time alone.
    next_at: datetime | None
    definition_hash: str
    queue: str
    pending: int
    handlers: Mapping[str, HandlerInfo]
    backlog: Sequence[BacklogInfo]
    created_at: datetime | None
    deployed_at: datetime | None


@dataclass(frozen=True, slots=True)
class DeliveryInfo:
    """What became of an event for one consumer."""

    consumer: str
    status: DeliveryStatus
    run_id: str | None
    # How often it was given back after a failure.
    attempts: int
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventInfo:
    """An event as it was when it was read."""

    topic: str
    id: str
    # The run that published it; None when it came from outside.
    run_id: str | None
    inputs: Sequence[Input]
    deliveries: Mapping[str, DeliveryInfo]
    created_at: datetime | None
    updated_at: datetime | None
    _payload: Payload | None = field(repr=False, compare=False)
    _decode: Decode = field(repr=False, compare=False)

    @property
    def payload(self) -> Any:
        """What it carries; only when it was asked for."""
        return self._decode(self._payload)


@dataclass(frozen=True, slots=True)
class InputInfo:
    """Something that came from outside, and where it is."""

    input: Input
    title: str
    status: InputStatus
    run_id: str | None
    # Deliveries it caused that are not done.
    pending: int
    created_at: datetime | None


@dataclass(frozen=True, slots=True)
class CausedRun:
    """A handler run in the lineage of an input."""

    run_id: str
    handler: str
    status: RunStatus
    title: str
    continues_run_id: str | None
    # Ids of the events it reserved, by topic.
    reserved: Mapping[str, Sequence[str]]
    created_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Lineage:
    """An input and everything it caused, oldest first."""

    input: InputInfo
    events: Sequence[EventInfo]
    runs: Sequence[CausedRun]
    mutations: Sequence[MutationInfo]
    # There is more than is shown.
    truncated: bool


@dataclass(frozen=True, slots=True)
class SkippedInput:
    """What skipping an input did."""

    input: InputInfo
    # Deliveries that were skipped now, and those that a run has and which were left to it.
    skipped: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Published:
    """What publishing did, counted in each topic."""

    created: int
    updated: int
    # Whether the automation acts on it now.
    status: AutomationStatus
