"""W1 to W4: many runs at once, one after another, starting, draining."""

from __future__ import annotations

import statistics
import time

from benchmarks.lab import Lab
from benchmarks.program import one, three
from benchmarks.span import Figures
from kagzi import Client
from kagzi.cli import workloads

Results = dict[str, Figures]


async def w1(lab: Lab) -> Results:
    """Runs of 3 small steps, 100 in progress at once, one worker with 100 slots, for 10 s."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        return {"w1": await many(lab, client)}


async def many(lab: Lab, client: Client, seconds: float = 10.0) -> Figures:
    """W1 with whoever works in the laboratory, after a warm-up."""
    await workloads.many_at_once(client, three, 1.5)
    with lab.span() as span:
        count, taken = await workloads.many_at_once(client, three, seconds)
    return {"runs_per_s": count / taken, "steps_per_s": 3 * count / taken} | span.figures(count)


async def w2(lab: Lab) -> Results:
    """200 runs of 1 step, one after another, from start to result."""
    lab.start_worker(100)
    async with Client(lab.address) as client:
        return {"w2": await alone(lab, client)}


async def alone(lab: Lab, client: Client) -> Figures:
    """W2 with whoever works in the laboratory, after a warm-up."""
    await workloads.one_by_one(client, one, 20)
    with lab.span() as span:
        times = await workloads.one_by_one(client, one, 200)
    return latency(times) | span.figures(len(times))


def latency(milliseconds: list[float]) -> Figures:
    cuts = statistics.quantiles(milliseconds, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98]}


async def w3_w4(lab: Lab, count: int = 5_000) -> Results:
    """Start 5,000 runs with no worker; then one worker drains them, 1 step each. The drain is from first to last."""
    async with Client(lab.address) as client:
        await workloads.started(client, three, 100)
        with lab.span() as starting:
            handles = await workloads.started(client, one, count)
        with lab.span() as draining:
            began = time.perf_counter()
            seconds = await workloads.drained(handles, lab.start_worker)
            spawned = time.perf_counter() - began
    # The worker came in the middle: what it spent is all that it has.
    spent = lab.span()
    with spent:
        pass
    worker = {"seconds_from_spawn": spawned, "memory_mb_worker": spent.memory["worker"]}
    return {
        "w3": {"starts_per_s": count / starting.seconds} | starting.figures(count),
        "w4": {"runs_per_s": count / seconds} | draining.figures(count) | worker,
    }
