"""The coordinator's duties, on a real database: silent workers, deadlines, and what is kept no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest_asyncio
from asyncpg import Record
from asyncpg.connection import Connection
from structlog.testing import capture_logs

from kagzi.server.coordinator import GRACE, Coordinator
from kagzi.server.notifier import Notifier
from kagzi.server.settings import Settings
from kagzi.store import upkeep
from kagzi.store.database import Database
from kagzi.store.operation import Outcome
from tests.store import given


def ago(**units: float) -> datetime:
    return datetime.now(UTC) - timedelta(**units)


class Server:
    """A coordinator of its own on the test's database, and what it announced."""

    def __init__(self, database: Database, url: str, **settings: Any) -> None:
        self.announced: list[tuple[str, Outcome]] = []
        told = Settings(**{"coordinator_interval_secs": 60, "worker_visibility_timeout_secs": 0.3, **settings})
        self.coordinator = Coordinator(database, Notifier(url), told, self._announce)
        # As if it had been up for long enough to have heard of every worker.
        self.coordinator._began -= 3_600

    def _announce(self, namespace: str, outcome: Outcome) -> None:
        self.announced.append((namespace, outcome))

    @property
    def ended(self) -> list[str]:
        return [run.run_id for _, outcome in self.announced for run in outcome.ended]


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database(database_url).open()
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


async def worker(
    connection: Connection, heard_secs_ago: float, status: str = "ONLINE", namespace: str = "default"
) -> str:
    worker_id = given.new_id()
    await connection.execute(
        "insert into kagzi.workers (namespace, worker_id, instance, task_queue, types, type_versions, type_hashes,"
        " status, last_heartbeat_at) values ($1, $2, $3, 'default', '{order}', '{\"\"}', '{\"\"}', $4,"
        " kagzi.now() - $5 * interval '1 second')",
        *(namespace, worker_id, given.new_id(), status, heard_secs_ago),
    )
    return worker_id


async def run_row(connection: Connection, run_id: str) -> Record:
    row = await connection.fetchrow(
        "select status, claim_token, cancel_requested_at, cancel_reason, error::text as error,"
        " available_at <= kagzi.now() as due from kagzi.workflow_runs where run_id = $1",
        run_id,
    )
    assert row is not None
    return row


async def left(connection: Connection, table: str, column: str = "run_id") -> set[str]:
    return {str(row[0]) for row in await connection.fetch(f"select {column} from kagzi.{table}")}  # noqa: S608 - ours


async def test_a_silent_worker_is_offline_and_keeps_its_runs(
    database: Database, database_url: str, connection: Connection
) -> None:
    await connection.execute("insert into kagzi.namespaces (namespace) values ('shop')")
    silent = [
        await worker(connection, 31),
        await worker(connection, 31, "DRAINING"),
        await worker(connection, 99, namespace="shop"),
    ]
    heard = await worker(connection, 5)
    held = await given.run(connection, "RUNNING", due="10 s", locked_by=silent[0])
    await Server(database, database_url).coordinator.silence_workers()
    offline = await connection.fetch("select worker_id from kagzi.workers where status = 'OFFLINE'")
    assert {str(row["worker_id"]) for row in offline} == set(silent)
    assert heard not in silent
    row = await given.seen(connection, held)
    assert (row["status"], str(row["locked_by"])) == ("RUNNING", silent[0])


async def test_a_heartbeat_under_way_wins_against_its_worker_s_silence(
    database: Database, database_url: str, connection: Connection
) -> None:
    silent = await worker(connection, 31)
    async with connection.transaction():
        await connection.execute(
            "update kagzi.workers set last_heartbeat_at = kagzi.now() where worker_id = $1", silent
        )
        await asyncio.wait_for(Server(database, database_url).coordinator.silence_workers(), 10)
    await Server(database, database_url).coordinator.silence_workers()
    assert await connection.fetchval("select status from kagzi.workers") == "ONLINE"


