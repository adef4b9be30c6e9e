"""DBOS and Absurd: peers that live in a PostgreSQL. Theirs is made and set up as ours is."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg

from benchmarks.lab import fresh_database
from benchmarks.peers import environment
from benchmarks.peers.environment import PROGRAMS, Unavailable
from benchmarks.peers.stage import Stage, closing, heard, logged, spawn

DBOS = ("dbos==3.3.0",)
ABSURD = ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8")
# As often as is worth its price when there is work; idle, they are measured with what they do by themselves.
EAGER = 0.02


@contextlib.asynccontextmanager
async def dbos(poll: float | None = EAGER) -> AsyncIterator[Stage]:
    """One worker process with 100 places in a queue."""
    python = environment.python("dbos", *DBOS)
    async with _stage("dbos", python, 1.0 if poll is None else poll, workers=1, unended=_DBOS) as stage:
        yield stage


@contextlib.asynccontextmanager
async def absurd(poll: float | None = EAGER) -> AsyncIterator[Stage]:
    """Two worker processes with 100 tasks at a time each: one connection serves a whole process."""
    python = environment.python("absurd", *ABSURD)
    async with _stage("absurd", python, 0.25 if poll is None else poll, workers=2, unended=_ABSURD) as stage:
        yield stage


@contextlib.asynccontextmanager
async def _stage(name: str, python: Path, poll: float, *, workers: int, unended: str) -> AsyncIterator[Stage]:
    program = PROGRAMS / f"on_{name}.py"
    async with fresh_database() as database:
        with logged(name) as log:
            _prepare(name, python, program, database.url, database.binaries)
            connection = await asyncpg.connect(database.url)

            async def count(started: int) -> int:
                return started - int(await connection.fetchval(unended))

            def work() -> list[subprocess.Popen[str]]:
                made = [spawn(python, program, "worker", database.url, str(poll), log=log) for _ in range(workers)]
                for each in made:
                    assert each.stdout is not None
                    each.stdout.readline()
                return made

            client = spawn(python, program, "client", database.url, str(poll), log=log)
            stage = Stage(client, count, work, {"database": [database.pid]})
            async with closing(stage):
                await heard(client)
                yield stage
            await connection.close()


def _prepare(name: str, python: Path, program: Path, url: str, binaries: Path) -> None:
    """Makes the peer's tables."""
    if name == "dbos":
        _run(str(python), str(program), "prepare", url, "1")
        return
    control = python.parent / "absurdctl"
    path = {"PATH": f"{binaries}:/usr/bin:/bin"}
    _run(str(control), "init", "-d", url, **path)
    _run(str(control), "create-queue", "-d", url, "bench", **path)


def _run(*command: str, **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment or None, cwd=PROGRAMS
    )
    if done.returncode:
        raise Unavailable(f"its tables could not be made: {(done.stderr or done.stdout).strip()[-300:]}")


_DBOS = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
_ABSURD = "select count(*) from absurd.t_bench where state = 'completed'"
