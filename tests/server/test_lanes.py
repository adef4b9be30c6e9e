"""Lanes: what a run has under way keeps its order in one of them, and phases of handlers use more than one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kagzi.protocol.v1.automation_pb2 import CommitPrepare
from kagzi.protocol.v1.worker_pb2 import StepStarted
from kagzi.server.lane import Entry, Lane
from kagzi.server.lanes import Lanes
from kagzi.store.operation import Kind, Operation


class Desk:
    """Where lanes flush: what is there stays until it is let go."""

    def __init__(self) -> None:
        self.flushed: list[list[Operation]] = []
        self.let_go = asyncio.Event()
        self._news = asyncio.Event()

    async def flush(self, namespace: str, entries: Sequence[Entry]) -> None:
        self.flushed.append([entry.operation for entry in entries])
        self._news.set()
        await self.let_go.wait()

    async def has(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.flushed) < count:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def at_work(desk: Desk) -> AsyncIterator[Lanes]:
    lanes = Lanes(1, 2, 1_000, desk.flush)
    for lane in lanes:
        lane.start()
    try:
        yield lanes
    finally:
        for lane in lanes:
            await lane.stop()


def started(run_id: str) -> Operation:
    return Operation(Kind.START_STEP, "default", run_id, StepStarted())


def prepared(run_id: str) -> Operation:
    return Operation(Kind.COMMIT_PREPARE, "default", run_id, CommitPrepare())


def put(lanes: Lanes, operation: Operation) -> Lane:
    lane = lanes.enter(operation)
    lane.put(Entry(operation, lambda _: None, 0))
    return lane


async def test_what_a_run_has_under_way_stays_in_one_lane_whatever_it_is() -> None:
    lanes = Lanes(1, 2, 1_000, Desk().flush)
    begun, ended = started("one"), prepared("one")
    lane = lanes.enter(begun)
    assert lanes.enter(prepared("other")) is not lane
    assert lanes.enter(ended) is lane
    lanes.leave(begun)
    assert lanes.enter(prepared("one")) is lane
    lanes.leave(ended)
    lanes.leave(ended)
    assert lanes.enter(prepared("one")) is not lane


async def test_phases_that_come_while_others_are_flushed_wait_for_nobody_while_a_lane_rests() -> None:
    desk = Desk()
    async with at_work(desk) as lanes:
        first = [prepared("one"), prepared("two")]
        assert put(lanes, first[0]) is put(lanes, first[1])
        await desk.has(1)
        second = [prepared("three"), prepared("four")]
        assert put(lanes, second[0]) is put(lanes, second[1])
        await desk.has(2)
        assert desk.flushed == [first, second]


async def test_what_finds_no_lane_at_rest_waits_for_the_one_that_began_first() -> None:
    desk = Desk()
    async with at_work(desk) as lanes:
        first = put(lanes, prepared("one"))
        await desk.has(1)
        second = put(lanes, prepared("two"))
        await desk.has(2)
        waiting = prepared("three")
        assert put(lanes, waiting) is first is not second
        desk.let_go.set()
        await desk.has(3)
        assert desk.flushed[2] == [waiting]