async def test_a_worker_heard_of_and_a_run_no_longer_late_since_they_were_found_are_left_alone(
    connection: Connection,
) -> None:
    heard = await worker(connection, 5)
    asked = await given.run(
        connection, "RUNNING", started_at=ago(hours=1), deadline_at=ago(minutes=1), cancel_requested_at=ago(seconds=5)
    )
    early = await given.run(connection, "PENDING", deadline_at=ago(hours=-1))
    async with connection.transaction():
        assert await upkeep.silence(connection, "default", [heard], timedelta(seconds=30)) == []
        ended, outcome = await upkeep.expire(connection, "default", [asked, early], GRACE)
    assert (ended, outcome) == ([], Outcome())
    assert await connection.fetchval("select status from kagzi.workers") == "ONLINE"
    assert (await run_row(connection, early))["cancel_requested_at"] is None


async def test_a_server_that_has_just_come_up_or_lost_its_database_listens_first(
    database: Database, database_url: str, connection: Connection
) -> None:
    await worker(connection, 31)
    fresh = Server(database, database_url, worker_visibility_timeout_secs=30).coordinator
    fresh._began += 3_600
    await fresh.silence_workers()
    fresh._began -= 3_600
    database.lost_at = asyncio.get_running_loop().time()
    await fresh.silence_workers()
    assert await connection.fetchval("select status from kagzi.workers") == "ONLINE"


async def test_a_run_that_never_started_fails_at_its_deadline(
    database: Database, database_url: str, connection: Connection
) -> None:
    late = await given.run(connection, "PENDING", deadline_at=ago(seconds=1))
    future = await given.run(connection, "PENDING", deadline_at=ago(hours=-1))
    server = Server(database, database_url)
    await server.coordinator.expire_runs()
    row = await run_row(connection, late)
    assert row["status"] == "FAILED"
    assert '"DeadlineExceeded"' in row["error"]
    assert (await run_row(connection, future))["status"] == "PENDING"
    assert server.ended == [late]


async def test_a_run_at_its_deadline_is_asked_to_end_and_a_suspended_one_woken(
    database: Database, database_url: str, connection: Connection
) -> None:
    started = {"deadline_at": ago(seconds=1), "started_at": ago(minutes=1)}
    running = await given.run(connection, "RUNNING", due="20 s", **started)
    sleeping = await given.run(connection, "SLEEPING", due="never", task_queue="slow", **started)
    retrying = await given.run(connection, "PENDING", due="1 hour", **started)
    server = Server(database, database_url)
    await server.coordinator.expire_runs()
    rows = [await run_row(connection, run_id) for run_id in (running, sleeping, retrying)]
    assert [row["status"] for row in rows] == ["RUNNING", "SLEEPING", "PENDING"]
    assert all(row["cancel_requested_at"] is not None and row["cancel_reason"] for row in rows)
    assert [row["due"] for row in rows] == [False, True, True]
    [(namespace, outcome)] = server.announced
    assert (namespace, outcome.told, outcome.due) == ("default", [running], {"slow", "default"})
    asked_at = [row["cancel_requested_at"] for row in rows]
    await server.coordinator.expire_runs()
    again = [(await run_row(connection, run_id))["cancel_requested_at"] for run_id in (running, sleeping, retrying)]
    assert again == asked_at
    assert server.ended == []


async def test_a_run_that_does_not_end_when_asked_is_ended_30_seconds_later(
    database: Database, database_url: str, connection: Connection
) -> None:
    long_ago, just_now = ago(seconds=GRACE.total_seconds() + 1), ago(seconds=GRACE.total_seconds() - 5)
    started = ago(hours=1)

    async def late(deadline_at: datetime, cancel_requested_at: datetime) -> str:
        return await given.run(
            connection,
            "RUNNING",
            due="20 s",
            started_at=started,
            deadline_at=deadline_at,
            cancel_requested_at=cancel_requested_at,
        )

    over = await late(long_ago, long_ago)
    asked_late = await late(long_ago, just_now)
    cancelled_before = await late(just_now, long_ago)
    server = Server(database, database_url)
    await server.coordinator.expire_runs()
    row = await run_row(connection, over)
    assert (row["status"], row["claim_token"]) == ("FAILED", None)
    assert '"DeadlineExceeded"' in row["error"]
    for run_id in (asked_late, cancelled_before):
        assert (await run_row(connection, run_id))["status"] == "RUNNING"
    assert server.ended == [over]


