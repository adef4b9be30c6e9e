"""What stands in each namespace, counted a few times a minute, for charts. Any number of servers may count: each first
looks who was not counted lately, so together they count little more than one would. Charts, not books: nothing is
decided by what is written here.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from asyncpg.connection import Connection

from kagzi.server.lifecycle import Loop
from kagzi.store import counts, depths, stats
from kagzi.store.database import Database
from kagzi.store.errors import Unreachable

log = structlog.get_logger(__name__)

_EVERY_SECS = 20.0
# A server whose turn comes a little early finds what it counted itself a little young.
_SINCE = timedelta(seconds=_EVERY_SECS * 0.9)
# Namespaces counted in one turn; with more of them each is counted less often.
_MOST = 100
# Pairs of queue and type of one namespace that are kept.
_PAIRS = 100
_PATIENCE = 2.0


class Gauges(Loop):
    """Counts what waits, runs and sleeps."""

    name = "gauges"

    def __init__(self, database: Database, server_id: str) -> None:
        super().__init__()
        self._database = database
        self._server_id = server_id
        self._after = ""

    async def run(self) -> None:
        while not self.stopping.is_set():
            try:
                await self.count()
            except Unreachable:
                log.warning("gauges_wait_for_database")
            await self.pause(_EVERY_SECS)

    async def count(self) -> None:
        """Counts the namespaces whose turn it is."""
        found = await self._database.read(
            lambda c: stats.uncounted(c, since=_SINCE, most=_MOST, after=self._after), _PATIENCE
        )
        self._after = found[-1][0] if len(found) == _MOST else ""
        for namespace, stood in found:
            await self._count(namespace, stood)

    async def _count(self, namespace: str, stood: bool) -> None:
        total = await self._database.read(lambda c: depths.total(c, namespace), _PATIENCE)
        if not stood and not (total.pending_due or total.running or total.sleeping):
            return

        pairs = await self._database.read(lambda c: depths.depth(c, namespace, most=_PAIRS), _PATIENCE)

        async def gauge(connection: Connection) -> None:
            await counts.keep(connection, namespace, pairs)
            await stats.gauge(
                connection,
                namespace,
                self._server_id,
                pending_due=total.pending_due,
                running=total.running,
                sleeping=total.sleeping,
                oldest_due_ms=total.oldest_due_ms,
            )

        await self._database.transact(gauge, _PATIENCE)
