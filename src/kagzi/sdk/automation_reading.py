"""Reads what the wire says of automations, their handlers, events, inputs and mutations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk.automation_info import (
    AutomationInfo,
    AutomationStatus,
    BacklogInfo,
    BlockedInfo,
    CausedRun,
    DeliveryInfo,
    DeliveryStatus,
    EventInfo,
    HandlerInfo,
    InputInfo,
    InputStatus,
    LiveRunInfo,
    MutationInfo,
    MutationStatus,
)
from kagzi.sdk.descriptions import Decode, error_info, run_status
from kagzi.sdk.inputs import input_of


def automation_info(given: pb.Automation, decode_mutation: Decode, decode_state: Decode) -> AutomationInfo:
    """An automation of the wire."""
    return AutomationInfo(
        namespace=given.namespace,
        name=given.name,
        status=AutomationStatus(word(pb.AutomationStatus, given.status, "AUTOMATION_")),
        paused_at=moment(given, "paused_at"),
        blocked=_blocked(given.blocked, decode_mutation) if given.HasField("blocked") else None,
        live_run=_live(given.live_run) if given.HasField("live_run") else None,
        next_at=moment(given, "next_at"),
        definition_hash=given.definition_hash,
        queue=given.task_queue,
        pending=given.pending,
        handlers={each.definition.name: _handler(each, decode_state) for each in given.handlers},
        backlog=[
            BacklogInfo(each.topic, each.consumer, each.pending, each.reserved, moment(each, "oldest_at"))
            for each in given.backlog
        ],
        created_at=moment(given, "created_at"),
        deployed_at=moment(given, "deployed_at"),
    )


def _blocked(given: pb.Automation.Blocked, decode: Decode) -> BlockedInfo:
    return BlockedInfo(
        code=word(pb.BlockedCode, given.code, "BLOCKED_"),
        message=given.message,
        handler=given.handler,
        run_id=given.run_id,
        mutation=mutation_info(given.mutation, decode) if given.HasField("mutation") else None,
        since=moment(given, "since"),
    )


def _live(given: pb.Automation.LiveRun) -> LiveRunInfo:
    return LiveRunInfo(
        run_id=given.run_id,
        handler=given.handler,
        status=run_status(given.status),
        trigger=word(pb.HandlerTrigger, given.trigger, "TRIGGER_").lower(),
        phase=word(pb.HandlerPhase, given.phase, "PHASE_").lower() if given.phase else "",
        title=given.title,
        created_at=moment(given, "created_at"),
    )


def _handler(given: pb.Automation.Handler, decode: Decode) -> HandlerInfo:
    declared = given.definition
    return HandlerInfo(
        name=declared.name,
        kind=word(pb.HandlerKind, declared.kind, "HANDLER_").lower(),
        publishes=list(declared.publishes),
        subscribes=list(declared.subscribes),
        mutates=declared.mutates,
        schedule=given.words,
        timezone=declared.timezone,
        next_run_at=moment(given, "next_run_at"),
        last_run_at=moment(given, "last_run_at"),
        queued=given.queued,
        wake_at=moment(given, "wake_at"),
        dirty=given.dirty,
        failures=given.failures,
        not_before=moment(given, "not_before"),
        last_run_id=given.last_run_id or None,
        last_error=error_info(given.last_failure) if given.HasField("last_failure") else None,
        _state=stored(given, "state"),
        _decode=decode,
    )


def word(enum: Any, value: int, prefix: str) -> str:
    """The name of a value of an enum, without what all of them begin with."""
    name: str = enum.Name(value)
    return name.removeprefix(prefix)


def moment(message: Message, name: str) -> datetime | None:
    """A time of a message; None when it is absent, which would read as 1970."""
    if not message.HasField(name):
        return None
    found: Timestamp = getattr(message, name)
    return found.ToDatetime(UTC)


def stored(message: Message, name: str) -> Payload | None:
    """A payload of a message; None when it is absent."""
    found: Payload | None = getattr(message, name) if message.HasField(name) else None
    return found


def mutation_info(given: pb.Mutation, decode: Decode) -> MutationInfo:
    """A mutation of the wire."""
    return MutationInfo(
        mutation_id=given.mutation_id,
        handler=given.handler,
        run_id=given.run_id,
        tool=given.tool,
        idempotency_key=given.idempotency_key,
        title=given.title,
        status=MutationStatus(word(pb.MutationStatus, given.status, "MUTATION_")),
        error=error_info(given.failure) if given.HasField("failure") else None,
        has_reconciler=given.has_reconciler,
        checks=given.checks,
        next_check_at=moment(given, "next_check_at"),
        resolved_by_person=given.resolved_by_person,
        created_at=moment(given, "created_at"),
        finished_at=moment(given, "finished_at"),
        _parameters=stored(given, "parameters"),
        _result=stored(given, "result"),
        _decode=decode,
    )


def event_info(given: pb.Event, decode: Decode) -> EventInfo:
    """An event of the wire."""
    return EventInfo(
        topic=given.topic,
        id=given.event_id,
        run_id=given.run_id or None,
        inputs=[input_of(key) for key in given.inputs],
        deliveries={
            each.consumer: DeliveryInfo(
                consumer=each.consumer,
                status=DeliveryStatus(word(pb.DeliveryStatus, each.status, "DELIVERY_")),
                run_id=each.run_id or None,
                attempts=each.attempts,
                updated_at=moment(each, "updated_at"),
            )
            for each in given.deliveries
        },
        created_at=moment(given, "created_at"),
        updated_at=moment(given, "updated_at"),
        _payload=stored(given, "payload"),
        _decode=decode,
    )


def input_info(given: pb.Input) -> InputInfo:
    """An input of the wire."""
    return InputInfo(
        input=input_of(given.key),
        title=given.title,
        status=InputStatus(word(pb.InputStatus, given.status, "INPUT_")),
        run_id=given.run_id or None,
        pending=given.pending,
        created_at=moment(given, "created_at"),
    )


def caused_run(given: pb.GetInputResponse.CausedRun) -> CausedRun:
    """A run of a lineage of the wire."""
    return CausedRun(
        run_id=given.run_id,
        handler=given.handler,
        status=run_status(given.status),
        title=given.title,
        continues_run_id=given.continues_run_id or None,
        reserved={selection.topic: list(selection.event_ids) for selection in given.reserved},
        created_at=moment(given, "created_at"),
        finished_at=moment(given, "finished_at"),
    )
