"""Migrations: numbered, forward-only SQL files, each applied once: in a transaction of its own, or piece by piece where
its first line is `-- online`. They are applied while servers work and never keep these waiting for long. An advisory
lock lets any number of servers start at the same time. An applied file that was changed afterwards is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi.store.distribution import distribute
from kagzi.store.errors import StoreError

log = structlog.get_logger(__name__)

# Any constant will do, as long as all versions of Kagzi agree on it.
_LOCK = 0x6B61677A69
# How long a migration keeps others waiting behind it, and how long it then leaves them alone.
_LONGEST_WAIT_MS = 200
_PAUSE = 0.5
_HALF_BUILT = """
select format('%I.%I', n.nspname, c.relname) as name
from pg_index i join pg_class c on c.oid = i.indexrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'kagzi' and not i.indisvalid
"""


class MigrationError(StoreError):
    """The database's schema and this version of Kagzi do not fit together."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `migrations/`."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def online(self) -> bool:
        """Whether its statements cannot be in a transaction, as CREATE INDEX CONCURRENTLY: its first line says so."""
        return self.text.startswith("-- online")


def known() -> list[Migration]:
    """The migrations of this version, in order."""
    folder = files(__package__).joinpath("migrations")
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [Migration(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in entries]


async def apply(url: str, migrations: Sequence[Migration] | None = None) -> list[str]:
    """Brings the database up to date and answers which migrations that took. Waits for whoever else does the same."""
    wanted = known() if migrations is None else migrations
    connection = await asyncpg.connect(url, timeout=10, server_settings={"application_name": "kagzi-migrate"})
    try:
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        applied = await _applied(connection)
        _verify(applied, wanted)
        new = [migration for migration in wanted if migration.name not in applied]
        for migration in new:
            await (_piece_by_piece if migration.online else _at_once)(connection, migration)
            log.info("migration_applied", migration=migration.name)
        await distribute(connection)
        return [migration.name for migration in new]
    finally:
        await connection.close()


async def _at_once(connection: Connection, migration: Migration) -> None:
    """In one transaction. Whoever waits for a lock on a table makes everybody behind wait too, so it asks for a moment
    only, and again, until whoever reads or writes there lets go.
    """
    while True:
        try:
            async with connection.transaction():
                await connection.execute(f"set local lock_timeout = '{_LONGEST_WAIT_MS}ms'")
                await connection.execute(migration.text)
                await _note(connection, migration)
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            log.info("migration_waits", migration=migration.name)
            await asyncio.sleep(random.uniform(0.5, 1.0) * _PAUSE)
        else:
            return


async def _piece_by_piece(connection: Connection, migration: Migration) -> None:
    """Each statement by itself, for what cannot be in a transaction. One that was cut off before is run again whole, so
    every statement says `if not exists`; an index that was left half built is dropped first.
    """
    for row in await connection.fetch(_HALF_BUILT):
        await connection.execute(f"drop index concurrently if exists {row['name']}")
    for statement in _statements(migration.text):
        await connection.execute(statement)
    await _note(connection, migration)


async def _note(connection: Connection, migration: Migration) -> None:
    await connection.execute(
        "insert into kagzi.migrations (name, digest) values ($1, $2)", migration.name, migration.digest
    )


def _statements(text: str) -> list[str]:
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    return [part.strip() for part in code.split(";") if part.strip()]


async def pending(url: str) -> list[str]:
    """Migrations that `apply` would run. Writes nothing."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        exists = await connection.fetchval("select to_regclass('kagzi.migrations') is not null")
        rows = await connection.fetch("select name, digest from kagzi.migrations") if exists else []
        applied = {row["name"]: row["digest"] for row in rows}
        _verify(applied, known())
        return [migration.name for migration in known() if migration.name not in applied]
    finally:
        await connection.close()


async def _applied(connection: Connection) -> dict[str, str]:
    await connection.execute(
        "create schema if not exists kagzi;"
        "create table if not exists kagzi.migrations (name text primary key, digest text not null,"
        " applied_at timestamptz not null default statement_timestamp())"
    )
    return {row["name"]: row["digest"] for row in await connection.fetch("select name, digest from kagzi.migrations")}


def _verify(applied: dict[str, str], wanted: Sequence[Migration]) -> None:
    ours = {migration.name: migration.digest for migration in (*known(), *wanted)}
    for name, digest in applied.items():
        if name not in ours:
            raise MigrationError(
                f"the database has migration {name}, which this version of Kagzi does not know: "
                "it was set up by a newer one. Upgrade this server."
            )
        if ours[name] != digest:
            raise MigrationError(
                f"migration {name} was applied with other contents than this version has: "
                "never edit a migration, add a new one."
            )
