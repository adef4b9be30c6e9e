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
from benchmarks.span import Figures
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
    records.missing.clear()
    records.versions |= await _versions(plan)
    for measurement in MEASUREMENTS:
        if set(measurement.names) & set(plan.names):
            await _measure(measurement, plan, records, console)
    return records


async def _measure(measurement: Measurement, plan: Plan, records: Records, console: Console) -> None:
    async with _kept(measurement) as place:
        for repetition in range(plan.repeat):
            for system, work in _turns(measurement, place, plan.beside):
                for name, figures in (await _turn(measurement, system, work, records)).items():
                    if name in plan.names:
                        records.add(name, system, figures)
                        console.print(
                            f"{name} {system} {repetition + 1}/{plan.repeat}: {_told(figures)}", highlight=False
                        )
                if plan.kept:
                    records.write(plan.kept)


async def _turn(
    measurement: Measurement, system: str, work: Callable[[], Awaitable[Results]], records: Records
) -> Results:
    """One system's turn; nothing from one that is not here, or that failed at this before."""
    failed = f"{system} in {' and '.join(measurement.names)}"
    if {system, failed} & set(records.missing):
        return {}
    try:
        return await work()
    except Unavailable as error:
        records.missing[system] = str(error)
    except Exception as error:
        if system == OURS:
            raise
        records.missing[failed] = f"{type(error).__name__}: {error}"
    return {}


def _told(figures: Figures) -> str:
    first = next(iter(figures))
    steal, others = figures["steal_percent"], figures.get("others_percent", 0.0)
    return f"{first} {figures[first]:,.4g}, steal {steal:.1f} %, others {others:.0f} %"


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
