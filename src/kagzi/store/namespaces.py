"""Namespaces: the rooms that keep the work of different owners apart. A namespace is created once, changed by
people, and never removed here. Whether one is enabled is looked up without a lock, so that the writers of a
namespace do not meet on its row: what looked before a disabling commits may still start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store.errors import Refused, not_found, precondition
from kagzi.store.queries import Queries

_NAMESPACE = (
    "namespace",
    "description",
    "enabled",
    "retention_completed_ms",
    "retention_failed_ms",
    "retention_cancelled_ms",
    "retention_events_ms",
    "created_at",
    "updated_at",
)

_sql = Queries("namespaces.sql")
_create = _sql.bind("create", columns=("namespace",))
_get = _sql.bind("get", columns=_NAMESPACE)
_list = _sql.bind("list", columns=_NAMESPACE)
_update = _sql.bind("update")
_enable = _sql.bind("enable")
_disable = _sql.bind("disable")
_running = _sql.bind("running", columns=("running",))


@dataclass(frozen=True, slots=True)
class Retention:
    """For how long what has ended is kept, in milliseconds: None is the server's setting, 0 is for ever."""

    completed_ms: int | None = None
    failed_ms: int | None = None
    cancelled_ms: int | None = None
    events_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace, as stored."""

    name: str
    description: str
    enabled: bool
    retention: Retention
    created_at: datetime
    updated_at: datetime


async def create(
    connection: Connection, namespace: str, *, description: str = "", retention: Retention | None = None
) -> tuple[Namespace, bool]:
    """Makes a namespace and answers it with True; one that exists is answered as it is, with False."""
    kept = retention or Retention()
    made = await _create.first(
        connection,
        namespace=namespace,
        description=description,
        completed_ms=kept.completed_ms,
        failed_ms=kept.failed_ms,
        cancelled_ms=kept.cancelled_ms,
        events_ms=kept.events_ms,
    )
    return await get(connection, namespace), made is not None


async def get(connection: Connection, namespace: str, *, field: str = "namespace") -> Namespace:
    """One namespace; refused with NOT_FOUND when there is none of this name, which stood in `field`."""
    row = await _get.first(connection, namespace=namespace)
    if row is None:
        raise unknown(namespace, field)
    return _namespace(row)


async def exists(connection: Connection, namespace: str) -> bool:
    """Whether there is a namespace of this name."""
    return await _get.first(connection, namespace=namespace) is not None


def unknown(namespace: str, field: str = "namespace") -> Refused:
    """There is no namespace of this name, which stood in `field`."""
    return not_found("namespace", namespace, field)


async def absent(connection: Connection, namespace: str, what: str, subject: str, field: str) -> Refused:
    """Why something was not found in a namespace: there is no such namespace, or no such thing in it."""
    if await exists(connection, namespace):
        return not_found(what, subject, field)
    return unknown(namespace)


async def require(connection: Connection, namespace: str, *, enabled: bool = True) -> Namespace:
    """The namespace if work may be done in it: refused when it is unknown, or disabled where that matters."""
    found = await get(connection, namespace)
    if enabled and not found.enabled:
        message = f"namespace {namespace!r} is disabled: enable it before work starts in it"
        raise precondition(message, namespace, "namespace")
    return found


async def list_page(
    connection: Connection, *, most: int, after: str = "", enabled: bool | None = None, only: str | None = None
) -> list[Namespace]:
    """Namespaces by name, after the one called `after`; `only` this one if it is given."""
    found = await _list.fetch(connection, after=after, enabled=enabled, only=only, most=most)
    return [_namespace(row) for row in found]


async def update(
    connection: Connection,
    namespace: str,
    *,
    description: str | None = None,
    retention: Retention | None = None,
) -> Namespace:
    """Changes what is given; a retention replaces the whole of the one before."""
    kept = retention or Retention()
    if description is not None or retention is not None:
        await _update.execute(
            connection,
            namespace=namespace,
            description=description,
            keep=retention is None,
            completed_ms=kept.completed_ms,
            failed_ms=kept.failed_ms,
            cancelled_ms=kept.cancelled_ms,
            events_ms=kept.events_ms,
        )
    return await get(connection, namespace, field="name")


async def enable(connection: Connection, namespace: str) -> Namespace:
    """Lets work start, be claimed and fire."""
    await _enable.execute(connection, namespace=namespace)
    return await get(connection, namespace, field="name")


async def disable(connection: Connection, namespace: str) -> tuple[Namespace, int]:
    """Lets nothing more start, be claimed or fire; answers also how many runs workers hold, up to 10,000."""
    await _disable.execute(connection, namespace=namespace)
    found = await get(connection, namespace, field="name")
    [counted] = await _running.fetch(connection, namespace=namespace)
    return found, counted["running"]


def _namespace(row: Record) -> Namespace:
    return Namespace(
        name=row["namespace"],
        description=row["description"],
        enabled=row["enabled"],
        retention=Retention(
            completed_ms=row["retention_completed_ms"],
            failed_ms=row["retention_failed_ms"],
            cancelled_ms=row["retention_cancelled_ms"],
            events_ms=row["retention_events_ms"],
        ),
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
