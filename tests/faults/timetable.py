"""The schedules of a campaign: one that fires every second, whose slots are judged, and one that clients start by hand,
pause, resume and change. Each slot of the first has exactly one run, made no earlier than its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kagzi import Client
from tests.faults.caller import BELL
from tests.survival.program import tick
from tests.survival.record import rows

_TICKS = "ticks"


@dataclass(frozen=True, slots=True)
class Slots:
    """How many fired, and what is wrong with them."""

    count: int
    violations: list[str]


async def begin(client: Client) -> datetime:
    """A slot a second, from the time on that it answers."""
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    await client.schedules.create(_TICKS, tick, every="1s", start_at=first, max_catchup=1_000)
    await client.schedules.create(BELL, tick, every="1d", start_at=first + timedelta(days=1))
    return first


async def end(client: Client) -> None:
    """Nothing fires any more."""
    await client.schedules.handle(_TICKS).pause()


async def slots(url: str, first: datetime) -> Slots:
    """Those of the one that fires, after its end."""
    seen = await rows(
        url,
        "select r.scheduled_for, r.created_at from kagzi.workflow_runs r where r.schedule_id = "
        "(select t.run_id from kagzi.workflow_runs t where t.external_id = $1 and t.status = 'PAUSED') order by 1",
        _TICKS,
    )
    expected = [first + timedelta(seconds=number) for number in range(len(seen))]
    found = [
        f"a slot is missing or fired twice: {slot}, not {due}"
        for (slot, _), due in zip(seen, expected, strict=True)
        if slot != due
    ]
    return Slots(len(seen), found[:3] + [f"the slot {slot} fired at {made}" for slot, made in seen if made < slot])
