"""Migrations: numbered, forward-only SQL files, each applied once in a transaction of its own. An advisory lock lets
any number of servers start at the same time. An applied file that was changed afterwards is refused.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

import asyncpg
import structlog
from asyncpg.connection import Connection

from kagzi.store.errors import StoreError

log = structlog.get_logger(__name__)

# Any constant will do, as long as all versions of Kagzi agree on it.
_LOCK = 0x6B61677A69


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


def known() -> list[Migration]:
    """The migrations of this version, in order."""
    folder = files(__package__).joinpath("migrations")
    entries = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return [Migration(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")) for entry in entries]


async def apply(url: str) -> list[str]:
    """Brings the database up to date and answers which migrations that took. Waits for whoever else does the same."""
    connection = await asyncpg.connect(url, timeout=10, server_settings={"application_name": "kagzi-migrate"})
    try:
        await connection.execute("select pg_advisory_lock($1)", _LOCK)
        applied = await _applied(connection)
        _verify(applied)
        new = [migration for migration in known() if migration.name not in applied]
        for migration in new:
            async with connection.transaction():
                await connection.execute(migration.text)
                await connection.execute(
                    "insert into kagzi.migrations (name, digest) values ($1, $2)",
                    migration.name,
                    migration.digest,
                )
            log.info("migration_applied", migration=migration.name)
        return [migration.name for migration in new]
    finally:
        await connection.close()


async def pending(url: str) -> list[str]:
    """Migrations that `apply` would run. Writes nothing."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        exists = await connection.fetchval("select to_regclass('kagzi.migrations') is not null")
        rows = await connection.fetch("select name, digest from kagzi.migrations") if exists else []
        applied = {row["name"]: row["digest"] for row in rows}
        _verify(applied)
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


def _verify(applied: dict[str, str]) -> None:
    ours = {migration.name: migration.digest for migration in known()}
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
