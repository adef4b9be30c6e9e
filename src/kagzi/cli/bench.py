"""`kagzi bench`: how fast Kagzi is on the user's own database. Four workloads with a server and a worker of its own, in
a namespace that is gone afterwards, and a verdict in plain words. It measures what is there and tunes nothing.
"""

from __future__ import annotations

import json as jsonlib
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kagzi.cli.problems import FAILED, explained
from kagzi.cli.remote import Json, end
from kagzi.cli.server import Config, DataDir

if TYPE_CHECKING:
    from rich.progress import Progress

    from kagzi.cli.ground import Ground
    from kagzi.server.settings import Settings

_ONE_BY_ONE = 200


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured."""

    runs_per_s: float
    steps_per_s: float
    p50_ms: float
    p99_ms: float
    starts_per_s: float
    drained_per_s: float
    commit_ms: float
    postgresql: str
    durable: bool
    cores: int


def bench(
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long many runs are kept in progress.")] = 10.0,
    runs: Annotated[int, typer.Option(min=10, max=100_000, help="How many are started, and then drained.")] = 5_000,
    concurrency: Annotated[int, typer.Option(min=1, max=1_000, help="How many are in progress at once.")] = 100,
    config: Config = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Measure this database: many runs at once, one by one, starting and draining."""
    with explained():
        from kagzi.cli.process import run, until_signalled
        from kagzi.server import logs
        from kagzi.server.settings import load

        settings = load({"data_dir": data_dir}, config=None if config is None else str(config))
        logs.configure(settings.log_format, "error")
        found: list[Seen] = []

        async def measure() -> None:
            found.append(await _bench(settings, seconds, runs, concurrency))

        run(until_signalled(measure))
    if not found:
        end("the bench was stopped before its end; what it made is gone", FAILED)
    [seen] = found
    if json:
        typer.echo(jsonlib.dumps({**asdict(seen), "verdict": verdict(seen)}))
    else:
        _show(seen)


async def _bench(settings: Settings, seconds: float, runs: int, concurrency: int) -> Seen:
    import asyncpg
    from rich.console import Console
    from rich.progress import Progress

    from kagzi.cli.ground import ground
    from kagzi.cli.process import database
    from kagzi.server.listener import StartError
    from kagzi.store import migrate, probes

    async with database(settings) as url:
        missing = await migrate.pending(url)
        if missing:
            raise StartError(f"the database lacks the migrations {', '.join(missing)}: run `kagzi migrate`")
        connection = await asyncpg.connect(url)
        try:
            commit_ms = statistics.median(await probes.commit_times(connection, 50))
            told = await probes.settings(connection)
        finally:
            await connection.close()
        with Progress(console=Console(stderr=True), transient=True) as progress:
            async with ground(settings, url) as place:
                measured = await _measured(place, progress, seconds, runs, concurrency)
    version = told.pop("version")
    durable = all(value not in ("off", "local") for value in told.values())
    return Seen(
        **measured, commit_ms=commit_ms, postgresql=version, durable=durable, cores=len(os.sched_getaffinity(0))
    )


async def _measured(place: Ground, progress: Progress, seconds: float, runs: int, concurrency: int) -> dict[str, float]:
    from kagzi.cli import workloads
    from kagzi.cli.trial import one, three
    from kagzi.sdk.client import Client

    def told(words: str) -> Callable[[float], None]:
        task = progress.add_task(words, total=1.0)
        return lambda done: progress.update(task, completed=done)

    async with Client(place.address, namespace=place.namespace) as client:
        began = time.perf_counter()
        starting = told(f"starting {runs:,} runs")
        handles = await workloads.started(client, one, runs)
        started = time.perf_counter() - began
        starting(1.0)
        drained = await workloads.drained(
            handles, lambda: place.start_worker(concurrency), told(f"draining {runs:,} runs")
        )
        await workloads.many_at_once(client, three, min(1.0, seconds), concurrency)
        progressing = told(f"{concurrency} runs at once for {seconds:g} s")
        count, taken = await workloads.many_at_once(client, three, seconds, concurrency, progressing)
        progressing(1.0)
        alone = min(_ONE_BY_ONE, runs)
        times = await workloads.one_by_one(client, one, alone, told(f"{alone} runs one by one"))
    cuts = statistics.quantiles(times, n=100)
    return {
        "runs_per_s": count / taken,
        "steps_per_s": 3 * count / taken,
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "starts_per_s": runs / started,
        "drained_per_s": runs / drained if drained else float(runs),
    }


def verdict(seen: Seen) -> list[str]:
    """What the figures mean, in words."""
    day = seen.runs_per_s * 86_400 / 1e6
    told = [f"Here Kagzi does about {seen.runs_per_s:,.0f} runs of three steps a second, or {day:,.0f} million a day."]
    if not seen.durable:
        told.append(
            "Commits are not durable here (fsync, synchronous_commit or full_page_writes is off): these figures are "
            "better than honest ones, and a crash of the database can lose what was acknowledged."
        )
    if seen.commit_ms > 5:
        told.append(
            f"A commit takes {seen.commit_ms:.1f} ms: a slow disk, a distant database or a synchronous standby. Runs "
            "share commits, so throughput suffers little; a lone run waits for each of its steps."
        )
    elif seen.p50_ms > 10 * seen.commit_ms + 10:
        told.append(
            f"A commit takes {seen.commit_ms:.1f} ms, yet a lone run {seen.p50_ms:.1f} ms: the processors are busy "
            "with something else, or there are too few of them."
        )
    else:
        told.append(f"A commit takes {seen.commit_ms:.1f} ms and a lone run {seen.p50_ms:.1f} ms: as it should be.")
    if seen.runs_per_s < 300 * min(seen.cores, 2):
        told.append(
            "That is slow. Client, server, worker and perhaps the database share "
            f"{seen.cores} cores here; look at what else runs on them, and see docs/performance.md."
        )
    else:
        told.append(
            "If that is not enough: more workers when steps take time, more servers when they do not; both can be "
            "added while everything runs."
        )
    return told


def _show(seen: Seen) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("what")
    table.add_column("seen", justify="right")
    rows = {
        "runs of 3 steps, many at once": f"{seen.runs_per_s:,.0f} a second",
        "durable steps among them": f"{seen.steps_per_s:,.0f} a second",
        "one run of 1 step, start to result": f"{seen.p50_ms:.1f} ms (p99 {seen.p99_ms:.1f} ms)",
        "starting runs": f"{seen.starts_per_s:,.0f} a second",
        "draining them with one worker": f"{seen.drained_per_s:,.0f} a second",
        f"a commit of PostgreSQL {seen.postgresql}": f"{seen.commit_ms:.2f} ms",
    }
    for what, figure in rows.items():
        table.add_row(what, figure)
    console = Console()
    console.print(table)
    for sentence in verdict(seen):
        console.print(sentence, highlight=False)