async def test_a_late_run_that_somebody_holds_locked_is_left_for_the_next_pass(
    database: Database, database_url: str, connection: Connection
) -> None:
    held = await given.run(connection, "PENDING", deadline_at=ago(seconds=1))
    free = await given.run(connection, "PENDING", deadline_at=ago(seconds=1))
    server = Server(database, database_url)
    async with connection.transaction():
        await connection.execute("select 1 from kagzi.workflow_runs where run_id = $1 for update", held)
        await asyncio.wait_for(server.coordinator.expire_runs(), 10)
        assert server.ended == [free]
    await server.coordinator.expire_runs()
    assert server.ended == [free, held]


async def test_servers_that_do_their_duties_at_once_end_each_run_once(
    database: Database, database_url: str, connection: Connection
) -> None:
    late = {await given.run(connection, "PENDING", deadline_at=ago(seconds=1)) for _ in range(60)}
    servers = [Server(database, database_url, coordinator_batch_size=20) for _ in range(4)]

    async def expire(server: Server) -> None:
        for _ in range(6):
            await server.coordinator.expire_runs()

    await asyncio.gather(*(expire(server) for server in servers))
    await expire(servers[0])
    ended = [run_id for server in servers for run_id in server.ended]
    assert len(ended) == 60
    assert set(ended) == late


async def old_run(connection: Connection, status: str = "COMPLETED", days: float = 31, **columns: Any) -> str:
    run_id = await given.run(connection, status, **columns)
    await connection.execute(
        "update kagzi.workflow_runs set finished_at = kagzi.now() - $2 * interval '1 day' where run_id = $1",
        run_id,
        days,
    )
    return run_id


async def test_a_run_is_removed_with_everything_of_its_own_and_nothing_else(
    database: Database, database_url: str, connection: Connection
) -> None:
    old, young = await old_run(connection), await old_run(connection, days=29)
    for run_id in (old, young):
        await given.step(connection, run_id, "charge")
        await connection.execute(
            "insert into kagzi.workflow_payloads (namespace, run_id) values ('default', $1)", run_id
        )
        await connection.execute(
            "insert into kagzi.signals (namespace, signal_id, run_id, name) values ('default', $1, $2, 'go')",
            *(given.new_id(), run_id),
        )
    live = await given.run(connection, "SLEEPING", created_at=ago(days=400))
    paused = await given.run(connection, "PAUSED", created_at=ago(days=400))
    await Server(database, database_url).coordinator.remove_old()
    assert await left(connection, "workflow_runs") == {young, live, paused}
    for table in ("workflow_payloads", "step_runs", "signals"):
        assert await left(connection, table) == {young}


async def test_a_run_is_kept_while_its_parent_lives(
    database: Database, database_url: str, connection: Connection
) -> None:
    parent, ended = await given.run(connection, "SLEEPING", due="never"), await old_run(connection, days=1)
    child = await old_run(connection, parent_run_id=parent)
    await old_run(connection, parent_run_id=ended)
    await old_run(connection, parent_run_id=given.new_id())
    await Server(database, database_url).coordinator.remove_old()
    assert await left(connection, "workflow_runs") == {parent, ended, child}


async def test_a_namespace_keeps_its_runs_as_long_as_it_says(
    database: Database, database_url: str, connection: Connection
) -> None:
    day = 86_400_000
    await connection.execute(
        "insert into kagzi.namespaces (namespace, retention_completed_ms, retention_failed_ms) values"
        " ('brief', $1, $2), ('for-ever', 0, null)",
        *(day, 3 * day),
    )
    kept = {
        await old_run(connection, "FAILED", 2, namespace="brief"),
        await old_run(connection, "CANCELLED", 2, namespace="brief"),
        await old_run(connection, "COMPLETED", 1_000, namespace="for-ever"),
    }
    await old_run(connection, "COMPLETED", 2, namespace="brief")
    await old_run(connection, "FAILED", 31, namespace="for-ever")
    await Server(database, database_url).coordinator.remove_old()
    assert await left(connection, "workflow_runs") == kept


async def test_a_server_told_to_keep_runs_for_ever_does(
    database: Database, database_url: str, connection: Connection
) -> None:
    old = await old_run(connection, days=3_000)
    await Server(database, database_url, retention_runs_secs=0).coordinator.remove_old()
    assert await left(connection, "workflow_runs") == {old}


