"""What a doctor looks at in the database itself: whether it can be used, its schema, clocks and settings, whether
notices come through, and what stands still in it. A check that cannot be made says so, and the next follows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kagzi.cli import screen
from kagzi.cli.findings import Finding, act, counted, note, skewed, unseen, well

if TYPE_CHECKING:
    from asyncpg.connection import Connection

    from kagzi.server.settings import Settings
    from kagzi.store.diagnosis import Standing

_SKEW = timedelta(seconds=1)
_TESTED = 160_000
_DEAD_ROWS = 10_000
# Half of the limit on a history is much, and most of it too much.
_MUCH, _TOO_MUCH = 0.5, 0.8
_LOSES = "a crash of its machine may lose what was acknowledged, or leave the database damaged"
_SETTINGS = {
    "fsync": ("on", _LOSES),
    "full_page_writes": ("on", _LOSES),
    "synchronous_commit": ("on", "a crash may lose the last moments of what was acknowledged, so steps run twice"),
    "autovacuum": ("on", "dead rows are never removed, and everything becomes slower"),
    "track_counts": ("on", "autovacuum does not know where to work"),
}


async def look(url: str, settings: Settings, tolerance: timedelta) -> AsyncIterator[Finding]:
    """Every check that needs the database; one finding after the other."""
    import asyncpg

    from kagzi.store import diagnosis, migrate

    try:
        missing = await migrate.pending(url)
        yield well("database", "it can be reached")
    except migrate.MigrationError as error:
        yield act("migrations", str(error), "Use the version of Kagzi that fits this database.")
        return
    except (asyncpg.PostgresError, OSError, TimeoutError) as error:
        yield act(
            "database", f"it cannot be used: {_told(error)}", "See whether KAGZI_DB_URL is right and PostgreSQL runs."
        )
        return
    if missing:
        yield act("migrations", f"{', '.join(missing)} are missing", "Run `kagzi migrate`.")
        return
    yield well("migrations", "none is missing")
    yield await _notices(url, settings)
    connection = await diagnosis.connect(url)
    try:
        for check, judge in _checks(settings, tolerance).items():
            try:
                found = await judge(connection)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
                found = [unseen(check, f"it could not be looked at: {_told(error)}")]
            for finding in found:
                yield finding
    finally:
        connection.terminate()


def _told(error: Exception) -> str:
    from kagzi.server.logs import without_secrets

    return without_secrets(str(error)) or type(error).__name__


Judge = Callable[["Connection"], Awaitable[list[Finding]]]


def _checks(settings: Settings, tolerance: timedelta) -> dict[str, Judge]:
    return {
        "database clock": lambda connection: _clock(connection, settings),
        "durability": _durability,
        "bloat": _bloat,
        "transactions": lambda connection: _transactions(connection, tolerance),
        "stuck runs": lambda connection: _overdue(connection, tolerance),
        "reservations": lambda connection: _orphans(connection, tolerance),
        "histories": lambda connection: _histories(connection, settings.limit_history_steps),
    }


async def _notices(url: str, settings: Settings) -> Finding:
    import asyncpg

    from kagzi.store import diagnosis

    advice = (
        "Give servers a way to the database itself: KAGZI_DB_LISTEN_URL, past any pooler that shares connections "
        "between transactions. Until then due runs are found within a second instead of at once."
    )
    try:
        heard = await diagnosis.hears(url, settings.db_listen_url or url)
    except (asyncpg.PostgresError, OSError, TimeoutError) as error:
        return act("notices", f"LISTEN is refused: {_told(error)}", advice)
    return (
        well("notices", "NOTIFY is heard")
        if heard
        else act("notices", "LISTEN is accepted, and nothing is heard", advice)
    )


async def _clock(connection: Connection, settings: Settings) -> list[Finding]:
    from kagzi.store import diagnosis

    began = datetime.now(UTC)
    seen = await diagnosis.clock(connection)
    ended = datetime.now(UTC)
    found = [skewed("database clock", seen.database - min(max(seen.database, began), ended), _SKEW, "the database")]
    moved = seen.engine - seen.database
    if abs(moved) > _SKEW:
        advice = "It was skipped forward by a test environment: use this database for tests alone."
        found.append(
            act("engine clock", f"kagzi.now() is {moved.total_seconds():,.0f} s off the database's clock", advice)
        )
    if seen.number < _TESTED:
        advice = "Kagzi is tested with 16 and 18: plan an upgrade."
        found.append(note("PostgreSQL", f"this is version {seen.version}", advice))
    if seen.behind_pooler and settings.db_statement_cache_size:
        advice = "Set KAGZI_DB_STATEMENT_CACHE_SIZE=0 unless the pooler keeps prepared statements."
        found.append(note("pooler", "a pooler stands before the database", advice))
    return found


async def _durability(connection: Connection) -> list[Finding]:
    from kagzi.store import diagnosis

    values = await diagnosis.durability(connection)
    # Any wait for a standby is more than asked for; "local" is enough for one machine.
    fine = {"synchronous_commit": {"on", "local", "remote_write", "remote_apply"}}
    wrong = [
        act(
            "durability",
            f"{name} is {values[name]}: {harm}",
            f"Set {name} = {right} in postgresql.conf, for this role too.",
        )
        for name, (right, harm) in _SETTINGS.items()
        if name in values and values[name] not in fine.get(name, {right})
    ]
    return wrong or [well("durability", ", ".join(f"{name} {values[name]}" for name in _SETTINGS if name in values))]


async def _bloat(connection: Connection) -> list[Finding]:
    from kagzi.store import diagnosis

    found = await diagnosis.dead_rows(connection, _DEAD_ROWS)
    return [
        act(
            "bloat",
            f"kagzi.{each.table} has {each.dead:,} dead rows and {each.live:,} live ones, "
            + (f"vacuumed last {screen.ago(each.vacuumed_at)}" if each.vacuumed_at else "and was never vacuumed"),
            f"Run `vacuum analyze kagzi.{each.table}`, and see that autovacuum runs and no transaction stays open.",
        )
        for each in found
    ] or [well("bloat", "no table has more dead rows than live ones")]


async def _transactions(connection: Connection, tolerance: timedelta) -> list[Finding]:
    from kagzi.store import diagnosis

    found = await diagnosis.long_transactions(connection, tolerance)
    if not found:
        return [well("transactions", "none is open for long")]
    first = found[0]
    said = counted(len(found), "transaction is", "transactions are", 20)
    return [
        act(
            "transactions",
            f"{said} open for too long; the oldest, of {first.namespace!r}, since {screen.moment(first.since)}",
            "They keep dead rows from being removed. End what holds them open, or "
            f"`select pg_terminate_backend({first.subject})`.",
            [each.subject for each in found],
        )
    ]


async def _overdue(connection: Connection, tolerance: timedelta) -> list[Finding]:
    from kagzi.store import diagnosis

    due, leases = await diagnosis.overdue(connection, tolerance)
    found = []
    if due:
        said = counted(len(due), "run is due and nobody took it", "runs are due and nobody took them")
        found.append(_standing("stuck runs", said, due, "Start workers for them, or more of them"))
    if leases:
        said = counted(
            len(leases), "lease has ended and nobody took its run over", "leases have ended with nobody taking over"
        )
        found.append(_standing("expired leases", said, leases, "See that servers run, and workers of this type"))
    return found or [well("stuck runs", "no due run waits for long, and no lease has ended unnoticed")]


def _standing(check: str, said: str, found: list[Standing], advice: str) -> Finding:
    first = found[0]
    where = "" if first.namespace == "default" else f" --namespace {first.namespace}"
    message = f"{said}; the oldest since {screen.moment(first.since)}"
    explain = f"`kagzi runs explain {first.subject}{where}` says why"
    return act(check, message, f"{advice}: {explain}.", [each.subject for each in found])


async def _orphans(connection: Connection, tolerance: timedelta) -> list[Finding]:
    from kagzi.store import diagnosis

    return [
        act(
            "reservations",
            counted(each.count, "event", "events", 10**9)
            + f" of automation {each.automation} in {each.namespace} reserved for run {each.run_id}, which has ended",
            f"Nothing takes them by itself: see `kagzi automations events {each.automation} --status reserved`, and "
            "publish them again under new ids. Somebody changed the run's row, or this is a defect: please report it.",
            [each.run_id],
        )
        for each in await diagnosis.orphans(connection, tolerance)
    ] or [well("reservations", "every reserved event is in the hands of a run")]


async def _histories(connection: Connection, limit: int) -> list[Finding]:
    from kagzi.store import diagnosis

    found = await diagnosis.long_histories(connection, int(limit * _MUCH))
    if not found:
        return [well("histories", f"no live run has more than {int(limit * _MUCH):,} steps")]
    longest = found[0]
    said = counted(len(found), "live run has", "live runs have")
    return [
        (act if longest.steps > limit * _TOO_MUCH else note)(
            "histories",
            f"{said} a long history; {longest.workflow_type} has {longest.steps:,} of {limit:,} steps",
            "Let the workflow go on as a new run before the limit fails it: `await ctx.continue_as_new(...)`.",
            [each.run_id for each in found],
        )
    ]
