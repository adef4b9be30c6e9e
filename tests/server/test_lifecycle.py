"""Background loops: supervised, restarted, never silent, gone when stopped."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kagzi.server.lifecycle import Loop, Wakeup


class Recorded(Loop):
    """Counts its runs and fails in the first ones."""

    name = "recorded"

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.runs = 0
        self.again = asyncio.Event()
        self.steady = asyncio.Event()
        self.left = False

    async def run(self) -> None:
        self.runs += 1
        if self.runs > 1:
            self.again.set()
        if self.runs <= self.failures:
            raise ValueError(f"failure {self.runs}")
        self.steady.set()
        try:
            await self.stopping.wait()
        finally:
            self.left = True


async def test_a_loop_that_crashes_is_logged_by_name_and_begins_again() -> None:
    loop = Recorded(failures=2)
    with capture_logs() as logs:
        loop.start()
        await asyncio.wait_for(loop.steady.wait(), 10)
    await loop.stop()
    assert loop.runs == 3
    assert loop.crashes == 2
    assert [(entry["event"], entry["loop"]) for entry in logs] == [("loop_crashed", "recorded")] * 2


async def test_a_crash_pauses_longer_each_time_and_the_pause_ends_with_stop() -> None:
    loop = Recorded(failures=1_000)
    with capture_logs() as logs:
        loop.start()
        await asyncio.wait_for(loop.again.wait(), 10)
        # The second crash follows before anything else can run.
        assert loop.crashes == 2
        assert not loop.alive
        await loop.stop(grace=30)
    pauses = [entry["pause"] for entry in logs]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[1]


async def test_a_stopped_loop_is_gone_when_stop_returns() -> None:
    loop = Recorded()
    loop.start()
    await loop.steady.wait()
    assert loop.alive
    await loop.stop()
    assert loop.left
    assert not loop.alive


async def test_a_loop_may_finish_what_it_does_before_it_is_cancelled() -> None:
    class Finishing(Recorded):
        finished = False

        async def run(self) -> None:
            await super().run()
            await asyncio.sleep(0)
            self.finished = True

    patient, hasty = Finishing(), Finishing()
    for loop in (patient, hasty):
        loop.start()
        await loop.steady.wait()
    await patient.stop(grace=10)
    await hasty.stop()
    assert (patient.finished, hasty.finished) == (True, False)


async def test_stopping_twice_or_before_the_start_is_harmless_and_starting_twice_is_a_defect() -> None:
    never = Recorded()
    await never.stop()
    loop = Recorded()
    loop.start()
    with pytest.raises(RuntimeError, match="recorded"):
        loop.start()
    await loop.stop()
    await loop.stop()


async def test_a_wakeup_is_one_however_often_it_was_set() -> None:
    wakeup = Wakeup()
    wakeup.set()
    wakeup.set()
    assert await wakeup.wait(10)
    assert not await wakeup.wait(0.001)


async def test_a_wakeup_reaches_who_waits_already() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait())
    await asyncio.sleep(0)
    wakeup.set()
    assert await asyncio.wait_for(waiting, 10)
