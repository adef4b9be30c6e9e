"""Timers of asyncio on a run loop: durable, told to the clock once, and never by the wall."""

import asyncio
import math
from collections.abc import Callable

import pytest

from kagzi.sdk.loop import RunLoop
from tests.sdk.test_loop import HandClock, Run, here, on_run_loop


def test_asyncio_sleep_asks_the_clock_for_its_delay_and_wakes_when_it_fires() -> None:
    async def flow() -> str:
        return await asyncio.sleep(86_400, "woken")

    run = Run(flow())
    assert run.clock.started == [86_400]
    assert run.loop.quiescent
    assert run.finish() == "woken"
    assert run.clock.cancelled == []


@pytest.mark.parametrize("delay", [0, -1])
def test_asyncio_sleep_without_a_delay_starts_no_timer(delay: float) -> None:
    async def flow() -> None:
        await asyncio.sleep(delay)

    run = Run(flow())
    assert run.root.done()
    assert run.clock.started == []


@pytest.mark.parametrize("delay", [0, -5])
def test_call_later_without_a_delay_is_due_on_the_next_turn(delay: float) -> None:
    ran: list[str] = []

    async def flow() -> None:
        here().call_later(delay, ran.append, "later")
        here().call_soon(ran.append, "soon")
        cancelled = here().call_later(delay, ran.append, "never")
        cancelled.cancel()
        assert ran == []
        await asyncio.sleep(0)

    run = Run(flow())
    assert ran == ["later", "soon"]
    assert run.clock.started == []
    assert run.clock.cancelled == []


def test_a_cancelled_timer_tells_the_clock_once_and_does_not_run() -> None:
    ran: list[str] = []

    async def flow() -> None:
        handle = here().call_later(10, ran.append, "never")
        assert handle.when() == here().time() + 10
        handle.cancel()
        handle.cancel()
        assert handle.cancelled()

    run = Run(flow())
    assert run.clock.cancelled == [10]
    assert run.clock.waiting == {}
    assert ran == []


def test_a_timer_that_fired_is_not_cancelled_any_more() -> None:
    handles: list[asyncio.TimerHandle] = []
    ran: list[str] = []

    async def flow() -> None:
        handles.append(here().call_later(10, ran.append, "fired"))
        await asyncio.sleep(20)

    run = Run(flow())
    run.finish()
    handles[0].cancel()
    assert ran == ["fired"]
    assert run.clock.cancelled == []


def test_a_timer_told_twice_runs_once_and_one_told_after_its_cancellation_never() -> None:
    told: list[Callable[[], None]] = []
    ran: list[str] = []

    class Keeps(HandClock):
        def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
            told.append(fire)
            return lambda: None

    loop = RunLoop(Keeps())
    loop.call_later(1, ran.append, "once")
    loop.call_later(1, ran.append, "never").cancel()
    for fire in told + told:
        fire()
    loop.pump()
    assert ran == ["once"]


def test_a_clock_may_fire_at_once() -> None:
    class Hasty(HandClock):
        def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
            fire()
            return lambda: pytest.fail("a timer that fired is not cancelled")

    async def flow() -> str:
        return await asyncio.sleep(5, "woken")

    loop = RunLoop(Hasty())
    root = loop.create_task(flow())
    loop.pump()
    assert root.result() == "woken"


def test_timers_run_in_the_order_in_which_the_clock_fires_them() -> None:
    async def flow() -> list[int]:
        ran: list[int] = []
        for each in (3, 1, 2, 1):
            here().call_later(each, ran.append, each)
        await asyncio.sleep(4)
        return ran

    assert on_run_loop(flow()) == [1, 1, 2, 3]


def test_a_deadline_asks_for_the_delay_that_was_meant() -> None:
    async def flow() -> None:
        for delay in (5, 0.1, 0.001, 1234.567):
            async with asyncio.timeout(delay):
                await asyncio.sleep(0)

    run = Run(flow())
    assert run.clock.started == [5, 0.1, 0.001, 1234.567]
    assert run.clock.cancelled == run.clock.started


def test_time_is_the_time_of_the_clock_and_moves_with_it_alone() -> None:
    async def flow() -> list[float]:
        began = here().time()
        await asyncio.sleep(0)
        still = here().time()
        await asyncio.sleep(90)
        return [still - began, here().time() - began]

    assert on_run_loop(flow()) == [0, 90]


def test_a_wait_without_an_end_starts_no_timer() -> None:
    async def flow() -> None:
        await asyncio.sleep(math.inf)

    run = Run(flow())
    assert not run.root.done()
    assert run.clock.started == []
    run.loop.drop()


def test_a_delay_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="a number"):
        RunLoop(HandClock()).call_later(math.nan, lambda: None)


def test_what_the_clock_raises_is_raised_in_the_code_that_asked() -> None:
    class Refuses(HandClock):
        def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
            raise LookupError("not in the history")

    async def flow() -> None:
        with pytest.raises(LookupError):
            await asyncio.sleep(1)

    loop = RunLoop(Refuses())
    root = loop.create_task(flow())
    loop.pump()
    root.result()
