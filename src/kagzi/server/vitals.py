"""What a server says of itself: whether it can do its work, and what it is. Asking is cheap and never fails for
want of a database: that is what it is there to tell.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.protocol.v1.namespace_pb2 import KEY_ADMIN
from kagzi.server.api import checks
from kagzi.server.credential import current, only_namespace
from kagzi.server.settings import Settings
from kagzi.store import inspection, rows
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable
from kagzi.store.inspection import DatabaseInfo

Check = pb.HealthCheckResponse.Check

_PATIENCE = 2.0


class Vitals:
    """Looks at the database and asks `parts`, which answers one check for every other part of the server."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        server_id: str,
        parts: Callable[[], Iterable[Check]] = tuple,
    ) -> None:
        self._database = database
        self._settings = settings
        self._server_id = server_id
        self._parts = parts
        self._started_at = datetime.now(UTC)

    @property
    def heartbeat(self) -> timedelta:
        """How often a worker is to be heard of."""
        return timedelta(seconds=self._settings.heartbeat_secs)

    async def health(self) -> pb.HealthCheckResponse:
        """Each part, and the worst of them."""
        found = [*await self._database_checks(), *self._parts()]
        return pb.HealthCheckResponse(status=max(check.status for check in found), checks=found)

    async def info(self) -> pb.GetServerInfoResponse:
        """What this server is, what it knows and which limits it holds."""
        database = await self._database.read(inspection.database, _PATIENCE)
        settings, caller = self._settings, current.get()
        return pb.GetServerInfoResponse(
            version=version("kagzi"),
            server_id=self._server_id,
            started_at=rows.timestamp(self._started_at),
            schema_version=database.schema,
            known_schema_version=database.known_schema,
            postgres_version=database.version,
            database_now=rows.timestamp(database.now),
            lease_ms=round(settings.lease_secs * 1_000),
            heartbeat_interval_ms=round(settings.heartbeat_secs * 1_000),
            timezone=settings.timezone,
            limits=pb.GetServerInfoResponse.Limits(
                message_bytes=checks.MESSAGE_BYTES,
                payload_bytes=checks.PAYLOAD_BYTES,
                name_bytes=checks.NAME_BYTES,
                history_steps=settings.limit_history_steps,
                history_bytes=settings.limit_history_bytes,
                page_size=checks.PAGE_ROWS,
                starts=checks.STARTS,
            ),
            credentials_required=settings.keys_required,
            namespace=only_namespace() or "default",
            role=caller.role.value if caller is not None else KEY_ADMIN,
        )

    async def _database_checks(self) -> list[Check]:
        began = time.monotonic()
        try:
            info = await self._database.read(inspection.database, _PATIENCE)
        except Unreachable as error:
            message = f"{error}: see whether PostgreSQL runs and can be reached from here"
            return [_check("database", pb.HEALTH_NOT_SERVING, message, began)]
        return [_check("database", pb.HEALTH_SERVING, "", began), _schema_check(info)]


def _schema_check(info: DatabaseInfo) -> Check:
    began = time.monotonic()
    if info.schema < info.known_schema:
        message = f"the schema is at {info.schema}, and {info.known_schema} is needed: run `kagzi migrate`"
        return _check("schema", pb.HEALTH_NOT_SERVING, message, began)
    if info.schema > info.known_schema:
        message = f"the schema is at {info.schema}, newer than this server's {info.known_schema}: upgrade it"
        return _check("schema", pb.HEALTH_DEGRADED, message, began)
    return _check("schema", pb.HEALTH_SERVING, "", began)


def _check(name: str, status: pb.HealthStatus.ValueType, message: str, began: float) -> Check:
    took = round((time.monotonic() - began) * 1_000)
    return Check(name=name, status=status, message=message, took_ms=took)
