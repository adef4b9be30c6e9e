"""Starting runs and sending signals inside the caller's own transaction, with every kind of connection."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from asyncpg.connection import Connection
from psycopg.rows import class_row, dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, sessionmaker

from kagzi import sql
from kagzi.sdk.client import Client
from kagzi.sdk.codec import Codec, Compression
from kagzi.sdk.context import Context
from kagzi.sdk.current import CurrentStep, current_step
from kagzi.sdk.definition import workflow
from kagzi.sdk.errors import ConfigError
from kagzi.sdk.retry import Retry
from kagzi.store.notices import key_hash
from tests.house.test_front_door import loaded_by
from tests.sdk.serving import completed, echo, new_id, serving, waits_for, working
from tests.store import given

LONG = 60.0


@dataclass(frozen=True)
class Order:
    cents: int


@workflow(queue="till", version="2", retry=Retry(max_attempts=7), timeout="1h")
async def buy(ctx: Context, order: Order) -> None: ...


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


# Each runs `use` with a connection inside a transaction, which `commit` ends one way or the other.
Use = Callable[[Any], Any]


async def with_asyncpg(url: str, use: Use, commit: bool) -> Any:
    opened = await asyncpg.connect(url)
    transaction = opened.transaction()
    await transaction.start()
    result = await use(opened)
    await (transaction.commit() if commit else transaction.rollback())
    await opened.close()
    return result


async def with_psycopg(url: str, use: Use, commit: bool) -> Any:
    def run() -> Any:
        with psycopg.connect(url) as opened:
            result = use(opened)
            opened.commit() if commit else opened.rollback()
            return result

    return await asyncio.to_thread(run)


async def with_async_psycopg(url: str, use: Use, commit: bool) -> Any:
    async with await psycopg.AsyncConnection.connect(url) as opened:
        result = await use(opened)
        await (opened.commit() if commit else opened.rollback())
        return result


async def with_sqlalchemy(url: str, use: Use, commit: bool) -> Any:
    def run() -> Any:
        engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
        with engine.connect() as opened:
            result = use(opened)
            opened.commit() if commit else opened.rollback()
        engine.dispose()
        return result

    return await asyncio.to_thread(run)


async def with_lent_psycopg(url: str, use: Use, commit: bool) -> Any:
    def run() -> Any:
        engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
        opened = engine.raw_connection()
        result = use(opened)
        opened.commit() if commit else opened.rollback()
        opened.close()
        engine.dispose()
        return result

    return await asyncio.to_thread(run)


async def with_scoped_session(url: str, use: Use, commit: bool) -> Any:
    def run() -> Any:
        engine = sqlalchemy.create_engine(_dialect(url, "psycopg"))
        opened = scoped_session(sessionmaker(engine))
        result = use(opened)
        opened.commit() if commit else opened.rollback()
        opened.remove()
        engine.dispose()
        return result

    return await asyncio.to_thread(run)


async def with_async_sqlalchemy(url: str, use: Use, commit: bool) -> Any:
    engine = create_async_engine(_dialect(url, "asyncpg"))
    async with AsyncSession(engine) as opened:
        result = await use(opened)
        await (opened.commit() if commit else opened.rollback())
    await engine.dispose()
    return result


async def with_psycopg_dicts(url: str, use: Use, commit: bool) -> Any:
    def run() -> Any:
        with psycopg.connect(url, row_factory=dict_row) as opened:
            result = use(opened)
            opened.commit() if commit else opened.rollback()
            return result

    return await asyncio.to_thread(run)


async def with_raw_async_psycopg(url: str, use: Use, commit: bool) -> Any:
    async with await psycopg.AsyncConnection.connect(
        url, row_factory=class_row(Order), cursor_factory=psycopg.AsyncRawCursor
    ) as opened:
        result = await use(opened)
        await (opened.commit() if commit else opened.rollback())
        return result


def _dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


KINDS = [
    with_asyncpg,
    with_psycopg,
    with_async_psycopg,
    with_psycopg_dicts,
    with_lent_psycopg,
    with_scoped_session,
    with_raw_async_psycopg,
    with_sqlalchemy,
    with_async_sqlalchemy,
]
Kind = Callable[[str, Use, bool], Awaitable[Any]]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])


@every_kind
async def test_a_run_exists_if_and_only_if_the_transaction_commits(
    database_url: str, connection: Connection, kind: Kind
) -> None:
    lost = await kind(database_url, lambda opened: sql.start(opened, buy, Order(1)), False)
    kept = await kind(database_url, lambda opened: sql.start(opened, buy, Order(2)), True)
    found = await connection.fetch("select run_id::text, status from kagzi.workflow_runs")
    assert [tuple(row) for row in found] == [(kept, "PENDING")]
    assert lost != kept


@every_kind
async def test_a_start_says_all_that_a_client_could_say(database_url: str, connection: Connection, kind: Kind) -> None:
    at = datetime(2099, 1, 2, 3, 4, 5, tzinfo=UTC)
    parent = await sql.start(connection, "parent")
    current_step.set(CurrentStep("default", parent, 0, "ship", attempt := new_id(), "key"))
    run_id = await kind(
        database_url,
        lambda opened: sql.start(
            opened,
            buy,
            Order(2),
            id="order-1",
            queue="fast",
            at=at,
            priority=4,
            labels={"customer": "7"},
            dedupe="forever",
            detached=True,
        ),
        True,
    )
    current_step.set(None)
    row = await connection.fetchrow(
        "select * from kagzi.workflow_runs join kagzi.workflow_payloads using (namespace, run_id) where run_id = $1",
        run_id,
    )
    assert row is not None
    assert (row["external_id"], row["task_queue"], row["version"], row["priority"]) == ("order-1", "fast", "2", 4)
    assert (row["available_at"], row["dedupe_forever"], row["detached"]) == (at, True, True)
    assert (str(row["parent_run_id"]), str(row["root_run_id"])) == (parent, parent)
    assert str(row["parent_step_attempt_id"]) == attempt
    assert json.loads(row["labels"]) == {"customer": "7"}
    assert json.loads(row["retry_policy"])["maximum_attempts"] == 7
    assert (row["deadline_at"] - row["created_at"]).total_seconds() == 3_600
    assert (row["input"], row["input_encoding"]) == (b'{"cents":2}', None)
    assert row["seed"] > 0


@every_kind
async def test_a_committed_run_is_picked_up_at_once_and_a_signal_wakes_it(database_url: str, kind: Kind) -> None:
    # Nobody looks by itself: only the notice of the commit can bring it.
    async with (
        serving(database_url, dispatcher_interval_secs=LONG) as server,
        working(server.address, waits=lambda run: [completed("woken")] if run.facts else waits_for("go")) as hand,
        Client(server.address) as client,
    ):
        await asyncio.wait_for(server.notifier.connected.wait(), 10)
        run_id = await kind(database_url, lambda opened: sql.start(opened, "waits", 1), True)
        async with asyncio.timeout(60):
            while not hand.delivered:
                await client.handle(run_id).describe()
            while (await client.handle(run_id).describe()).status != "SLEEPING":
                pass
        signal_id = await kind(database_url, lambda opened: sql.signal(opened, run_id, "go", {"a": 1}), True)
        assert await client.handle(run_id).result(timeout=60) == "woken"
    [fact] = hand.delivered[-1].facts
    assert (fact.signal.signal_id, fact.signal.payload.data) == (signal_id, b'{"a":1}')


@every_kind
async def test_a_signal_exists_if_and_only_if_the_transaction_commits(
    database_url: str, connection: Connection, kind: Kind
) -> None:
    run_id = await sql.start(connection, "waits")
    await kind(database_url, lambda opened: sql.signal(opened, run_id, "go", 1), False)
    signal_id = new_id()
    for _ in range(2):
        await kind(database_url, lambda opened: sql.signal(opened, run_id, "go", 2, id=signal_id), True)
    found = await connection.fetch("select signal_id::text, name, payload, unheard from kagzi.signals")
    assert [tuple(row) for row in found] == [(signal_id, "go", b"2", True)]


async def test_without_any_notice_a_signal_is_heard_within_a_second(database_url: str, connection: Connection) -> None:
    async with serving(database_url, dispatcher_interval_secs=0.2) as server, Client(server.address) as client:
        await server.notifier.stop()
        async with working(server.address, waits=lambda run: [completed("woken")] if run.facts else waits_for("go")):
            handle = await client.start("waits")
            async with asyncio.timeout(60):
                while (await handle.describe()).status != "SLEEPING":
                    pass
            await sql.signal(connection, handle.run_id, "go")
            assert await handle.result(timeout=60) == "woken"
        assert await connection.fetchval("select bool_or(unheard) from kagzi.signals") is False


async def test_an_open_transaction_that_sent_a_signal_delays_nobody(database_url: str, connection: Connection) -> None:
    async with (
        serving(database_url) as server,
        working(server.address, "held", echo=echo) as hand,
        Client(server.address) as client,
    ):
        handle = await client.start("held")
        await hand.holds(handle.run_id)
        transaction = connection.transaction()
        await transaction.start()
        await sql.signal(connection, handle.run_id, "go")
        await sql.start(connection, "echo", id="order-1")
        await hand.end(handle.run_id, completed("not delayed"))
        assert await handle.result(timeout=60) == "not delayed"
        assert await client.execute("echo", 1) == 1
        await transaction.rollback()


async def test_a_signal_to_a_run_that_went_on_as_another_follows_it(database_url: str, connection: Connection) -> None:
    async with serving(database_url) as server, Client(server.address) as client:
        first, second = await client.start("waits"), await client.start("waits")
        # Committed after its run had been continued: as if stored in the moment before.
        await sql.signal(connection, first.run_id, "go", 1)
        await connection.execute(
            "update kagzi.workflow_runs set status = 'COMPLETED', available_at = null, finished_at = kagzi.now(),"
            " continued_as = $2 where run_id = $1",
            first.run_id,
            second.run_id,
        )
        await connection.execute("update kagzi.signals set unheard = true, run_id = $1", first.run_id)
        await sql.signal(connection, first.run_id, "go", 2)
        async with asyncio.timeout(60):
            while await connection.fetchval("select bool_or(unheard) from kagzi.signals"):
                pass
        found = await connection.fetch("select run_id::text, payload from kagzi.signals order by arrival")
    assert [tuple(row) for row in found] == [(second.run_id, b"1"), (second.run_id, b"2")]


async def test_payloads_travel_through_the_codecs(connection: Connection) -> None:
    codecs: list[Codec] = [Compression(min_size=1)]
    run_id = await sql.start(connection, "order", "x" * 1_000, codecs=codecs)
    await sql.signal(connection, run_id, "go", "y" * 1_000, codecs=codecs, workflow="order")
    row = await connection.fetchrow(
        "select input_encoding, payload_encoding from kagzi.workflow_payloads, kagzi.signals"
    )
    assert row is not None
    assert tuple(row) == ("json+zlib", "json+zlib")
    with pytest.raises(ConfigError, match="workflow="):
        await sql.signal(connection, run_id, "go", 1, codecs=codecs)


async def test_an_id_names_one_active_run(connection: Connection) -> None:
    first = await sql.start(connection, "order", id="order-1")
    assert await sql.start(connection, "order", id="order-1") == first
    assert await sql.start(connection, "order", run_id=first) == first
    with pytest.raises(asyncpg.UniqueViolationError, match="order-1"):
        await sql.start(connection, "order", id="order-1", on_conflict="reject")
    with pytest.raises(ConfigError, match="replace"):
        await sql.start(connection, "order", id="order-1", on_conflict="replace")


@pytest.mark.parametrize("status", ["SCHEDULED", "PAUSED"])
async def test_the_id_of_a_schedule_is_no_id_for_a_run(connection: Connection, status: str) -> None:
    template = await given.run(connection, status)
    with pytest.raises(asyncpg.UniqueViolationError, match=f"run id {template} belongs to a schedule") as refused:
        await sql.start(connection, "order", run_id=template)
    assert "Make another id" in str(refused.value.hint)


async def test_an_id_that_was_taken_for_ever_stays_taken(connection: Connection) -> None:
    first = await sql.start(connection, "order", id="order-1", dedupe="forever")
    await connection.execute(
        "update kagzi.workflow_runs set status = 'COMPLETED', available_at = null, finished_at = kagzi.now()"
    )
    assert await sql.start(connection, "order", id="order-1") == first


async def test_of_two_transactions_that_start_one_id_the_second_waits_and_gets_the_first(
    database_url: str, connection: Connection
) -> None:
    other = await asyncpg.connect(database_url)
    transaction = connection.transaction()
    await transaction.start()
    first = await sql.start(connection, "order", id="order-1")
    second = asyncio.ensure_future(sql.start(other, "order", id="order-1"))
    async with asyncio.timeout(60):
        while not await connection.fetchval(
            "select exists (select 1 from pg_stat_activity where wait_event_type = 'Lock')"
        ):
            pass
    await transaction.commit()
    assert await second == first
    await other.close()


@pytest.mark.parametrize(
    ("arguments", "state"),
    [
        ("''", "22023"),
        ("'a' || chr(10)", "22023"),
        ("repeat('a', 256)", "22023"),
        ("'a', task_queue => ''", "22023"),
        ("'a', external_id => ''", "22023"),
        ("'a', priority => 5", "22023"),
        ("'a', priority => null", "22023"),
        ("'a', delay => '-1 s'", "22023"),
        ("'a', delay => '1 s', start_at => now()", "22023"),
        ("'a', timeout => '0'", "22023"),
        ("'a', on_conflict => 'replace'", "22023"),
        ("'a', start_at => 'infinity'", "22023"),
        ("'a', dedupe => 'never'", "22023"),
        ("'a', labels => '[]'", "22023"),
        ("""'a', labels => '{"a": 1}'""", "22023"),
        ("""'a', retry_policy => '{"attempts": 1}'""", "22023"),
        ("""'a', retry_policy => '{"maximum_attempts": -1}'""", "22023"),
        ("'a', namespace => 'nowhere'", "P0002"),
        ("'a', parent_run_id => gen_random_uuid()", "P0002"),
        ("'a', input => to_jsonb(repeat('x', 3000000))", "54000"),
    ],
)
async def test_what_a_server_would_refuse_is_refused_in_sql(connection: Connection, arguments: str, state: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as raised:
        await connection.execute(f"select kagzi.start_workflow({arguments})")
    assert raised.value.sqlstate == state
    assert "kagzi" in str(raised.value)
    assert await connection.fetchval("select count(*) from kagzi.workflow_runs") == 0


async def test_a_signal_needs_a_run_that_lives(connection: Connection) -> None:
    run_id = await sql.start(connection, "order", id="order-1")
    assert await connection.fetchval("select kagzi.signal(null, 'go', external_id => 'order-1')")
    for call, state in (
        ("kagzi.signal(null, 'go')", "22023"),
        (f"kagzi.signal('{run_id}', '')", "22023"),
        (f"kagzi.signal('{run_id}', 'go', external_id => 'order-1')", "22023"),
        ("kagzi.signal(gen_random_uuid(), 'go')", "P0002"),
        ("kagzi.signal(null, 'go', external_id => 'nobody')", "P0002"),
    ):
        with pytest.raises(asyncpg.PostgresError) as raised:
            await connection.execute(f"select {call}")
        assert raised.value.sqlstate == state
    await connection.execute(
        "update kagzi.workflow_runs set status = 'COMPLETED', available_at = null, finished_at = kagzi.now()"
    )
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="ended"):
        await sql.signal(connection, run_id, "go")


async def test_nothing_starts_in_a_disabled_namespace(connection: Connection) -> None:
    await connection.execute("update kagzi.namespaces set enabled = false")
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="disabled"):
        await sql.start(connection, "order")


async def test_the_functions_send_the_notices_that_servers_understand(connection: Connection) -> None:
    heard: list[object] = []
    await connection.add_listener("kagzi_work", lambda *given: heard.append(given[-1]))
    run_id = await sql.start(connection, "order", queue="till")
    await sql.signal(connection, run_id, "go")
    await connection.fetchval("select 1")
    assert heard == ["w" + key_hash("default", "till"), "t" + key_hash("default", run_id)]


async def test_the_functions_are_safe_from_a_callers_search_path(connection: Connection) -> None:
    await connection.execute(
        "create schema evil; create function evil.now() returns timestamptz language sql as 'select null::timestamptz';"
        "create function evil.pg_notify(text, text) returns void language sql as 'select 1/0';"
        "set search_path = evil, pg_catalog"
    )
    await sql.signal(connection, await sql.start(connection, "order"), "go")


async def test_a_connection_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="asyncpg"):
        sql.start(object(), "order")


async def test_what_only_gives_connections_is_refused_with_how_to_get_one(database_url: str) -> None:
    engine = sqlalchemy.create_engine(_dialect(database_url, "psycopg"))
    later = create_async_engine(_dialect(database_url, "asyncpg"))
    for source, words in (
        (asyncpg.create_pool(database_url, min_size=0), r"as async with pool\.acquire\(\) as connection"),
        (engine, r"Engine has no transaction of yours: .*, as with engine\.begin\(\) as connection"),
        (later, r"as async with engine\.begin\(\) as connection"),
        (sessionmaker(engine), r"as with maker\.begin\(\) as session"),
        (async_sessionmaker(later), r"as async with maker\.begin\(\) as session"),
    ):
        with pytest.raises(ConfigError, match=words):
            sql.start(source, "order")
        with pytest.raises(ConfigError, match=words):
            sql.signal(source, new_id(), "go")
    engine.dispose()


async def test_a_connection_of_another_kind_beneath_that_of_sqlalchemy_is_refused(database_url: str) -> None:
    engine = create_async_engine(_dialect(database_url, "asyncpg"))
    async with engine.connect() as opened:
        lent = await opened.get_raw_connection()
        with pytest.raises(ConfigError, match=r"as async with engine\.begin\(\) as connection"):
            await sql.start(lent, "order")
    await engine.dispose()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"run_id": 5}, "run_id=5 must be a UUID"),
        ({"run_id": "order-1"}, "run_id='order-1' must be a UUID"),
        ({"run_id": None}, "run_id=None must be a UUID"),
        ({"name": 5}, "name must be 1 to 255 bytes of printable text, got 5"),
        ({"name": ""}, "name must be 1 to 255 bytes"),
        ({"id": "twice"}, "id='twice' must be a UUID"),
        ({"workflow": 5}, "or by its name, and not as int 5"),
        ({"namespace": 5}, "namespace"),
    ],
)
async def test_a_mistake_in_a_signal_is_told_before_anything_is_sent(
    connection: Connection, given: dict[str, Any], words: str
) -> None:
    arguments = {"run_id": new_id(), "name": "go", **given}
    with pytest.raises(ConfigError, match=words):
        sql.signal(connection, arguments.pop("run_id"), arguments.pop("name"), **arguments)


def test_importing_it_loads_no_driver() -> None:
    loaded = loaded_by("import kagzi.sql")
    assert not loaded & {"asyncpg", "psycopg", "sqlalchemy", "kagzi.server", "kagzi.store"}
    assert "kagzi.sdk.request" in loaded
    assert inspect.getmodule(sql.start) is sys.modules["kagzi.sql"]
