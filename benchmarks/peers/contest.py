"""W1 to W7 as peers do them: the same work through their own APIs, timed from outside. Those that are slow do
fewer runs of W1, so that a repetition stays short; a rate needs no more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from benchmarks.peers import postgres
from benchmarks.peers.restate import PACKAGES, SERVER, restate
from benchmarks.peers.stage import Stage
from benchmarks.runs import Results, latency


@dataclass(frozen=True, slots=True)
class Peer:
    """A system beside ours; `runs` of W1 take about ten seconds or more."""

    name: str
    stage: Callable[..., AbstractAsyncContextManager[Stage]]
    runs: int
    versions: tuple[str, ...]


PEERS = (
    Peer("dbos", postgres.dbos, 1_000, postgres.DBOS),
    Peer("absurd", postgres.absurd, 3_000, postgres.ABSURD[:1]),
    Peer("restate", restate, 6_000, (PACKAGES[0], SERVER)),
)


async def w1(peer: Peer) -> Results:
    """Runs of three steps; all are started as fast as the peer takes them, and the last end counts."""
    async with peer.stage() as stage:
        stage.work()
        await stage.start("three", 100)
        await stage.ended()
        with stage.span() as span:
            await stage.start("three", peer.runs)
            await stage.ended()
    figures = {"runs_per_s": peer.runs / span.seconds, "steps_per_s": 3 * peer.runs / span.seconds}
    return {"w1": figures | span.figures(peer.runs)}


async def w2(peer: Peer) -> Results:
    """200 runs of one step, one after another."""
    async with peer.stage() as stage:
        stage.work()
        await stage.execute("one", 10)
        with stage.span() as span:
            times = await stage.execute("one", 200)
    return {"w2": latency(times) | span.figures(len(times))}


async def w3_w4(peer: Peer) -> Results:
    """Starts without a worker, then the drain from the first end to the last; fewer for those that are slow."""
    count = min(5_000, 2 * peer.runs)
    async with peer.stage() as stage:
        with stage.span() as starting:
            await stage.start("one", count)
        unended = await stage.unended(stage.started)
        stage.work()
        await stage.begun(unended)
        with stage.span() as draining:
            left = await stage.unended(stage.started)
            await stage.ended()
    return {
        "w3": {"starts_per_s": count / starting.seconds} | starting.figures(count),
        "w4": {"runs_per_s": left / draining.seconds} | draining.figures(left),
    }


async def w5(peer: Peer) -> Results:
    """One run of 1,000 steps in a row."""
    async with peer.stage() as stage:
        stage.work()
        await stage.execute("one", 1)
        with stage.span() as span:
            await stage.start("row", 1, 1_000)
            await stage.ended(0.01)
    return {"w5": {"steps_per_s": 1_000 / span.seconds} | span.figures()}


async def w6(peer: Peer) -> Results:
    """One run of 500 parallel steps."""
    async with peer.stage() as stage:
        stage.work()
        await stage.execute("one", 1)
        began = time.perf_counter()
        with stage.span() as span:
            await stage.start("fan", 1, 500)
            await stage.ended(0.01)
            seconds = time.perf_counter() - began
    return {"w6": {"run_s": seconds} | span.figures(1)}


async def w7(peer: Peer) -> Results:
    """Idle, polling as often as each does by itself."""
    async with peer.stage(poll=None) as stage:
        stage.work()
        await asyncio.sleep(3)
        with stage.span() as span:
            await asyncio.sleep(10)
    del span.cpu["client"]
    return {"w7": {"cpu_percent": sum(span.cpu.values()) / span.seconds * 100} | span.figures()}


CONTESTS: dict[tuple[str, ...], Callable[[Peer], Awaitable[Results]]] = {
    ("w1",): w1,
    ("w2",): w2,
    ("w3", "w4"): w3_w4,
    ("w5",): w5,
    ("w6",): w6,
    ("w7",): w7,
}
