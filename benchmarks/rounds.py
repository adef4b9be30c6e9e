"""The order in which things are measured: every repetition of a workload goes to all systems in turn, so that a change
of the machine meets all of them. What fails is said and does not end the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg
from rich.console import Console

from benchmarks import machine
from benchmarks.lab import fresh_database
from benchmarks.limit import limit
from benchmarks.peers.contest import CONTESTS, PEERS
from benchmarks.peers.environment import Unavailable
from benchmarks.records import OURS, Records
from benchmarks.runs import Results
from benchmarks.table import LIMIT
from benchmarks.workloads import MEASUREMENTS, Measurement
from kagzi.server import logs


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure, how often, and who does it beside us."""

    names: tuple[str, ...]
    repeat: int
    beside: tuple[str, ...]
    kept: Path | None


async def measured(plan: Plan, records: Records, console: Console) -> Records:
    """All of it."""
    logs.configure("console", "warning")
    records.machine = machine.description()
    records.versions |= await _versions(plan)
    for measurement in MEASUREMENTS:
        if set(measurement.names) & set(plan.names):
            await _measure(measurement, plan, records, console)
    return records


async def _measure(measurement: Measurement, plan: Plan, records: Records, console: Console) -> None:
    async with _kept(measurement) as place:
        for repetition in range(plan.repeat):
            for system, work in _turns(measurement, place, plan.beside):
                if system in records.missing:
                    continue
                try:
                    results = await work()
                except Unavailable as error:
                    records.missing[system] = str(error)
                    continue
                for name, figures in results.items():
                    if name in plan.names:
                        records.add(name, system, figures)
                        first = next(iter(figures))
                        told = f"{name} {system} {repetition + 1}/{plan.repeat}: {first} {figures[first]:,.4g}"
                        noise = (
                            f"steal {figures['steal_percent']:.1f} %, others {figures.get('others_percent', 0):.0f} %"
                        )
                        console.print(f"{told}, {noise}", highlight=False)
                if plan.kept:
                    records.write(plan.kept)


def _turns(
    measurement: Measurement, place: Any, beside: tuple[str, ...]
) -> list[tuple[str, Callable[[], Awaitable[Results]]]]:
    """Who does it, in turn."""

    async def ours() -> Results:
        if measurement.shared:
            return await measurement.measure(place)
        async with measurement.place() as fresh:
            return await measurement.measure(fresh)

    turns: list[tuple[str, Callable[[], Awaitable[Results]]]] = [(OURS, ours)]
    contest = CONTESTS.get(measurement.names)
    if contest is not None:
        turns += [(peer.name, partial(contest, peer)) for peer in PEERS if peer.name in beside]
    if "w1" in measurement.names and LIMIT in beside:
        turns.append((LIMIT, limit))
    return turns


@contextlib.asynccontextmanager
async def _kept(measurement: Measurement) -> AsyncIterator[Any]:
    if not measurement.shared:
        yield None
        return
    async with measurement.place() as place:
        yield place


async def _versions(plan: Plan) -> dict[str, str]:
    async with fresh_database() as database:
        connection = await asyncpg.connect(database.url)
        try:
            postgres = str(await connection.fetchval("show server_version"))
        finally:
            await connection.close()
    theirs = {peer.name: ", ".join(peer.versions) for peer in PEERS if peer.name in plan.beside}
    return {OURS: version("kagzi"), "postgresql": postgres, **theirs}
