"""`kagzi doctor`: every check finds what it is for, provoked for real, and says what to do about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from typer.testing import CliRunner

from kagzi import Context, Worker, step, workflow
from kagzi.cli import app, findings, server_checks
from kagzi.cli.findings import Level
from kagzi.embedded import Embedded
from kagzi.sdk.client import Client
from kagzi.store import diagnosis, migrate
from tests.proxy import Proxy
from tests.sdk.serving import serving, until, working

LIMIT = 60


class Visit:
    """What the doctor said, by check."""

    def __init__(self, code: int, told: str) -> None:
        self.code = code
        document = json.loads(told)
        assert document["well"] == (code == 0)
        self.found: dict[str, dict[str, Any]] = {one["check"]: one for one in document["findings"]}

    def acts(self) -> set[str]:
        return {check for check, one in self.found.items() if one["level"] == "act"}


async def visit(*arguments: str, **variables: str) -> Visit:
    """Calls the doctor."""
    result = await asyncio.to_thread(
        lambda: CliRunner().invoke(app, ["doctor", "--json", *arguments], env={"NO_COLOR": "1", **variables})
    )
    assert result.exit_code in (0, 1), result.output
    return Visit(result.exit_code, result.stdout)


async def look(url: str, *arguments: str, **variables: str) -> Visit:
    """Calls the doctor to a database alone."""
    return await visit("--database", *arguments, KAGZI_DB_URL=url, **variables)


async def finds(url: str, check: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """Calls the doctor until something must be done about `check`, which may come a moment later."""
    async with asyncio.timeout(LIMIT):
        while True:
            seen = await look(url, *arguments, **variables)
            if check in seen.acts():
                assert seen.code == 1
                return seen.found[check]
            await asyncio.sleep(0.05)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    made = await asyncpg.connect(database_url)
    yield made
    await made.close()


Sql = asyncpg.Connection


async def test_nothing_is_found_where_nothing_is_wrong(database_url: str) -> None:
    async with serving(database_url) as server:
        seen = await visit("--url", server.address, KAGZI_DB_URL=database_url)
    assert (seen.code, seen.acts()) == (0, set())
    looked_at = {"server", "versions", "schema", "clock", "server parts", "namespaces", "database", "migrations"}
    looked_at |= {
        "database clock",
        "notices",
        "durability",
        "bloat",
        "transactions",
        "stuck runs",
        "reservations",
        "histories",
    }
    assert seen.found.keys() == looked_at
    assert {one["level"] for one in seen.found.values()} == {"well"}


async def test_what_is_found_is_told_to_people_with_what_to_do(database_url: str, connection: Sql[Any]) -> None:
    await connection.execute("select kagzi.start_workflow('nobody')")
    told = await asyncio.to_thread(
        lambda: CliRunner().invoke(
            app, ["doctor", "--database", "--tolerance", "1ms"], env={"NO_COLOR": "1", "KAGZI_DB_URL": database_url}
        )
    )
    assert told.exit_code == 1
    assert "✗ stuck runs: 1 run is due and nobody took it" in told.stdout
    assert "→ Start workers for them" in told.stdout
    assert told.stdout.endswith("1 thing needs you: stuck runs.\n")


async def test_a_server_that_asks_for_a_key_is_not_looked_into_without_one(database_url: str) -> None:
    async with serving(database_url, server_require_keys=True) as server:
        seen = await visit("--url", server.address, KAGZI_DB_URL=database_url)
    assert seen.acts() == {"server"}
    assert "KAGZI_API_KEY" in seen.found["server"]["advice"]
    assert seen.found["durability"]["level"] == "well"


async def test_a_server_that_does_not_answer_is_named() -> None:
    seen = await visit("--url", "127.0.0.1:1", KAGZI_DATA_DIR="/nowhere")
    assert (seen.code, seen.acts()) == (1, {"server"})
    assert "127.0.0.1:1" in seen.found["server"]["message"]
    assert "kagzi dev" in seen.found["server"]["advice"]
    assert seen.found["database"]["level"] == "unseen"


async def test_a_database_that_cannot_be_used_is_said_without_its_secret() -> None:
    seen = await look("postgresql://me:hunter2@127.0.0.1:1/kagzi")
    assert seen.acts() == {"database"}
    assert "hunter2" not in json.dumps(seen.found)


async def test_the_database_of_a_running_dev_is_found_by_its_directory(postgres: Embedded) -> None:
    seen = await visit("--database", "--data-dir", str(postgres.directory))
    assert seen.acts() == {"migrations"}
    assert "kagzi migrate" in seen.found["migrations"]["advice"]


async def test_a_schema_of_another_version_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    await connection.execute("insert into kagzi.migrations (name, digest) values ('9999_of_tomorrow', 'x')")
    assert "9999_of_tomorrow" in (await finds(database_url, "migrations"))["message"]
    async with serving(database_url) as server:
        seen = await visit("--url", server.address, KAGZI_DATA_DIR="/nowhere")
    assert seen.found["schema"]["level"] == "note"


async def test_an_older_schema_is_to_be_migrated(database_url: str, connection: Sql[Any]) -> None:
    last = migrate.known()[-1].name
    async with serving(database_url) as server:
        await connection.execute("delete from kagzi.migrations where name = $1", last)
        seen = await visit("--url", server.address, KAGZI_DB_URL=database_url)
    assert {"schema", "migrations"} <= seen.acts()
    assert last in seen.found["migrations"]["message"]


async def test_versions_that_differ_are_told() -> None:
    told = server_checks._versions({"version": "0.0.0", "postgres_version": "18"})
    assert (told.level, "server 0.0.0" in told.message) == (Level.NOTE, True)


async def test_a_pooler_that_loses_notices_is_noticed_and_a_way_past_it_is_accepted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Proxy(database_url) as proxy:
        proxy.deaf = True
        with monkeypatch.context() as hasty:
            hasty.setattr(diagnosis, "_NOTICE_SECS", 0.2)
            found = await finds(proxy.url, "notices")
        assert "KAGZI_DB_LISTEN_URL" in found["advice"]
        seen = await look(proxy.url, KAGZI_DB_LISTEN_URL=database_url)
        assert seen.found["notices"]["level"] == "well"
        seen = await look(proxy.url, KAGZI_DB_LISTEN_URL="postgresql://127.0.0.1:1/kagzi")
        assert "refused" in seen.found["notices"]["message"]


async def test_a_part_of_the_server_that_does_not_do_its_work_is_named(database_url: str) -> None:
    async with Proxy(database_url) as proxy, serving(database_url, db_listen_url=proxy.url) as server, proxy.away():
        await until(lambda: not server.notifier.connected.is_set(), LIMIT)
        seen = await visit("--url", server.address, KAGZI_DATA_DIR="/nowhere")
    assert seen.acts() == {"server: notify"}


async def test_a_clock_that_is_off_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    await connection.execute(
        "create or replace function kagzi.now() returns timestamptz language sql stable"
        " as $$ select statement_timestamp() + interval '1 hour' $$"
    )
    async with serving(database_url) as server:
        seen = await visit("--url", server.address, KAGZI_DATA_DIR="/nowhere")
    assert seen.acts() == {"clock"}
    assert "ahead of this machine" in seen.found["clock"]["message"]
    assert "3,600 s off" in (await finds(database_url, "engine clock"))["message"]


def test_clocks_are_compared_in_both_directions() -> None:
    second = timedelta(seconds=1)
    assert findings.skewed("clock", second, second, "it").level is Level.WELL
    assert "behind" in findings.skewed("clock", -2 * second, second, "it").message
    assert "ahead of" in findings.skewed("clock", 2 * second, second, "it").message


async def test_commits_that_are_not_waited_for_are_noticed(database_url: str, connection: Sql[Any]) -> None:
    name = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {name} set synchronous_commit = off")
    found = await finds(database_url, "durability")
    assert "synchronous_commit is off" in found["message"]


async def test_settings_that_a_crash_punishes_are_noticed(data_directory: Path) -> None:
    careless = {"fsync": False, "full_page_writes": False, "autovacuum": False}
    async with Embedded(data_directory, settings=careless) as postgres:
        await migrate.apply(postgres.url)
        result = await asyncio.to_thread(
            lambda: CliRunner().invoke(app, ["doctor", "--database", "--json"], env={"KAGZI_DB_URL": postgres.url})
        )
    assert result.exit_code == 1
    said = [one["message"] for one in json.loads(result.stdout)["findings"] if one["level"] == "act"]
    assert [text.partition(":")[0] for text in said] == ["fsync is off", "full_page_writes is off", "autovacuum is off"]


async def test_a_table_of_dead_rows_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    await connection.execute("alter table kagzi.signals set (autovacuum_enabled = off)")
    await connection.execute(
        "insert into kagzi.signals (namespace, signal_id, run_id, name)"
        " select 'default', gen_random_uuid(), gen_random_uuid(), 'go' from generate_series(1, 10001)"
    )
    await connection.execute("delete from kagzi.signals")
    await connection.execute("select pg_stat_force_next_flush()")
    found = await finds(database_url, "bloat")
    assert "kagzi.signals has 10,001 dead rows" in found["message"]
    assert "vacuum analyze kagzi.signals" in found["advice"]


async def test_a_transaction_that_stays_open_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    async with connection.transaction():
        await connection.execute("select 1")
        found = await finds(database_url, "transactions", "--tolerance", "1ms")
        assert found["subjects"] == [str(connection.get_server_pid())]
    assert "transactions" not in (await look(database_url, "--tolerance", "1h")).acts()


async def test_a_run_that_nobody_takes_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    run_id = await connection.fetchval("select kagzi.start_workflow('nobody')")
    assert (await finds(database_url, "stuck runs", "--tolerance", "1ms"))["subjects"] == [str(run_id)]
    assert (await look(database_url)).code == 0
    async with serving(database_url) as server:
        seen = await visit("--url", server.address, KAGZI_DATA_DIR="/nowhere")
    assert seen.acts() == {"default: unserved runs"}
    assert f"kagzi runs explain {run_id}" in seen.found["default: unserved runs"]["advice"]
    # What a person has stopped is not stuck.
    await connection.execute("update kagzi.namespaces set enabled = false where namespace = 'default'")
    assert (await look(database_url, "--tolerance", "1ms")).code == 0


async def test_a_lease_that_ended_and_nobody_took_over_is_noticed(database_url: str) -> None:
    async with (
        serving(database_url, worker_visibility_timeout_secs=1.0) as server,
        working(server.address, "held") as hand,
        Client(server.address) as client,
    ):
        handle = await client.start("held")
        await until(lambda: handle.run_id in hand.held, LIMIT)
    found = await finds(database_url, "expired leases", "--tolerance", "1ms")
    assert found["subjects"] == [handle.run_id]


async def test_a_reservation_of_a_run_that_is_gone_is_noticed(database_url: str, connection: Sql[Any]) -> None:
    run_id = await connection.fetchval(
        "insert into kagzi.deliveries (namespace, automation, consumer, topic, event_id, status, run_id, arrival,"
        " published_at) values ('default', 'inbox', 'AddRow', 'mail', '1', 'RESERVED', gen_random_uuid(), 1,"
        " kagzi.now()) returning run_id"
    )
    found = await finds(database_url, "reservations", "--tolerance", "1ms")
    assert found["subjects"] == [str(run_id)]
    # An automation that is to go on from the ended run still needs them.
    await connection.execute(
        "insert into kagzi.automations (namespace, name, definition_hash, task_queue, deployments, continues_run_id)"
        " values ('default', 'inbox', 'x', 'default', '{}', $1)",
        run_id,
    )
    assert (await look(database_url, "--tolerance", "1ms")).code == 0
    # So does a mutation of it that nobody knows the outcome of.
    await connection.execute("update kagzi.automations set continues_run_id = null where namespace = 'default'")
    assert (await look(database_url, "--tolerance", "1ms")).code == 1
    await connection.execute(
        "insert into kagzi.mutations (namespace, mutation_id, automation, handler, run_id, holder_id, attempt_id,"
        " claim_token, tool, idempotency_key, status, has_reconciler) values ('default', gen_random_uuid(), 'inbox',"
        " 'AddRow', $1, $1, gen_random_uuid(), gen_random_uuid(), 'send', 'k', 'INDETERMINATE', false)",
        run_id,
    )
    assert (await look(database_url, "--tolerance", "1ms")).code == 0


@step
async def note(number: int) -> int:
    return number


@workflow
async def chatty(ctx: Context) -> None:
    for number in range(9):
        await ctx.step(f"note-{number}", note, number)
    await ctx.receive("go", str)


async def test_a_history_that_grows_towards_its_limit_is_noticed(database_url: str) -> None:
    async with serving(database_url) as server, Worker(server.address, workflows=[chatty]):
        async with Client(server.address) as client:
            handle = await client.start(chatty)
            async with asyncio.timeout(LIMIT):
                while (await handle.describe()).status != "SLEEPING":  # noqa: ASYNC110 - who sleeps tells nobody
                    await asyncio.sleep(0.01)
        found = await finds(database_url, "histories", KAGZI_LIMIT_HISTORY_STEPS="11")
        assert found["subjects"] == [handle.run_id]
        assert "continue_as_new" in found["advice"]
        seen = await look(database_url, KAGZI_LIMIT_HISTORY_STEPS="18")
        assert (seen.code, seen.found["histories"]["level"]) == (0, "note")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--tolerance", "soon"), "soon"), (("--config", "absent.toml"), "absent.toml")],
    ids=["tolerance", "config"],
)
async def test_a_mistake_is_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = await asyncio.to_thread(
        lambda: CliRunner().invoke(app, ["doctor", *arguments], env={"KAGZI_DATA_DIR": str(tmp_path)})
    )
    assert result.exit_code == 2
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert said in line