async def test_removal_goes_on_in_small_batches_until_nothing_is_left(
    database: Database, database_url: str, connection: Connection
) -> None:
    for _ in range(25):
        await old_run(connection)
    before = await connection.fetchval("select pg_current_xact_id()::text::bigint")
    server = Server(database, database_url, coordinator_batch_size=10)
    while await server.coordinator.remove_old() is not None:
        pass
    after = await connection.fetchval("select pg_current_xact_id()::text::bigint")
    assert await left(connection, "workflow_runs") == set()
    assert after - before >= 4


async def test_a_run_that_somebody_reads_under_a_lock_is_removed_later(
    database: Database, database_url: str, connection: Connection
) -> None:
    old = await old_run(connection)
    server = Server(database, database_url)
    async with connection.transaction():
        await connection.execute("select 1 from kagzi.workflow_runs for no key update")
        await asyncio.wait_for(server.coordinator.remove_old(), 10)
        assert await left(connection, "workflow_runs") == {old}


async def test_workers_long_gone_and_old_counts_are_forgotten(
    database: Database, database_url: str, connection: Connection
) -> None:
    day = 86_400
    await worker(connection, 2 * day, "OFFLINE")
    kept = {await worker(connection, 0.5 * day, "OFFLINE"), await worker(connection, 2 * day, "ONLINE")}
    server_id = given.new_id()
    await connection.execute(
        "insert into kagzi.stats (namespace, minute, server_id)"
        " select 'default', date_trunc('minute', kagzi.now()) - days * interval '1 day', $1"
        " from unnest(array[1, 13, 15, 400]) as days",
        server_id,
    )
    await Server(database, database_url).coordinator.remove_old()
    assert await left(connection, "workers", "worker_id") == kept
    assert len(await left(connection, "stats", "minute")) == 2


async def test_events_are_removed_as_the_server_is_set(
    database: Database, database_url: str, connection: Connection
) -> None:
    await connection.execute(
        "insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments)"
        " values ('default', 'inbox', '1', 'default', '{}');"
        "insert into kagzi.events (namespace, automation, topic, event_id, created_at, updated_at)"
        " select 'default', 'inbox', 'mail', 'd' || days, kagzi.now() - days * interval '1 day',"
        "        kagzi.now() - days * interval '1 day' from unnest(array[1, 8, 29, 31]) as days"
    )
    await Server(database, database_url, retention_events_secs=0).coordinator._pass()
    assert len(await left(connection, "events", "event_id")) == 4
    await Server(database, database_url).coordinator._pass()
    assert await left(connection, "events", "event_id") == {"d1", "d8", "d29"}
    server = Server(database, database_url, retention_events_secs=7 * 86_400)
    assert await server.coordinator.clear_events() is None
    assert await left(connection, "events", "event_id") == {"d1"}
    # Nothing is urgent: the next look comes a while later.
    await connection.execute("update kagzi.namespaces set retention_events_ms = 1")
    await server.coordinator.clear_events()
    assert await left(connection, "events", "event_id") == {"d1"}


async def test_the_loop_wakes_at_the_next_deadline_and_not_only_at_its_interval(
    database: Database, database_url: str, connection: Connection
) -> None:
    late = await given.run(connection, "PENDING", deadline_at=ago(seconds=-0.5))
    server = Server(database, database_url)
    ended = asyncio.Event()
    server.coordinator._announce = lambda _namespace, _outcome: ended.set()
    server.coordinator.start()
    await asyncio.wait_for(ended.wait(), 20)
    await server.coordinator.stop()
    assert (await run_row(connection, late))["status"] == "FAILED"


async def test_a_duty_that_fails_is_logged_by_name_and_stops_no_other(
    database: Database, database_url: str, connection: Connection
) -> None:
    late = await given.run(connection, "PENDING", deadline_at=ago(seconds=1))
    await connection.execute("alter table kagzi.workers rename column last_heartbeat_at to heard_at")
    server = Server(database, database_url)
    with capture_logs() as logs:
        await server.coordinator._pass()
    assert [entry["duty"] for entry in logs if entry["event"] == "duty_failed"] == ["silence_workers", "remove_old"]
    assert server.ended == [late]
