"""The end of a consumer's `prepare`: what it decided, the reservations and the time it wants to be woken at are one
transaction. If something it wants was taken from it meanwhile, nothing is stored and `prepare` is to run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import CommitPrepare, EventSelection, PrepareCommitted
from kagzi.protocol.v1.common_pb2 import FUNCTION, ErrorDetail, Payload
from kagzi.protocol.v1.worker_pb2 import StepCompleted
from kagzi.store import errors, rows, steps
from kagzi.store.operation import Kind, Operation, Outcome
from kagzi.store.queries import Queries
from kagzi.store.rules import Rules
from kagzi.store.standings import Ground, Standing

_sql = Queries("preparations.sql")
_wanted = _sql.bind("wanted", columns=("number", "topic", "event_id", "status", "lately"))
_prepare = _sql.bind("prepare", columns=("run_id", "wake_at"))

_One = tuple[Operation, Standing]


async def commit(
    connection: Connection,
    namespace: str,
    group: Sequence[Operation],
    ground: Ground,
    rules: Rules,
    outcome: Outcome,
) -> None:
    """Stores what consumers decided; answers each with what is no longer pending, or when it will be woken."""
    taken = await ground.take(group)
    standings = await ground.of(taken)
    ready = await _refuse(connection, namespace, [(operation, standings[operation.run_id]) for operation in taken])
    if ready:
        wake_ats = await _store(connection, namespace, ready, rules, outcome)
        stored = [operation for operation, _ in ready if operation.answer is not None]
        ground.record(record(operation, _data(operation.body)) for operation in stored)
        for operation in stored:
            work, wake_at = operation.body.prepared, wake_ats[operation.run_id]
            reserving = any(selection.event_ids for selection in work.reserve)
            ground.became(operation.run_id, prepared=True, reserving=reserving, title=work.title, wake_at=wake_at)
        await _explain(connection, namespace, [one for one in ready if one[0].answer is None])


async def answer_again(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Answers repeats of preparations that are on record as the first time, whoever has the run now."""
    known = await steps.ended(connection, namespace, [_attempt(operation) for operation in operations])
    standings = await Ground(connection, namespace).of(operations)
    for operation in operations:
        if operation.body.step.attempt_id in known and operation.run_id in standings:
            operation.answer = _answer(standings[operation.run_id])


async def _refuse(connection: Connection, namespace: str, given: Sequence[_One]) -> list[_One]:
    """Leaves out what repeats, and what comes from a run that has no `prepare` to end."""
    repeats = [operation for operation, standing in given if standing.prepared]
    if repeats:
        await answer_again(connection, namespace, repeats)
    ready = []
    for operation, standing in given:
        if standing.kind == "CONSUMER" and not standing.prepared:
            ready.append((operation, standing))
        elif operation.answer is None:
            message = f"{standing.automation}.{standing.handler} has no `prepare` to commit: it is over, or no consumer"
            operation.answer = errors.precondition(message, operation.run_id).detail
    return ready


async def _explain(connection: Connection, namespace: str, given: Sequence[_One]) -> None:
    """Answers those that want something that is not pending: taken meanwhile, `prepare` runs again; never there or long
    over, it is a mistake of the handler.
    """
    if not given:
        return
    wanted = _wanted_by(given)
    found = await _wanted.fetch(
        connection,
        namespace=namespace,
        numbers=[number for number, _, _, _ in wanted],
        automations=[standing.automation for _, standing, _, _ in wanted],
        consumers=[standing.handler for _, standing, _, _ in wanted],
        topics=[topic for _, _, topic, _ in wanted],
        event_ids=[event_id for _, _, _, event_id in wanted],
        since=[standing.started_at for _, standing, _, _ in wanted],
    )
    gone: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        operation, standing = given[row["number"]]
        if row["status"] == "PENDING" or operation.refused:
            continue
        if row["lately"]:
            gone[row["number"]][row["topic"]].append(row["event_id"])
        else:
            operation.answer = _never_pending(standing, row["topic"], row["event_id"], row["status"])
    for number, topics in gone.items():
        operation = given[number][0]
        if not operation.refused:
            missing = [EventSelection(topic=topic, event_ids=ids) for topic, ids in topics.items()]
            operation.answer = PrepareCommitted(not_pending=missing)


