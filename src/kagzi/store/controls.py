"""What people do with an automation: pause and resume it, run it now, unblock it, publish into it. Each locks the
automation, changes it, and chooses what runs next in a second statement, so that neither misses what another has not
committed yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import PublishRequest
from kagzi.store import automations, blocks, choice, errors, publications, standings
from kagzi.store.operation import Outcome
from kagzi.store.publications import Counts, Publication
from kagzi.store.queries import Queries

_sql = Queries("controls.sql")
_pause = _sql.bind("pause")
_resume = _sql.bind("resume")
_queue = _sql.bind("queue", columns=("name",))
_standing = _sql.bind(
    "standing",
    columns=(
        "paused",
        "blocked_code",
        "blocked_handler",
        "blocked_run_id",
        "last_request",
        "live_run_id",
        "producers",
    ),
)
_ask_again = _sql.bind("ask_again")


@dataclass(frozen=True, slots=True)
class Published:
    """What became of events from outside, and whether the automation acts on them now."""

    counts: Counts
    status: str


async def pause(connection: Connection, namespace: str, name: str) -> None:
    """Lets the current run finish and starts no other."""
    await _held(connection, namespace, name)
    await _pause.execute(connection, namespace=namespace, name=name)


async def resume(connection: Connection, namespace: str, name: str, outcome: Outcome) -> None:
    """Goes on with what came up meanwhile."""
    await _held(connection, namespace, name)
    await _resume.execute(connection, namespace=namespace, name=name)
    await choice.begin(connection, namespace, [name], outcome)


async def run_now(connection: Connection, namespace: str, name: str, request_id: str, outcome: Outcome) -> list[str]:
    """Queues all producers and answers which; refused while a run is active, unless this repeats the last request."""
    standing = await _held(connection, namespace, name)
    if str(standing["last_request"]) == request_id:
        return list(standing["producers"])
    if standing["live_run_id"] is not None:
        if standing["blocked_code"] == "INDETERMINATE":
            raise _undecided(name)
        message = f"automation {name!r} has a run that has not ended ({standing['live_run_id']}): wait for its end"
        raise errors.precondition(message, name, "name")
    queued = await _queue.fetch(connection, namespace=namespace, name=name, request_id=request_id)
    await choice.begin(connection, namespace, [name], outcome)
    return sorted(row["name"] for row in queued)


async def retry_blocked(
    connection: Connection, namespace: str, name: str, run_id: str | None, outcome: Outcome
) -> bool:
    """Unblocks an automation and asks for the handler again that blocked it; answers whether it was blocked."""
    standing = await _held(connection, namespace, name)
    if standing["blocked_code"] is None or (run_id and run_id != str(standing["blocked_run_id"])):
        return False
    if standing["blocked_code"] == "INDETERMINATE":
        raise _undecided(name)
    await blocks.unblock(connection, namespace, name)
    await _ask_again.execute(connection, namespace=namespace, name=name, handler=standing["blocked_handler"])
    await choice.begin(connection, namespace, [name], outcome)
    return True


async def publish(connection: Connection, namespace: str, request: PublishRequest, outcome: Outcome) -> Published:
    """Publishes events from outside, all or none."""
    name = request.name
    standing = await _held(connection, namespace, name)
    known = await automations.topics(connection, namespace, name)
    for event in request.events:
        for topic in event.topics:
            if topic not in known:
                listed = ", ".join(sorted(known))
                message = f"automation {name!r} has no topic {topic!r}: its topics are {listed}"
                raise errors.invalid("events.topics", message, topic)
    given = Publication(name, request.inputs, request.events)
    counts = await publications.publish(connection, namespace, [given])
    await choice.begin(connection, namespace, [name], outcome)
    status = "BLOCKED" if standing["blocked_code"] else "PAUSED" if standing["paused"] else "ACTIVE"
    return Published(counts.get(name, Counts()), status)


def _undecided(name: str) -> errors.Refused:
    message = f"a mutation of automation {name!r} is indeterminate: say what became of it with ResolveMutation"
    return errors.precondition(message, name, "name")


async def _held(connection: Connection, namespace: str, name: str) -> Record:
    """Locks the automation and reads it."""
    await standings.lock(connection, namespace, [name])
    standing = await _standing.first(connection, namespace=namespace, name=name)
    if standing is None:
        await automations.require(connection, namespace, name)
    assert standing is not None
    return standing
