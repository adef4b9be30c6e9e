"""The run loop as its owner sees it: roots, contexts, quiescence, and a clock held in the hand."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kagzi.sdk.loop import RunLoop


class HandClock:
    """Time that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self.started: list[float] = []
        self.cancelled: list[float] = []

    def now(self) -> float:
        return self.time

    def start_timer(self, delay: float, fire: Callable[[], None]) -> Callable[[], None]:
        number = len(self.started)
        self.started.append(delay)
        self.waiting[number] = (self.time + delay, fire)

        def cancel() -> None:
            del self.waiting[number]
            self.cancelled.append(delay)

        return cancel

    def fire_next(self) -> None:
        number = min(self.waiting, key=lambda each: (self.waiting[each][0], each))
        due, fire = self.waiting.pop(number)
        self.time = max(self.time, due)
        fire()


class Run:
    """One run on a loop of its own, driven as an execution drives it."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, max_callbacks: int = 100_000) -> None:
        self.clock = HandClock()
        self.trouble: list[dict[str, Any]] = []
        self.loop = RunLoop(self.clock, on_trouble=self.trouble.append, max_callbacks=max_callbacks)
        self.root = self.loop.create_root(coro, contextvars.Context())
        self.loop.pump()

    def finish(self) -> Any:
        """Let time pass until the root is done."""
        while not self.root.done():
            self.clock.fire_next()
            self.loop.pump()
        try:
            return self.root.result()
        finally:
            self.loop.drop()


def on_run_loop(coro: Coroutine[Any, Any, Any]) -> Any:
    return Run(coro).finish()


def here() -> RunLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RunLoop)
    return loop


def test_a_run_is_quiescent_when_it_waits_and_goes_on_when_its_future_is_resolved() -> None:
    asked: list[asyncio.Future[int]] = []

    async def flow() -> int:
        asked.append(here().create_future())
        return await asked[0] + 1

    run = Run(flow())
    assert run.loop.quiescent
    assert not run.root.done()
    asked[0].set_result(41)
    assert not run.loop.quiescent
    run.loop.pump()
    assert run.root.result() == 42


def test_nothing_of_a_run_executes_before_it_is_pumped() -> None:
    began: list[bool] = []

    async def flow() -> None:
        began.append(True)

    loop = RunLoop(HandClock())
    root = loop.create_root(flow(), contextvars.Context())
    assert not began
    loop.pump()
    assert began
    assert root.done()


def test_live_tasks_counts_those_that_have_not_ended() -> None:
    gate: list[asyncio.Future[None]] = []

    async def waits() -> None:
        gate.append(here().create_future())
        await gate[-1]

    async def flow() -> None:
        await asyncio.gather(waits(), waits(), waits())

    run = Run(flow())
    assert run.loop.live_tasks == 4
    gate[1].set_result(None)
    run.loop.pump()
    assert run.loop.live_tasks == 3
    run.loop.drop()
    assert run.loop.live_tasks == 0


def test_a_task_that_nobody_holds_lives_on() -> None:
    import gc

    ended: list[str] = []

    async def background() -> None:
        await asyncio.sleep(1)
        ended.append("background")

    async def flow() -> None:
        asyncio.create_task(background()).get_name()
        gc.collect()
        await asyncio.sleep(2)

    on_run_loop(flow())
    assert ended == ["background"]


def test_finished_tasks_are_not_kept_for_the_life_of_the_run() -> None:
    async def nothing() -> None: ...

    async def flow() -> None:
        for _ in range(10_000):
            await asyncio.create_task(nothing())

    run = Run(flow())
    assert run.root.done()
    assert len(run.loop._tasks) < 100


color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


def test_each_run_has_the_context_its_owner_gave_it() -> None:
    seen: list[str] = []

    async def flow(name: str) -> None:
        seen.append(color.get())
        color.set(name)
        await asyncio.sleep(0)
        seen.append(color.get())
        await asyncio.create_task(child())

    async def child() -> None:
        seen.append(color.get() + "'s child")

    context = contextvars.Context()
    context.run(color.set, "given")
    first = RunLoop(HandClock())
    second = RunLoop(HandClock())
    roots = first.create_root(flow("red"), context), second.create_root(flow("blue"), contextvars.Context())
    first.pump()
    second.pump()
    assert all(each.done() for each in roots)
    assert seen == ["given", "red", "red's child", "none", "blue", "blue's child"]
    assert color.get() == "none"
    assert context[color] == "red"


def test_current_task_and_all_tasks_know_the_tasks_of_this_run_alone() -> None:
    async def other() -> None:
        await here().create_future()

    neighbour = Run(other())

    async def flow() -> tuple[str, set[str]]:
        helper = asyncio.create_task(other(), name="helper")
        current = asyncio.current_task()
        assert current is not None
        names = {each.get_name() for each in asyncio.all_tasks()}
        helper.cancel()
        return current.get_name(), names

    run = Run(flow())
    assert run.root.result() == ("Task-1", {"Task-1", "helper"})
    assert asyncio.all_tasks(neighbour.loop) == {neighbour.root}
    run.loop.drop()
    neighbour.loop.drop()


def test_names_of_tasks_count_within_their_run() -> None:
    async def flow() -> list[str]:
        async def nothing() -> None: ...

        tasks = [asyncio.create_task(nothing()) for _ in range(3)]
        return [each.get_name() for each in tasks]

    assert on_run_loop(flow()) == on_run_loop(flow()) == ["Task-2", "Task-3", "Task-4"]


def test_failures_nobody_looked_at_reach_the_owner_when_the_run_ends() -> None:
    async def fails() -> None:
        raise ValueError("unseen")

    async def flow() -> None:
        asyncio.create_task(fails()).get_name()
        await asyncio.sleep(0)

    run = Run(flow())
    assert run.root.done()
    run.loop.drop()
    assert [str(each["exception"]) for each in run.trouble] == ["unseen"]


def test_a_callback_that_raises_is_reported_and_the_others_run() -> None:
    ran: list[str] = []

    async def flow() -> None:
        here().call_soon(lambda: 1 / 0)
        here().call_soon(ran.append, "after")
        await asyncio.sleep(0)

    run = Run(flow())
    assert ran == ["after"]
    assert [type(each["exception"]) for each in run.trouble] == [ZeroDivisionError]


def test_an_exception_handler_set_by_the_code_is_used_and_may_fail() -> None:
    heard: list[str] = []

    def handler(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        heard.append(type(context["exception"]).__name__)
        raise RuntimeError("the handler itself")

    async def flow() -> None:
        here().set_exception_handler(handler)
        assert here().get_exception_handler() is handler
        here().call_soon(lambda: 1 / 0)

    run = Run(flow())
    assert run.root.done()
    assert heard == ["ZeroDivisionError"]
    assert run.trouble == []


def test_trouble_is_logged_when_the_owner_does_not_ask_for_it(caplog: pytest.LogCaptureFixture) -> None:
    loop = RunLoop(HandClock())
    loop.call_soon(lambda: 1 / 0)
    loop.pump()
    assert "Exception in callback" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_what_a_run_of_three_awaits_costs() -> None:
    """Prints the figure, asserts none: machines differ."""
    asked: list[asyncio.Future[int]] = []

    async def flow(loop: RunLoop) -> int:
        total = 0
        for _ in range(3):
            asked.append(asyncio.Future(loop=loop))
            total += await asked[-1]
        return total

    def once() -> None:
        loop = RunLoop(clock)
        root = loop.create_root(flow(loop), contextvars.Context())
        loop.pump()
        while not root.done():
            asked.pop().set_result(1)
            loop.pump()
        assert root.result() == 3
        loop.drop()

    clock = HandClock()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1_000):
            once()
        best = min(best, (time.perf_counter() - began) / 1_000)
    print(f"{best * 1e6:.1f} µs a run of three awaits")  # noqa: T201 - the figure is what this is for