def _wanted_by(given: Sequence[_One]) -> list[tuple[int, Standing, str, str]]:
    """What is to be reserved: the number of who wants it, topic and event."""
    return [
        (number, standing, selection.topic, event_id)
        for number, (operation, standing) in enumerate(given)
        for selection in operation.body.prepared.reserve
        for event_id in selection.event_ids
    ]


def _never_pending(standing: Standing, topic: str, event_id: str, status: str | None) -> ErrorDetail:
    state = "never delivered to it" if status is None else f"{status.lower()} before this run began"
    message = f"{standing.automation}.{standing.handler} reserves event {event_id!r} of {topic!r}, which was {state}"
    return errors.precondition(f"{message}: reserve only what `peek` answers", event_id, "prepared.reserve").detail


async def _store(
    connection: Connection, namespace: str, given: Sequence[_One], rules: Rules, outcome: Outcome
) -> dict[str, datetime | None]:
    """Answers those that could be stored, and says when each is woken."""
    bodies: list[CommitPrepare] = [operation.body for operation, _ in given]
    works = [body.prepared for body in bodies]
    wanted = _wanted_by(given)
    found = await _prepare.fetch(
        connection,
        namespace=namespace,
        wake_min=rules.wake_min,
        wake_max=rules.wake_max,
        run_ids=[operation.run_id for operation, _ in given],
        automations=[standing.automation for _, standing in given],
        consumers=[standing.handler for _, standing in given],
        reserved=[_reserved(body) for body in bodies],
        datas=[work.data.data if work.HasField("data") else None for work in works],
        encodings=[work.data.encoding or None for work in works],
        titles=[work.title for work in works],
        uis=[work.ui_json or None for work in works],
        wake_ats=[work.wake_at.ToDatetime(UTC) if work.HasField("wake_at") else None for work in works],
        wanted_run_ids=[standing.run_id for _, standing, _, _ in wanted],
        wanted_automations=[standing.automation for _, standing, _, _ in wanted],
        wanted_consumers=[standing.handler for _, standing, _, _ in wanted],
        wanted_topics=[topic for _, _, topic, _ in wanted],
        wanted_ids=[event_id for _, _, _, event_id in wanted],
    )
    wake_ats = {str(row["run_id"]): row["wake_at"] for row in found}
    for operation, _ in given:
        if operation.run_id in wake_ats:
            wake_at = wake_ats[operation.run_id]
            outcome.rings(wake_at)
            operation.answer = PrepareCommitted(wake_at=rows.timestamp(wake_at))
    return wake_ats


def record(operation: Operation, output: Payload | None = None) -> Operation:
    """The record of the step with which an operation ends a phase."""
    step = operation.body.step
    body = StepCompleted(
        step_id=step.step_id,
        attempt_id=step.attempt_id,
        kind=FUNCTION,
        attempt_number=step.attempt_number,
        position=step.position,
        completed_seq=step.completed_seq,
        elapsed_us=step.elapsed_us,
        output=output,
    )
    return Operation(Kind.COMPLETE_STEP, operation.namespace, operation.run_id, body, token=operation.token)


def _data(body: CommitPrepare) -> Payload | None:
    return body.prepared.data if body.prepared.HasField("data") else None


def _attempt(operation: Operation) -> tuple[str, str, str]:
    step = operation.body.step
    return operation.run_id, step.step_id, step.attempt_id


def _answer(standing: Standing) -> PrepareCommitted:
    return PrepareCommitted(wake_at=rows.timestamp(standing.wake_at))


def _reserved(body: CommitPrepare) -> str:
    chosen = [
        {"topic": selection.topic, "ids": list(selection.event_ids)}
        for selection in body.prepared.reserve
        if selection.event_ids
    ]
    return msgspec.json.encode(chosen).decode()
