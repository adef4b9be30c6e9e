"""What staying in memory saves. The same waits are measured with suspended runs in their worker's memory and without:
1,000 sleeps and 1,000 children in a row, and what follows a wait after 500 steps. Short sleeps are waited out in place
by an ordinary worker; `python -m benchmarks.residents URL NUMBER` is one that gives the run back at each of them.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.program import one, small
from kagzi import Client, Context, Handle, Worker, workflow
from kagzi.sdk.shift import Shift

if TYPE_CHECKING:
    from benchmarks.lab import Lab
    from benchmarks.runs import Results

_WAITS = 1_000
_STEPS = 500
_RUNS = 10


@workflow
async def sleeps(ctx: Context, count: int) -> int:
    """Many short sleeps in a row."""
    for _ in range(count):
        await ctx.sleep("nap", "1ms")
    return count


@workflow
async def parent(ctx: Context, count: int) -> int:
    """Many children in a row."""
    for number in range(count):
        await ctx.run_child("child", one, number)
    return count


@workflow
async def resumed(ctx: Context, count: int) -> int:
    """Many steps, a wait, and one more."""
    for number in range(count):
        await ctx.step("small", small, number)
    await ctx.receive("go")
    await ctx.step("small", small, count)
    return count


async def residents(lab: Lab) -> Results:
    """With residents and without, one after the other."""
    figures: dict[str, float] = {}
    for name, number in (("memory", 1_000), ("replay", 0)):
        _start_worker(lab, number)
        async with Client(lab.address) as client:
            await client.execute(sleeps, 5)
            with lab.span() as span:
                figures[f"{_WAITS}_sleeps_s_{name}"] = await _timed(client, sleeps)
                figures[f"{_WAITS}_children_s_{name}"] = await _timed(client, parent)
            figures |= {f"cpu_s_{part}_{name}": span.cpu[part] for part in ("server", "worker", "database")}
            figures |= {"steal_percent": span.steal_percent, "others_percent": span.others_percent}
            figures[f"resume_after_{_STEPS}_steps_ms_{name}"] = await _resume(client)
        lab.stop_workers()
    return {"residents": figures}


def _start_worker(lab: Lab, residents: int) -> None:
    command = [sys.executable, "-m", "benchmarks.residents", lab.address, str(residents)]
    lab.workers.append(subprocess.Popen(command))


async def _timed(client: Client, waits: object) -> float:
    began = time.perf_counter()
    await client.execute(waits, _WAITS)  # type: ignore[call-overload]  # either of two workflows of one type
    return time.perf_counter() - began


async def _resume(client: Client) -> float:
    """From the signal to the result."""
    handles: list[Handle[int]] = [await client.start(resumed, _STEPS) for _ in range(_RUNS)]
    times = []
    for handle in handles:
        while (await handle.describe()).status != "SLEEPING":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    for handle in handles:
        began = time.perf_counter()
        await handle.signal("go")
        await handle.result()
        times.append((time.perf_counter() - began) * 1_000)
    return statistics.median(times)


class _GivesBack(Worker):
    """A worker that waits for nothing in place."""

    def _begin(self) -> Shift:
        shift = super()._begin()
        shift.in_place_us = 0
        return shift


if __name__ == "__main__":
    import uvloop

    async def _work(url: str, number: int) -> None:
        await _GivesBack(url, workflows=[sleeps, parent, resumed, one], residents=number).run()

    uvloop.run(_work(sys.argv[1], int(sys.argv[2])))
