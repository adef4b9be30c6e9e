"""Operations of handler runs, checked: what `prepare` decided, what is about to change outside and what became of it,
and what a run publishes. A check that fails refuses its operation alone, naming the field, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from kagzi.protocol.v1 import automation_pb2 as pb
from kagzi.server.api import checks
from kagzi.store.errors import invalid
from kagzi.store.operation import Kind

POSITIONS = 20_000
# More than a step's policy allows, and than its numbers have room for when a retry of the whole sets them aside.
ATTEMPTS = 19_999
SEQUENCE = 100_000_000
TITLE_BYTES = 1_000
PEEK = 1_000
_RESERVED = 1_000
_PUBLISHED = 10_000

KINDS = {
    "peek_events": Kind.PEEK_EVENTS,
    "get_events": Kind.GET_EVENTS,
    "commit_prepare": Kind.COMMIT_PREPARE,
    "begin_mutation": Kind.BEGIN_MUTATION,
    "finish_mutation": Kind.FINISH_MUTATION,
    "commit_handler": Kind.COMMIT_HANDLER,
}


def order(body: Any, field: str) -> None:
    """The numbers of a step that workers count."""
    for name in ("attempt_number", "position", "completed_seq"):
        value = getattr(body, name, 0)
        if value < 0:
            raise invalid(f"{field}.{name}", f"{field}.{name} is {value}, and must be 0 or more")
    for name, most in (("attempt_number", ATTEMPTS), ("completed_seq", SEQUENCE)):
        if getattr(body, name, 0) > most:
            raise checks.exceeded(
                f"{field}.{name}", f"{field}.{name} is {getattr(body, name)}, and may be {most} at most"
            )
    if body.position > POSITIONS:
        raise checks.exceeded(f"{field}.position", f"a run has at most {POSITIONS} steps: continue as new before that")
    if getattr(body, "elapsed_us", 0):
        checks.duration_ms(body.elapsed_us // 1_000, f"{field}.elapsed_us")


def publication(event: pb.EventPublication, field: str) -> int:
    """One event to be published; answers into how many topics."""
    if not event.topics:
        raise invalid(f"{field}.topics", f"{field}.topics is empty: an event is published to one topic at least")
    for topic in event.topics:
        checks.name(topic, f"{field}.topics")
    checks.name(event.event_id, f"{field}.event_id")
    if event.HasField("payload"):
        checks.payload(event.payload, f"{field}.payload")
    if event.HasField("input"):
        input_key(event.input, f"{field}.input")
    return len(event.topics)


def publications(events: Iterable[pb.EventPublication], field: str, most: int) -> None:
    """Events to be published together."""
    total = sum(publication(event, field) for event in events)
    if total > most:
        raise checks.exceeded(
            field, f"{field} holds {total} events, counted in each topic, and at most {most} go together"
        )


def registrations(inputs: Collection[pb.InputRegistration], field: str, most: int) -> None:
    """What came from outside."""
    if len(inputs) > most:
        raise checks.exceeded(field, f"{field} holds {len(inputs)} inputs, and at most {most} go together")
    for registration in inputs:
        input_key(registration.key, f"{field}.key")
        registration.title = checks.text(registration.title, f"{field}.title", TITLE_BYTES)


def input_key(key: pb.InputKey, field: str) -> None:
    """What names a thing outside."""
    for name in ("source", "type", "id"):
        checks.name(getattr(key, name), f"{field}.{name}")


def _step(step: pb.PhaseStep, field: str) -> None:
    checks.name(step.step_id, f"{field}.step_id")
    step.attempt_id = checks.uuid(step.attempt_id, f"{field}.attempt_id")
    order(step, field)


def _peek_events(_: str, body: pb.PeekEvents, field: str) -> None:
    checks.name(body.topic, f"{field}.topic")
    if not 0 <= body.limit <= PEEK:
        raise invalid(f"{field}.limit", f"{field}.limit is {body.limit}, and must be from 1 to {PEEK}")
    if body.cursor and not (body.cursor.isdecimal() and body.cursor.isascii() and len(body.cursor) < 19):
        raise invalid(f"{field}.cursor", f"{field}.cursor is not one that was answered: leave it out to begin")


def _get_events(_: str, body: pb.GetEvents, field: str) -> None:
    checks.name(body.topic, f"{field}.topic")
    if len(body.event_ids) > PEEK:
        raise checks.exceeded(
            f"{field}.event_ids", f"{len(body.event_ids)} events are asked for, and at most {PEEK} go"
        )
    for event_id in body.event_ids:
        checks.name(event_id, f"{field}.event_ids")


def _commit_prepare(_: str, body: pb.CommitPrepare, field: str) -> None:
    _step(body.step, f"{field}.step")
    work, field = body.prepared, f"{field}.prepared"
    wanted: set[tuple[str, str]] = set()
    for selection in work.reserve:
        checks.name(selection.topic, f"{field}.reserve.topic")
        for event_id in selection.event_ids:
            checks.name(event_id, f"{field}.reserve.event_ids")
            if (selection.topic, event_id) in wanted:
                message = f"event {event_id!r} of {selection.topic!r} is reserved twice"
                raise invalid(f"{field}.reserve.event_ids", message, event_id)
            wanted.add((selection.topic, event_id))
    if len(wanted) > _RESERVED:
        raise checks.exceeded(
            f"{field}.reserve", f"{len(wanted)} events are reserved, and a run has at most {_RESERVED}"
        )
    if work.HasField("data"):
        checks.payload(work.data, f"{field}.data")
    work.title = checks.text(work.title, f"{field}.title", TITLE_BYTES)
    if work.ui_json:
        checks.json_document(work.ui_json, f"{field}.ui_json", checks.STATE_BYTES)
    if work.HasField("wake_at"):
        checks.timestamp(work.wake_at, f"{field}.wake_at")


def _begin_mutation(_: str, body: pb.BeginMutation, field: str) -> None:
    _step(body.step, f"{field}.step")
    body.mutation_id = checks.uuid(body.mutation_id, f"{field}.mutation_id")
    checks.name(body.tool, f"{field}.tool")
    checks.name(body.idempotency_key, f"{field}.idempotency_key")
    if body.HasField("parameters"):
        checks.payload(body.parameters, f"{field}.parameters")


def _finish_mutation(_: str, body: pb.FinishMutation, field: str) -> None:
    _step(body.step, f"{field}.step")
    body.mutation_id = checks.uuid(body.mutation_id, f"{field}.mutation_id")
    checks.enum(body.verdict, pb.FinishMutation.Verdict, f"{field}.verdict", required=True)
    if body.HasField("result"):
        checks.payload(body.result, f"{field}.result")
        if body.verdict != pb.FinishMutation.VERDICT_APPLIED:
            raise invalid(f"{field}.result", "only a mutation that was APPLIED has a result")
    if body.HasField("failure"):
        checks.failure(body.failure, f"{field}.failure")
        if body.verdict == pb.FinishMutation.VERDICT_APPLIED:
            raise invalid(f"{field}.failure", "a mutation that was APPLIED has no failure")


def _commit_handler(_: str, body: pb.CommitHandler, field: str) -> None:
    _step(body.step, f"{field}.step")
    registrations(body.inputs, f"{field}.inputs", _PUBLISHED)
    publications(body.publishes, f"{field}.publishes", _PUBLISHED)
    if body.HasField("state"):
        checks.payload(body.state, f"{field}.state")


CHECKS: dict[Kind, Callable[[str, Any, str], None]] = {
    Kind.PEEK_EVENTS: _peek_events,
    Kind.GET_EVENTS: _get_events,
    Kind.COMMIT_PREPARE: _commit_prepare,
    Kind.BEGIN_MUTATION: _begin_mutation,
    Kind.FINISH_MUTATION: _finish_mutation,
    Kind.COMMIT_HANDLER: _commit_handler,
}
