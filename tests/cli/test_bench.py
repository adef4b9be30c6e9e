"""`kagzi bench`, as a person runs it: figures, a verdict, nothing left behind, and one line for what is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from dataclasses import replace

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from kagzi.cli import app
from kagzi.cli.bench import Seen, verdict
from kagzi.cli.problems import FAILED, USAGE
from tests.cli.test_cli import KAGZI

SMALL = ("--seconds", "0.2", "--runs", "20", "--concurrency", "5")


def bench(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KAGZI_DB_URL": url, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [KAGZI, "bench", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


async def counted(url: str) -> dict[str, int]:
    """How many rows every table holds."""
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'kagzi'")
        counts = {}
        for [table] in tables:
            counts[table] = await connection.fetchval(f"select count(*) from kagzi.{table}")  # noqa: S608 - ours
        return counts
    finally:
        await connection.close()


async def test_it_measures_four_workloads_says_what_they_mean_and_leaves_nothing(database_url: str) -> None:
    before = await counted(database_url)
    done = bench(database_url, *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    figures = ("runs_per_s", "steps_per_s", "p50_ms", "p99_ms", "starts_per_s", "drained_per_s", "commit_ms")
    assert all(seen[figure] > 0 for figure in figures)
    assert seen["durable"]
    assert len(seen["verdict"]) >= 3
    assert await counted(database_url) == before


async def test_a_bench_that_is_stopped_leaves_nothing(database_url: str) -> None:
    before = await counted(database_url)
    environment = {**os.environ, "KAGZI_DB_URL": database_url}
    process = subprocess.Popen(  # noqa: ASYNC220 - it is watched by what it writes
        [KAGZI, "bench", "--seconds", "600", "--runs", "20"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    connection = await asyncpg.connect(database_url)
    try:
        query = "select count(*) from kagzi.workflow_runs where status = 'COMPLETED'"
        async with asyncio.timeout(120):
            while await connection.fetchval(query) < 40:
                assert process.poll() is None
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=120)[1]
    finally:
        process.kill()
        process.communicate()
        await connection.close()
    assert process.returncode == FAILED
    assert "stopped before its end" in told
    assert await counted(database_url) == before


def refused(url: str, *options: str) -> Result:
    """What a bench says that does not come to measuring."""
    return CliRunner().invoke(app, ["bench", *SMALL, *options], env={"KAGZI_DB_URL": url, "NO_COLOR": "1"})


@pytest.mark.parametrize(
    ("options", "named"),
    [(("--seconds", "0"), "--seconds"), (("--runs", "many"), "--runs"), (("--concurrency", "5000"), "--concurrency")],
    ids=("no-time", "no-number", "too-many"),
)
def test_wrong_usage_names_the_option(options: tuple[str, str], named: str) -> None:
    result = refused("postgresql://nobody@127.0.0.1:1/none", *options)
    assert (result.exit_code, named in result.stderr) == (USAGE, True)


def test_a_database_that_is_not_there_is_said_in_one_line() -> None:
    result = refused("postgresql://nobody:secret@127.0.0.1:1/none")
    assert result.exit_code == FAILED
    assert result.stderr.startswith("error: the database cannot be used")
    assert "secret" not in result.stderr


async def test_a_database_that_lacks_a_migration_is_left_as_it_is(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("delete from kagzi.migrations where name = (select max(name) from kagzi.migrations)")
    await connection.close()
    before = await counted(database_url)
    done = bench(database_url, *SMALL)
    assert (done.returncode, "run `kagzi migrate`" in done.stderr) == (FAILED, True)
    assert await counted(database_url) == before


GOOD = Seen(
    runs_per_s=2_000,
    steps_per_s=6_000,
    p50_ms=4.0,
    p99_ms=9.0,
    starts_per_s=8_000,
    drained_per_s=3_000,
    commit_ms=0.4,
    postgresql="18.4",
    durable=True,
    cores=2,
)


def test_the_verdict_says_what_is_wrong() -> None:
    def told(**seen: float) -> str:
        return " ".join(verdict(replace(GOOD, **seen)))  # type: ignore[arg-type]

    assert "as it should be" in told()
    assert "not durable" in told(durable=False)
    assert "a slow disk" in told(commit_ms=12.0, p50_ms=40.0)
    assert "processors are busy" in told(p50_ms=90.0)
    assert "That is slow" in told(runs_per_s=50)
    assert "That is slow" not in told()
