"""Dropping a run: everything of it ends, nothing is told to the clock, and nobody hears a complaint."""

import asyncio
import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from kagzi.sdk.loop import Dropped, RunLoop
from tests.sdk.test_loop import HandClock, Run, here

color: contextvars.ContextVar[str] = contextvars.ContextVar("color", default="none")


@pytest.fixture(autouse=True)
def _no_complaints(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    gc.collect()
    assert [each.getMessage() for each in caplog.records if "left behind" not in each.getMessage()] == []
    assert capfd.readouterr().err == ""


def dropped(coro: Coroutine[Any, Any, Any]) -> Run:
    run = Run(coro)
    assert not run.root.done()
    run.loop.drop()
    assert run.loop.live_tasks == 0
    assert run.loop.quiescent
    assert run.trouble == []
    return run


def test_code_cannot_swallow_the_drop_with_except_exception() -> None:
    seen: list[str] = []

    async def flow() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except Exception:  # noqa: BLE001 - what this test is about
                seen.append("swallowed")
            finally:
                seen.append("finally")

    run = dropped(flow())
    assert seen == ["finally"]
    assert isinstance(run.root.exception(), Dropped)


def test_every_further_await_is_dropped_too_and_no_cleanup_goes_on() -> None:
    seen: list[str] = []

    async def flow() -> None:
        try:
            await here().create_future()
        finally:
            seen.append("first")
            try:
                await asyncio.sleep(5)
                seen.append("never")
            finally:
                seen.append("second")
                await asyncio.gather(asyncio.sleep(1), asyncio.create_task(asyncio.sleep(1)))
                seen.append("never")

    dropped(flow())
    assert seen == ["first", "second"]


def test_the_clock_hears_nothing_of_a_drop() -> None:
    async def flow() -> None:
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(asyncio.sleep(10), asyncio.sleep(20))
        finally:
            await asyncio.sleep(30)

    run = dropped(flow())
    assert run.clock.started == [60, 10, 20]
    assert run.clock.cancelled == []


def test_the_run_knows_while_its_cleanup_runs_that_it_is_dropped() -> None:
    seen: list[bool] = []

    async def flow() -> None:
        seen.append(here().dropped)
        try:
            await here().create_future()
        finally:
            seen.append(here().dropped)

    dropped(flow())
    assert seen == [False, True]


def test_tasks_hear_of_the_drop_from_the_youngest_and_none_is_cancelled_instead() -> None:
    seen: list[tuple[str, str]] = []

    async def branch(name: str) -> None:
        try:
            await here().create_future()
        except BaseException as error:
            seen.append((name, type(error).__name__))
            raise

    async def flow() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch("a"))
                group.create_task(branch("b"))
                await branch("body")
        except BaseException as error:
            seen.append(("root", type(error).__name__))
            raise

    dropped(flow())
    assert seen == [("b", "Dropped"), ("a", "Dropped"), ("body", "Dropped"), ("root", "Dropped")]


WAITS: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {}


def wait(function: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Coroutine[Any, Any, Any]]:
    WAITS[getattr(function, "__name__", "")] = function
    return function


async def never() -> None:
    await here().create_future()


@wait
async def future() -> None:
    await never()


@wait
async def task() -> None:
    await asyncio.create_task(never())


@wait
async def gather_of_outcomes() -> None:
    await asyncio.gather(never(), never(), return_exceptions=True)


@wait
async def shield() -> None:
    await asyncio.shield(never())


@wait
async def wait_for() -> None:
    await asyncio.wait_for(never(), 10)


@wait
async def wait_set() -> None:
    await asyncio.wait([asyncio.create_task(never()), here().create_future()], timeout=5)


@wait
async def as_completed() -> None:
    for each in asyncio.as_completed([asyncio.create_task(never())]):
        await each


@wait
async def task_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(never())


@wait
async def lock() -> None:
    mutex = asyncio.Lock()
    await mutex.acquire()
    await mutex.acquire()


@wait
async def condition() -> None:
    changed = asyncio.Condition()
    async with changed:
        await changed.wait()


@wait
async def queue() -> None:
    await asyncio.Queue[int]().get()


@wait
async def event() -> None:
    await asyncio.Event().wait()


@wait
async def semaphore() -> None:
    await asyncio.Semaphore(0).acquire()


@wait
async def barrier() -> None:
    await asyncio.Barrier(2).wait()


@pytest.mark.parametrize("name", WAITS)
def test_whatever_the_code_waits_for_the_drop_comes_through(name: str) -> None:
    seen: list[str] = []

    async def flow() -> None:
        try:
            await WAITS[name]()
            seen.append("went on")
        except Exception:  # noqa: BLE001 - what this test is about
            seen.append("swallowed")
        finally:
            seen.append("finally")

    run = dropped(flow())
    assert seen == ["finally"]
    assert isinstance(run.root.exception(), Dropped)


