"""Starts runs and sends signals inside your own PostgreSQL transaction: they exist if and only if it commits.

    async with connection.transaction():                      # asyncpg
        await connection.execute("insert into orders ...")
        run_id = await kagzi.sql.start(connection, ship, order)

Takes connections of asyncpg, psycopg and SQLAlchemy (sessions too), sync and async, and any other sync connection of
the DB-API, as Django's. With an async connection the call is awaited, with a sync one it is not. Nothing is committed
here, no server is asked, and no driver is imported: the database must be the one Kagzi's servers use.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack, overload

import uuid_utils

from kagzi.protocol.v1.common_pb2 import FOREVER, REJECT, REPLACE
from kagzi.sdk import option, request
from kagzi.sdk.calls import resolve_namespace
from kagzi.sdk.codec import Chain, Codec
from kagzi.sdk.definition import Workflow
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.request import StartOptions
from kagzi.sdk.values import Values

__all__ = ["signal", "start"]

I = TypeVar("I")  # noqa: E741 - a workflow's input

# Everything travels as text, which every driver can send, and gets its type in the statement.
_START = {
    "workflow_type": "text",
    "namespace": "text",
    "task_queue": "text",
    "external_id": "text",
    "run_id": "uuid",
    "delay": "interval",
    "start_at": "timestamptz",
    "priority": "integer",
    "timeout": "interval",
    "labels": "jsonb",
    "version": "text",
    "retry_policy": "jsonb",
    "on_conflict": "text",
    "dedupe": "text",
    "parent_run_id": "uuid",
    "parent_step_attempt_id": "uuid",
    "detached": "boolean",
    "input_data": "bytea",
    "input_encoding": "text",
}
_SIGNAL = {
    "run_id": "uuid",
    "name": "text",
    "namespace": "text",
    "signal_id": "uuid",
    "payload_data": "bytea",
    "payload_encoding": "text",
}


class _Async(Protocol):
    """A connection whose statements are awaited."""

    async def execute(self, *args: Any, **kwargs: Any) -> Any: ...


@overload
def start(  # type: ignore[overload-overlap]  # an async connection is an object too
    connection: _Async,
    workflow: Workflow[I, Any] | str,
    input: I | None = None,
    *,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
    **options: Unpack[StartOptions],
) -> Awaitable[str]: ...


@overload
def start(
    connection: object,
    workflow: Workflow[I, Any] | str,
    input: I | None = None,
    *,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
    **options: Unpack[StartOptions],
) -> str: ...


def start(
    connection: Any,
    workflow: Any,
    input: Any = None,
    *,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
    **options: Unpack[StartOptions],
) -> Any:
    """Starts a run in the connection's transaction and answers its run id; options as in `Client.start`.

    `client.handle(run_id)` gives its handle once the transaction has committed. `on_conflict="replace"` is refused:
    ending another run takes a server.
    """
    made = request.start(resolve_namespace(namespace), Chain(codecs), workflow, input, **options)
    if made.on_conflict == REPLACE:
        raise ConfigError('on_conflict="replace" ends another run, which only a server can do: use client.start.')
    retry = made.retry if made.HasField("retry") else None
    policy = None if retry is None else {name.name: value for name, value in retry.ListFields()}
    values = {
        "workflow_type": made.workflow_type,
        "namespace": made.namespace,
        "task_queue": made.task_queue or "default",
        "external_id": made.external_id or None,
        "run_id": made.run_id,
        "delay": f"{made.delay_ms} milliseconds" if made.HasField("delay_ms") else None,
        "start_at": made.start_at.ToJsonString() if made.HasField("start_at") else None,
        "priority": str(made.priority),
        "timeout": f"{made.timeout_ms} milliseconds" if made.HasField("timeout_ms") else None,
        "labels": json.dumps(dict(made.labels)) if made.labels else None,
        "version": made.version,
        "retry_policy": None if policy is None else json.dumps(policy),
        "on_conflict": "reject" if made.on_conflict == REJECT else "return",
        "dedupe": "forever" if made.dedupe == FOREVER else "active",
        "parent_run_id": made.parent_run_id or None,
        "parent_step_attempt_id": made.parent_step_attempt_id or None,
        "detached": str(made.detached),
        "input_data": made.input.data if made.HasField("input") else None,
        "input_encoding": made.input.encoding or None,
    }
    return _call(connection, "kagzi.start_workflow", _START, values)


@overload
def signal(  # type: ignore[overload-overlap]  # an async connection is an object too
    connection: _Async,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    id: str | None = None,
    workflow: Workflow[Any, Any] | str | None = None,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
) -> Awaitable[str]: ...


@overload
def signal(
    connection: object,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    id: str | None = None,
    workflow: Workflow[Any, Any] | str | None = None,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
) -> str: ...


def signal(
    connection: Any,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    id: str | None = None,
    workflow: Workflow[Any, Any] | str | None = None,
    namespace: str | None = None,
    codecs: Sequence[Codec] = (),
) -> Any:
    """Sends a signal in the connection's transaction and answers its id, made here unless given: with the same `id` (a
    UUID) it is one signal. With codecs the `workflow` must be named, for payloads are bound to its type.
    """
    if codecs and workflow is None:
        raise ConfigError("A signal through codecs is bound to its workflow: name it, as workflow=ship.")
    place = resolve_namespace(namespace)
    type_name = "" if workflow is None else option.workflow(workflow)[0]
    payload = None if value is None else Values(Chain(codecs), place, type_name).encode(value, None, "signal")
    values = {
        "run_id": option.uuid(run_id, "run_id"),
        "name": option.required(name, "name"),
        "namespace": place,
        "signal_id": option.uuid(id, "id") if id is not None else str(uuid_utils.uuid7()),
        "payload_data": None if payload is None else payload.data,
        "payload_encoding": None if payload is None else payload.encoding or None,
    }
    return _call(connection, "kagzi.signal", _SIGNAL, values)


def _call(connection: Any, function: str, types: Mapping[str, str], values: Mapping[str, str | bytes | None]) -> Any:
    """Calls a function of the database as the connection does such things; answers what it answers, or an awaitable."""
    given = [values[name] for name in types]
    connection = _lent(connection)
    match _library(connection):
        case "asyncpg":
            statement = _statement(function, types, [f"${number}" for number in range(1, len(types) + 1)])
            return _text(connection.fetchval(statement, *given))
        case "sqlalchemy":
            from sqlalchemy import text  # noqa: PLC0415 - whoever has such a connection has loaded it

            statement = _statement(function, types, [f":{name}" for name in types])
            done = connection.execute(text(statement), dict(values))
            return _text(done, lambda result: result.scalar_one())
        case _ if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
            return _await_cursor(connection, function, types, given)
        case _:
            with _cursor(connection) as cursor:
                cursor.execute(_statement(function, types, _places(cursor, len(types))), given)
                return _value(cursor.fetchone())


def _statement(function: str, types: Mapping[str, str], places: Sequence[str]) -> str:
    arguments = (
        f"{name} => cast({place} as bytea)" if kind == "bytea" else f"{name} => cast(cast({place} as text) as {kind})"
        for (name, kind), place in zip(types.items(), places, strict=True)
    )
    return f"select {function}({', '.join(arguments)})"


# How to get a connection from what people have at hand instead.
_SOURCES = {
    ("asyncpg", "Pool"): "async with pool.acquire() as connection, connection.transaction(): ...",
    ("psycopg_pool", "ConnectionPool"): "with pool.connection() as connection: ...",
    ("psycopg_pool", "AsyncConnectionPool"): "async with pool.connection() as connection: ...",
    ("sqlalchemy", "Engine"): "with engine.begin() as connection: ...",
    ("sqlalchemy", "AsyncEngine"): "async with engine.begin() as connection: ...",
    ("sqlalchemy", "sessionmaker"): "with maker.begin() as session: ...",
    ("sqlalchemy", "async_sessionmaker"): "async with maker.begin() as session: ...",
}


def _library(connection: Any) -> str:
    kinds = _kinds(connection)
    names = {module for module, _ in kinds}
    if not names & {"asyncpg", "sqlalchemy"} and not hasattr(connection, "cursor"):
        raise ConfigError(
            f"{type(connection).__name__} is no connection that Kagzi knows: give one of asyncpg, psycopg, SQLAlchemy, "
            "or another of the DB-API."
        )
    return "asyncpg" if "asyncpg" in names else "sqlalchemy" if "sqlalchemy" in names else ""


def _lent(connection: Any) -> Any:
    """The connection itself, where a pool of SQLAlchemy has lent it. ConfigError for the pools and engines that people
    have at hand instead: none of them has a transaction that the caller could commit.
    """
    kinds = _kinds(connection)
    instead = next((_SOURCES[kind] for kind in kinds if kind in _SOURCES), None)
    if instead is None and ("sqlalchemy", "PoolProxiedConnection") in kinds:
        if connection.dbapi_connection is connection.driver_connection:
            return connection.dbapi_connection
        # Beneath its own disguise such a driver knows nothing of the transaction.
        instead = _SOURCES["sqlalchemy", "AsyncEngine"]
    if instead is not None:
        raise ConfigError(
            f"{type(connection).__name__} has no transaction of yours: give a connection that is in one, as {instead}"
        )
    return connection


def _kinds(connection: Any) -> list[tuple[str, str]]:
    return [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__]


def _text(answer: Any, read: Callable[[Any], Any] = lambda result: result) -> Any:
    if not inspect.isawaitable(answer):
        return str(read(answer))

    async def later() -> str:
        return str(read(await answer))

    return later()


async def _await_cursor(connection: Any, function: str, types: Mapping[str, str], given: Sequence[Any]) -> str:
    async with _cursor(connection) as cursor:
        await cursor.execute(_statement(function, types, _places(cursor, len(types))), given)
        return _value(await cursor.fetchone())


def _cursor(connection: Any) -> Any:
    """A cursor whose rows can be read, whatever the connection makes of its own."""
    if "psycopg" not in {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}:
        return connection.cursor()
    from psycopg.rows import tuple_row  # noqa: PLC0415 - whoever has such a connection has loaded it

    return connection.cursor(row_factory=tuple_row)


def _places(cursor: Any, count: int) -> list[str]:
    """How the cursor writes parameters: psycopg's raw ones as PostgreSQL itself does."""
    raw = any(kind.__name__ in ("RawCursor", "AsyncRawCursor") for kind in type(cursor).__mro__)
    return [f"${number}" for number in range(1, count + 1)] if raw else ["%s"] * count


def _value(row: Any) -> str:
    """The one value of a row, which some drivers give as a mapping."""
    [value] = row.values() if isinstance(row, Mapping) else row
    return str(value)
