"""Putting a definition in force: what a worker declares becomes handlers, schedules and subscriptions. The same hash
changes nothing; a deployment that was replaced is not put in force again by a worker that only lost its connection.
What is no longer declared is removed, and nothing stays behind that waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg
import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import blocks, choice, endings, errors, namespaces, settlement, standings
from kagzi.store.operation import Outcome
from kagzi.store.queries import Queries

_sql = Queries("deployments.sql")
_introduce = _sql.bind("introduce")
_live = _sql.bind("live", columns=("run_id",))
_hold = _sql.bind("hold", columns=("run_id", "handler", "status"))
_current = _sql.bind(
    "current",
    columns=("definition_hash", "deployments", "blocked_code", "blocked_mutation_id", "continues_run_id", "now"),
)
_remember = _sql.bind("remember")
_deploy = _sql.bind("deploy")
_remove = _sql.bind("remove", columns=("name",))
_declare = _sql.bind("declare")
_skip_undelivered = _sql.bind("skip_undelivered")
_follow = _sql.bind("follow")


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler, as declared."""

    name: str
    kind: str
    publishes: Sequence[str] = ()
    subscribes: Sequence[str] = ()
    mutates: bool = False
    # Producers: "interval" with milliseconds, or "cron" with an expression.
    schedule_type: str | None = None
    schedule_value: str | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """An automation, as declared."""

    name: str
    definition_hash: str
    task_queue: str
    handlers: Sequence[Handler]


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of a deployment."""

    changed: bool = False
    # A later one is in force.
    superseded: bool = False


async def deploy(
    connection: Connection, namespace: str, definition: Definition, deployment_id: str, outcome: Outcome
) -> Deployed:
    """Puts a definition in force, unless it is, or was replaced."""
    name = definition.name
    await _introduce.execute(connection, namespace=namespace, name=name, task_queue=definition.task_queue)
    live = await _hold_live(connection, namespace, name)
    if not await standings.lock(connection, namespace, [name]):
        await namespaces.require(connection, namespace)
        raise errors.not_found("automation", name, "definition.name")
    current = await _current.first(connection, namespace=namespace, name=name)
    assert current is not None
    known = {str(one) for one in current["deployments"]}
    if current["definition_hash"] == definition.definition_hash:
        await _remember.execute(connection, namespace=namespace, name=name, deployment_id=deployment_id)
        return Deployed()
    if deployment_id in known:
        return Deployed(superseded=True)
    await _same_live(connection, namespace, name, live)
    await _put_in_force(connection, namespace, definition, deployment_id)
    await _let_go(connection, namespace, definition, current, live, outcome)
    await choice.begin(connection, namespace, [name], outcome)
    return Deployed(changed=True)


async def _hold_live(connection: Connection, namespace: str, name: str) -> Record | None:
    """Locks the automation's live run, which comes before the automation in the order of locks."""
    found = await _live.first(connection, namespace=namespace, name=name)
    if found is None:
        return None
    return await _hold.first(connection, namespace=namespace, run_id=found["run_id"])


async def _same_live(connection: Connection, namespace: str, name: str, live: Record | None) -> None:
    """Another run may have begun before the automation was locked; then all begins again."""
    found = await _live.first(connection, namespace=namespace, name=name)
    if found is not None and (live is None or found["run_id"] != live["run_id"]):
        raise asyncpg.SerializationError(f"automation {name!r} began another run while it was deployed")


async def _put_in_force(connection: Connection, namespace: str, definition: Definition, deployment_id: str) -> None:
    name, handlers = definition.name, definition.handlers
    names = [handler.name for handler in handlers]
    kinds = [handler.kind for handler in handlers]
    await _remove.fetch(connection, namespace=namespace, name=name, handlers=names, kinds=kinds)
    await _declare.execute(
        connection,
        namespace=namespace,
        name=name,
        handlers=names,
        kinds=kinds,
        publishes=[_texts(handler.publishes) for handler in handlers],
        subscribes=[_texts(handler.subscribes) for handler in handlers],
        mutates=[handler.mutates for handler in handlers],
        schedule_types=[handler.schedule_type for handler in handlers],
        schedule_values=[handler.schedule_value for handler in handlers],
        timezones=[handler.timezone for handler in handlers],
    )
    await _skip_undelivered.execute(connection, namespace=namespace, name=name)
    await _deploy.execute(
        connection,
        namespace=namespace,
        name=name,
        definition_hash=definition.definition_hash,
        task_queue=definition.task_queue,
    )
    await _remember.execute(connection, namespace=namespace, name=name, deployment_id=deployment_id)


async def _let_go(
    connection: Connection,
    namespace: str,
    definition: Definition,
    current: Record,
    live: Record | None,
    outcome: Outcome,
) -> None:
    """Unblocks what new code may mend, and lets nothing wait for a handler that is gone: a run that nobody serves any
    more would stand in the way of all others for ever.
    """
    name = definition.name
    if current["blocked_code"] is not None and current["blocked_mutation_id"] is None:
        await blocks.unblock(connection, namespace, name)
    if current["continues_run_id"] is not None:
        await settlement.drop_continuation(connection, namespace, name, str(current["continues_run_id"]))
    if live is not None and live["status"] in endings.LIVE:
        gone = live["handler"] not in {handler.name for handler in definition.handlers}
        run_id = str(live["run_id"])
        await _follow.execute(
            connection, namespace=namespace, run_id=run_id, task_queue=definition.task_queue, gone=gone
        )
        if gone and live["status"] == "RUNNING":
            outcome.deadline = True
        elif gone:
            error = endings.cancelled_error("its handler is no longer declared")
            await endings.end_by_force(connection, namespace, [run_id], "CANCELLED", error, outcome)


def _texts(given: Sequence[str]) -> str:
    return msgspec.json.encode(list(given)).decode()