def test_generators_begun_and_not_finished_are_closed_in_order_in_the_context_of_the_run() -> None:
    seen: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            seen.append(f"{name} {color.get()}")
            try:
                await asyncio.sleep(1)
            except Dropped:
                seen.append(f"{name} dropped")
                raise

    async def flow() -> None:
        color.set("red")
        kept = [numbers(name) for name in "abc"]
        for each in kept:
            await anext(each)
        await never()

    dropped(flow())
    assert seen == ["a red", "b red", "c red", "c dropped", "b dropped", "a dropped"]


def test_code_that_catches_everything_for_a_while_is_let_go() -> None:
    seen: list[int] = []

    async def flow() -> None:
        for attempt in range(100):
            try:
                await never()
            except BaseException:  # noqa: BLE001 - what this test is about
                seen.append(attempt)

    run = dropped(flow())
    assert seen == list(range(100))
    assert run.root.done()


def test_code_that_catches_the_drop_forever_is_closed_by_force() -> None:
    seen: list[str] = []

    async def flow() -> None:
        try:
            while True:
                try:
                    await never()
                except Dropped:
                    continue
        finally:
            seen.append("closed")

    run = dropped(flow())
    assert seen == ["closed"]
    assert not run.root.done()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_code_that_catches_even_its_closing_is_left_behind_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns: list[int] = []

    async def flow() -> None:
        while len(turns) < 100_000:
            try:
                await never()
            except BaseException:  # noqa: BLE001 - what this test is about
                turns.append(1)

    run = dropped(flow())
    assert "left behind" in caplog.text
    assert "flow" in caplog.text
    after = len(turns)
    run.loop.pump()
    assert len(turns) == after


def test_tasks_that_await_each_other_are_closed() -> None:
    closed: list[str] = []

    async def flow() -> None:
        tasks: dict[str, asyncio.Task[None]] = {}

        async def awaits(other: str) -> None:
            try:
                await tasks[other]
            finally:
                closed.append(other)

        tasks["a"] = asyncio.create_task(awaits("b"))
        tasks["b"] = asyncio.create_task(awaits("a"))
        await tasks["a"]

    run = Run(flow())
    run.loop.drop()
    assert sorted(closed) == ["a", "b"]
    gc.collect()


def test_a_task_that_was_never_begun_ends_too() -> None:
    async def flow() -> None:
        await never()

    loop = RunLoop(HandClock())
    root = loop.create_root(flow(), contextvars.Context())
    loop.drop()
    assert isinstance(root.exception(), Dropped)


def test_nothing_executes_after_the_drop() -> None:
    asked: list[asyncio.Future[int]] = []
    ran: list[str] = []

    async def flow() -> None:
        asked.append(here().create_future())
        asked[0].add_done_callback(lambda _: ran.append("callback"))
        asked.append(here().create_future())
        asked[1].add_done_callback(lambda _: ran.append("late callback"))
        here().call_later(5, ran.append, "timer")
        await asked[0]

    run = dropped(flow())
    assert ran == ["callback"]
    asked[1].set_result(1)
    run.clock.fire_next()
    run.loop.call_soon(ran.append, "soon")
    run.loop.call_later(0, ran.append, "later")
    run.loop.call_later(1, ran.append, "later")
    run.loop.pump()
    assert ran == ["callback"]
    assert run.clock.waiting == {}


def test_a_dropped_run_makes_no_more_tasks() -> None:
    run = dropped(never())
    with pytest.raises(Dropped):
        run.loop.create_task(never()).get_name()


def test_a_second_drop_does_nothing() -> None:
    run = dropped(never())
    error = run.root.exception()
    run.loop.drop()
    assert run.root.exception() is error


def test_an_error_of_the_cleanup_is_silent() -> None:
    async def flow() -> None:
        asyncio.create_task(never()).get_name()
        try:
            await never()
        finally:
            here().call_soon(lambda: 1 / 0)
            try:
                await never()
            finally:
                raise ValueError("of the cleanup")

    run = dropped(flow())
    assert isinstance(run.root.exception(), ValueError)


@pytest.mark.parametrize("name", WAITS)
def test_a_dropped_run_leaves_nothing_for_the_garbage_collector(name: str) -> None:
    class Mark: ...

    async def flow(mark: Mark) -> None:
        try:
            await WAITS[name]()
        finally:
            assert isinstance(mark, Mark)

    def once() -> weakref.ref[Mark]:
        mark = Mark()
        loop = RunLoop(HandClock())
        root = loop.create_root(flow(mark), contextvars.Context())
        loop.pump()
        loop.drop()
        assert root.done()
        return weakref.ref(mark)

    once()
    gc.collect()
    gc.disable()
    try:
        assert once()() is None
    finally:
        gc.enable()
