"""The good end of a handler run. Publishes, state, consumption of what was reserved, the producer's next time, the end
of the run and the choice of the next one are one transaction, for many automations in the same few statements. A commit
that breaks a rule is refused whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import CommitHandler, HandlerCommitted
from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.store import choice, errors, leases, publications, rows, steps
from kagzi.store.operation import Ended, Kind, Operation, Outcome
from kagzi.store.preparations import record
from kagzi.store.publications import Counts, Publication
from kagzi.store.queries import Queries
from kagzi.store.rules import Rules
from kagzi.store.standings import Ground, Standing

_sql = Queries("commits.sql")
_commit = _sql.bind("commit", columns=("run_id", "workflow_type", "took_ms"))
_handed = _sql.bind("handed", columns=("run_id", "claim_token"))

_One = tuple[Operation, Standing]
_COUNTS = msgspec.json.Decoder(dict[str, int])


async def commit(
    connection: Connection,
    namespace: str,
    group: Sequence[Operation],
    ground: Ground,
    rules: Rules,
    lease: timedelta,
    outcome: Outcome,
) -> None:
    """Ends handler runs, and starts what their automations run next."""
    taken = await ground.take(group)
    standings = await ground.of(taken)
    ready: list[_One] = []
    for operation in taken:
        standing = standings[operation.run_id]
        operation.answer = _refusal(operation.body, standing)
        if operation.answer is None:
            ready.append((operation, standing))
    if not ready:
        return
    counts = await publications.publish(connection, namespace, [_publication(one) for one in ready])
    ground.record(_record(one, counts) for one in ready)
    await _commit_all(connection, namespace, ready, rules, outcome)
    for operation, standing in ready:
        operation.answer = _answer(counts.get(standing.automation, Counts()))
    ground.touched(operation for operation, _ in ready)
    slots = {standing.automation: one.slot for one, standing in ready if one.slot is not None}
    names = [standing.automation for _, standing in ready]
    await choice.begin(connection, namespace, names, outcome, lease=lease, slots=slots)


def _refusal(body: CommitHandler, standing: Standing) -> ErrorDetail | None:
    """Why a handler may not commit this; None if it may."""
    name = f"{standing.automation}.{standing.handler}"
    if standing.kind == "CONSUMER":
        if not standing.prepared:
            return errors.precondition(f"{name} has committed no `prepare`: `next` comes after it", name).detail
        if standing.mutation_status in ("IN_FLIGHT", "INDETERMINATE", "FAILED"):
            message = f"the mutation of {name} is {standing.mutation_status}: `next` comes when it is known to be over"
            return errors.precondition(message, name).detail
        if body.inputs:
            return errors.precondition(f"{name} is a consumer: only producers register inputs", name, "inputs").detail
    registered = {publications.input_id(registration.key) for registration in body.inputs}
    for publication in body.publishes:
        for topic in publication.topics:
            if topic not in standing.publishes:
                declared = ", ".join(standing.publishes) or "none"
                message = f"{name} publishes to {topic!r}, which it does not declare (it declares {declared})"
                return errors.precondition(message, topic, "publishes.topics").detail
        named = publication.HasField("input")
        if standing.kind == "CONSUMER" and named:
            message = f"{name} is a consumer: what it publishes comes from what it reserved, and names no input"
            return errors.precondition(message, publication.event_id, "publishes.input").detail
        if standing.kind == "PRODUCER" and not (named and publications.input_id(publication.input) in registered):
            message = f"{name} publishes event {publication.event_id!r} without an input: register where it came from"
            return errors.precondition(message, publication.event_id, "publishes.input").detail
    return None


def _publication(given: _One) -> Publication:
    operation, standing = given
    body: CommitHandler = operation.body
    return Publication(standing.automation, body.inputs, body.publishes, operation.run_id)


def _record(given: _One, counts: dict[str, Counts]) -> Operation:
    """The step with what it published: a repeat is answered from it."""
    operation, standing = given
    count = counts.get(standing.automation, Counts())
    said = msgspec.json.encode({"created": count.created, "updated": count.updated})
    return record(operation, Payload(data=said))


async def _commit_all(
    connection: Connection, namespace: str, ready: Sequence[_One], rules: Rules, outcome: Outcome
) -> None:
    bodies: list[CommitHandler] = [operation.body for operation, _ in ready]
    next_run_ats = [
        rules.next_slot(standing.schedule, standing.now) if standing.schedule else None for _, standing in ready
    ]
    for at in next_run_ats:
        outcome.rings(at)
    ended = await _commit.fetch(
        connection,
        namespace=namespace,
        run_ids=[operation.run_id for operation, _ in ready],
        tokens=[operation.token for operation, _ in ready],
        operation_ids=[operation.operation_id for operation, _ in ready],
        automations=[standing.automation for _, standing in ready],
        handlers=[standing.handler for _, standing in ready],
        producers=[standing.kind == "PRODUCER" for _, standing in ready],
        reserving=[standing.reserving for _, standing in ready],
        endings=["SKIPPED" if standing.mutation_status == "SKIPPED" else "CONSUMED" for _, standing in ready],
        changed=[body.HasField("state") for body in bodies],
        states=[body.state.data if body.HasField("state") else None for body in bodies],
        encodings=[body.state.encoding or None for body in bodies],
        next_run_ats=next_run_ats,
    )
    assert len(ended) == len(ready), "the fence has seen the tokens"
    outputs = {operation.run_id: operation.body.state for operation, _ in ready if operation.body.HasField("state")}
    for row in ended:
        run_id = str(row["run_id"])
        took = (row["workflow_type"], row["took_ms"])
        outcome.ended.append(Ended(run_id, "COMPLETED", None, outputs.get(run_id), took=took))


def _answer(count: Counts) -> HandlerCommitted:
    return HandlerCommitted(status=rows.RUN_STATUS["COMPLETED"], created=count.created, updated=count.updated)


async def answer_again(connection: Connection, namespace: str, operations: Sequence[Operation]) -> None:
    """Answers commits that took effect as the first time."""
    for operation in operations:
        found = await steps.latest(connection, namespace, operation.run_id, operation.body.step.step_id)
        assert found is not None, "its commit put it on record"
        said = _COUNTS.decode(found["output"])
        operation.answer = _answer(Counts(said["created"], said["updated"]))


async def give_back(connection: Connection, namespace: str, operations: Sequence[Operation], outcome: Outcome) -> None:
    """Gives back the runs that the first try of repeated commits put into a worker's place: with the answer to that
    try the worker's run was lost, and it would stand still until its lease is over.
    """
    run_ids = {
        operation.slot.token: operation.run_id
        for operation in operations
        if operation.slot is not None and operation.kind is Kind.COMMIT_HANDLER and operation.answer is not None
    }
    if run_ids:
        found = await _handed.fetch(
            connection, namespace=namespace, run_ids=list(run_ids.values()), tokens=list(run_ids)
        )
        held = [(str(row["run_id"]), str(row["claim_token"])) for row in found]
        outcome.due |= await leases.put_back(connection, namespace, held)
