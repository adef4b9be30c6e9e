"""The pool of connections and the one way to run a transaction. Deadlocks and serialisation errors are retried here;
a lost connection too, because every write of the store recognises its own repetition. Nothing else in the project
opens a connection, but for the notifier's LISTEN and the migrations.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar, cast

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi import faults
from kagzi.store.errors import Unreachable

T = TypeVar("T")
_PLANS_KEPT_FROM = 17
log = structlog.get_logger(__name__)

# The work itself is sound, it only met somebody: run it again.
_MET_SOMEBODY = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The database went away, is starting, or is stopping: run it again once it is back.
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.ReadOnlySQLTransactionError,
    # What asyncpg says of a connection that was cut in the middle of an answer.
    asyncpg.InternalClientError,
    # Of these only a closed connection or pool: see _went_away.
    asyncpg.InterfaceError,
    ConnectionError,
    TimeoutError,
    OSError,
)


class Database:
    """A pool of connections to one PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        size: int = 8,
        lease_seconds: float = 30,
        statement_cache: int = 512,
        planned_once: bool = False,
    ) -> None:
        self.url = url
        self._size = size
        self._cache = statement_cache
        self._settings = {
            "application_name": "kagzi-server",
            "search_path": "pg_catalog, pg_temp",
            "timezone": "UTC",
            # A server that hangs in a transaction must not hold rows beyond the lease of who waits for them.
            "idle_in_transaction_session_timeout": str(int(lease_seconds * 500)),
            # A caller's open transaction delays what needs its rows, never the rest of a batch.
            "lock_timeout": "200",
            # The statements are index probes on known keys; compiling them costs more than running them.
            "jit": "off",
            # A plan that is kept may be made while a table is as good as empty; a minute later, before anybody has
            # analysed it, the table is large. One that is not kept would read a small table whole for every probe.
            "enable_seqscan": "off",
        }
        if planned_once:
            # Statements over arrays are otherwise planned anew each time, which costs more than to run them: a start of
            # ten runs 1.7 ms of the backend instead of 0.6. For statements that are right with any values alone.
            self._settings["plan_cache_mode"] = "force_generic_plan"
        else:
            # A plan for any values reads whole lists for a filter that is given to few calls, and PostgreSQL comes to
            # keep it when a statement is asked for the sixth time.
            self._settings["plan_cache_mode"] = "force_custom_plan"
        self._planned_once = planned_once
        # Behind a pooler a connection is somebody else's after each transaction: nothing may be kept in it, be it a
        # statement or a setting.
        self._shared = statement_cache == 0
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None
        # When the database was last found to be away, on the monotonic clock.
        self.lost_at = -math.inf

    async def open(self) -> Self:
        """Connects; fails at once when the database cannot be reached."""
        self._pool = await asyncpg.create_pool(
            self.url,
            # A floor would make the pool reconnect, and complain, on its own while the database is away.
            min_size=0,
            max_size=self._size,
            statement_cache_size=self._cache,
            max_inactive_connection_lifetime=0,
            server_settings={} if self._shared else self._settings,
            reset=_keep,
            init=plan_anew if self._planned_once and not self._shared else None,
            command_timeout=60,
            timeout=5,
        )
        return self

    async def close(self) -> None:
        """Closes the connections, those in use after a moment of grace."""
        if self._pool is None:
            return
        try:
            await asyncio.wait_for(self._pool.close(), 3)
        except (TimeoutError, *LOST):
            self._pool.terminate()

    async def transact(self, work: Callable[[Connection], Awaitable[T]], patience: float = 10.0) -> T:
        """Runs `work` in one transaction and commits it. Tries again for `patience` seconds when the database goes
        away, and whenever it met somebody; `work` must therefore recognise what it has written before.
        """

        async def transaction(connection: Connection) -> T:
            async with connection.transaction():
                if self._shared:
                    await connection.execute(self._local_settings())
                done = await work(connection)
                if faults.ON:
                    faults.reach("transaction.commit")
            if faults.ON:
                faults.reach("transaction.committed")
            return done

        return await self._patiently(transaction, patience)

    def _local_settings(self) -> str:
        """The settings, for one transaction. The words are our own; those of users never come here."""
        kept = {name: value for name, value in self._settings.items() if name != "application_name"}
        return ";".join(f"set local {name} = {value}" for name, value in kept.items())

    async def read(self, work: Callable[[Connection], Awaitable[T]], patience: float = 10.0) -> T:
        """Runs `work`, which needs no transaction of its own: it only reads, or is one statement."""
        return await (self.transact if self._shared else self._patiently)(work, patience)

    async def _patiently(self, work: Callable[[Connection], Awaitable[T]], patience: float) -> T:
        if self._pool is None:
            raise Unreachable("the database is not connected yet")
        until = time.monotonic() + patience
        pause = 0.02
        while True:
            try:
                async with self._pool.acquire(timeout=5) as proxy:
                    # A proxy does all that a connection does and guards it once it is back in the pool.
                    return await work(cast("Connection", proxy))
            except _MET_SOMEBODY:
                await asyncio.sleep(random.uniform(0.001, 0.02))
            except asyncpg.LockNotAvailableError as error:
                if time.monotonic() > until:
                    raise Unreachable(f"another transaction holds what this needs, for {patience:.0f} s now") from error
                await asyncio.sleep(random.uniform(0.001, 0.02))
            except LOST as error:
                if not _went_away(error):
                    raise
                self.lost_at = time.monotonic()
                if time.monotonic() + pause > until:
                    raise Unreachable(f"the database did not answer for {patience:.0f} s") from error
                log.warning("database_lost", error=type(error).__name__)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, 1.0)


def _went_away(error: Exception) -> bool:
    """An InterfaceError may be a defect of ours, or quote a value that could not be sent and speaks of closing."""
    if not isinstance(error, asyncpg.InterfaceError):
        return True
    return "clos" in str(error) and not isinstance(error, ValueError)


async def plan_anew(connection: Connection) -> None:
    """Before PostgreSQL 17 no plan is kept. One that is made on an empty table reads the whole namespace for an array
    of keys, because each key counts as a search of its own, and would go on doing so when the table has grown.
    """
    if connection.get_server_version().major < _PLANS_KEPT_FROM:
        await connection.execute("set plan_cache_mode = force_custom_plan")


async def _keep(_: object) -> None:
    """A connection goes back as it is. Nothing here changes a session beyond its transaction, and asking the database
    to reset one would double the round trips of a lone operation.
    """
