"""The four workloads that `kagzi bench` shows and the project's own benchmarks measure beside its peers: many runs at
once, one run after another, starting, and draining. They do the work and answer what they saw; nothing is judged here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kagzi.sdk.client import Client
    from kagzi.sdk.definition import Workflow
    from kagzi.sdk.handle import Handle

# Told how much of the work is done, from 0 to 1.
Progress = Callable[[float], None]


def silent(done: float) -> None:
    """Tells nobody."""


async def many_at_once(
    client: Client, workflow: Workflow[int, int], seconds: float, at_once: int = 100, progress: Progress = silent
) -> tuple[int, float]:
    """Keeps so many runs in progress, each from its start to its result; answers how many ended, and in what time."""
    began = time.perf_counter()
    count = 0

    async def one_after_another() -> None:
        nonlocal count
        while (passed := time.perf_counter() - began) < seconds:
            await client.execute(workflow, 1)
            count += 1
            if count % at_once == 0:
                progress(passed / seconds)

    await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return count, time.perf_counter() - began


async def one_by_one(
    client: Client, workflow: Workflow[int, int], count: int, progress: Progress = silent
) -> list[float]:
    """How many milliseconds each of so many runs took, from its start to its result, with nothing else to do."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        await client.execute(workflow, 1)
        times.append((time.perf_counter() - began) * 1_000)
        progress((number + 1) / count)
    return times


async def started(client: Client, workflow: Workflow[int, int], count: int) -> list[Handle[int]]:
    """So many runs, begun at the same moment and by no worker."""
    return list(await asyncio.gather(*(client.start(workflow, number) for number in range(count))))


async def drained(handles: list[Handle[int]], work: Callable[[], Any], progress: Progress = silent) -> float:
    """Calls `work`, which starts workers; answers the seconds from the first result to the last."""
    waiting = [asyncio.ensure_future(handle.result()) for handle in handles]
    ended = 0

    def note(_: asyncio.Future[int]) -> None:
        nonlocal ended
        ended += 1
        if ended % 100 == 0:
            progress(ended / len(handles))

    for each in waiting:
        each.add_done_callback(note)
    try:
        work()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        began = time.perf_counter()
        await asyncio.gather(*waiting)
        return time.perf_counter() - began
    finally:
        for each in waiting:
            each.cancel()
