"""A campaign: an estate at work, a nemesis for so many faults or so many seconds, and then the checker. What it found
is a summary of figures; nothing is wrong when no violation is among them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg

from kagzi import Client
from kagzi.embedded import Embedded
from tests.conformance.contract import eventually
from tests.faults import acknowledgements
from tests.faults.estate import LEASE, Estate
from tests.faults.nemesis import Nemesis
from tests.survival import checker
from tests.survival.program import tick

WORKERS = 3
_FINISHES_WITHIN = 180.0
_SCHEDULE = "ticks"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was seen."""

    seed: int
    seconds: float
    runs: int
    injected: dict[str, int]
    violations: list[str]
    slowest: tuple[float, str]
    repeats: int
    lost_leases: int
    surfaced: int
    slots: int

    @property
    def faults(self) -> int:
        return sum(self.injected.values())

    def __str__(self) -> str:
        took, fault = self.slowest
        return (
            f"seed {self.seed}, {self.seconds:.0f} s: {self.runs} runs, {self.slots} slots, {self.faults} faults "
            f"injected ({', '.join(f'{name} {count}' for name, count in sorted(self.injected.items()))}), "
            f"{len(self.violations)} violations, slowest recovery {took:.1f} s ({fault}), "
            f"{self.repeats} steps again after a kill, {self.lost_leases} after a lost lease, "
            f"{self.surfaced} errors surfaced to clients"
        )


async def wage(
    postgres: Embedded,
    directory: Path,
    seed: int,
    *,
    faults: int | None = None,
    seconds: float | None = None,
    watch: Callable[[Nemesis], None] = lambda _: None,
) -> Summary:
    """One campaign, of so many faults or for so long."""
    began = time.monotonic()
    async with Estate(postgres, directory, seed) as estate:
        first = await _schedule(estate.stations[0].address)
        await estate.open(WORKERS)
        nemesis = Nemesis(estate)
        while nemesis.injected.total() != faults and (seconds is None or time.monotonic() - began < seconds):
            await nemesis.strike()
            watch(nemesis)
        violations = nemesis.violations + await estate.finish(_FINISHES_WITHIN)
        violations += [f"{name} has died" for name, worker in estate.berths.items() if not worker.running]
        slots = await _end_schedule(postgres.url, estate.stations[0].address)
        lines = estate.acknowledged()
        found = await checker.check(
            postgres.url,
            acknowledgements.told(lines),
            estate.crew.entries(),
            estate.crew.deaths,
            estate.troubles,
            LEASE,
        )
        violations += [f"{name} was never told of its end" for name in acknowledgements.unfinished(lines)]
        violations += found.violations + _of_slots(first, slots)
        return Summary(
            seed=seed,
            seconds=time.monotonic() - began,
            runs=sum(line.what == "result" for line in lines) + len(slots),
            injected=dict(nemesis.injected),
            violations=violations,
            slowest=max(nemesis.recoveries, default=(0.0, "none")),
            repeats=len(found.repeats),
            lost_leases=found.lost_leases,
            surfaced=sum(line.what == "surfaced" for line in lines),
            slots=len(slots),
        )


async def _schedule(address: str) -> datetime:
    """A slot a second, from two seconds on."""
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    async with Client(address) as client:
        await client.schedules.create(_SCHEDULE, tick, every="1s", start_at=first, max_catchup=1_000)
    return first


async def _end_schedule(url: str, address: str) -> list[tuple[datetime, datetime]]:
    """Slots with the time their run was made, once the schedule fires no more and every run of it has ended."""
    async with Client(address) as client:
        await client.schedules.handle(_SCHEDULE).pause()
    connection = await asyncpg.connect(url)
    try:

        async def live() -> int:
            count: int = await connection.fetchval(
                "select count(*) from kagzi.workflow_runs where status in ('PENDING', 'RUNNING', 'SLEEPING')"
            )
            return count

        await eventually(live, lambda count: count == 0, within=_FINISHES_WITHIN)
        rows = await connection.fetch(
            "select scheduled_for, created_at from kagzi.workflow_runs where schedule_id is not null "
            "and status not in ('SCHEDULED', 'PAUSED') order by 1"
        )
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


def _of_slots(first: datetime, slots: list[tuple[datetime, datetime]]) -> list[str]:
    """Each second has exactly one run, and none came early."""
    expected = [first + timedelta(seconds=number) for number in range(len(slots))]
    found = [
        f"a slot is missing or fired twice: {slot}, not {due}"
        for (slot, _), due in zip(slots, expected, strict=True)
        if slot != due
    ]
    return found[:3] + [f"the slot {slot} fired at {made}" for slot, made in slots if made < slot]
