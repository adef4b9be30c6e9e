"""Pumping: from a callback of any real loop, leaving no trace there, within a budget."""

import asyncio
import contextlib
import contextvars
import gc
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from kagzi.sdk.loop import RunLoop, Spinning
from tests.sdk.test_loop import HandClock, Run, here, on_run_loop

REAL_LOOPS: dict[str, Callable[[Coroutine[Any, Any, Any]], Any]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}


async def spin() -> None:
    while True:  # noqa: ASYNC110 - what is to be stopped
        await asyncio.sleep(0)


async def in_a_callback(work: Callable[[], Any]) -> Any:
    """What a worker does: the run moves in a plain callback, not in a task."""
    real = asyncio.get_running_loop()
    outcome: asyncio.Future[Any] = real.create_future()

    def callback() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to the test
            outcome.set_exception(error)

    real.call_soon(callback)
    return await outcome


@pytest.mark.parametrize("real", REAL_LOOPS)
def test_runs_move_between_the_callbacks_of_a_real_loop(real: str) -> None:
    bodies: list[asyncio.Task[Any]] = []

    async def body(answer: int) -> int:
        await asyncio.sleep(0.001)
        return answer

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[None] = loop.create_future()
        results: list[int] = []

        def start(number: int) -> None:
            runs = RunLoop(HandClock())

            def step(answer: int) -> asyncio.Future[int]:
                future: asyncio.Future[int] = asyncio.Future(loop=runs)
                task = loop.create_task(body(answer))
                bodies.append(task)

                def hand_over(done: asyncio.Task[int]) -> None:
                    future.set_result(done.result())
                    runs.pump()

                task.add_done_callback(hand_over)
                return future

            async def flow() -> int:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(add(each)) for each in range(3)]
                return number + sum(each.result() for each in tasks)

            async def add(each: int) -> int:
                return await step(each) + await step(each)

            def ended(root: asyncio.Task[int]) -> None:
                results.append(root.result())
                if len(results) == 50:
                    finished.set_result(None)

            runs.create_root(flow(), contextvars.Context()).add_done_callback(ended)
            runs.pump()

        for number in range(50):
            loop.call_soon(start, number)
        await asyncio.wait_for(finished, 30)
        return sorted(results)

    assert REAL_LOOPS[real](main()) == [number + 6 for number in range(50)]


@pytest.mark.parametrize("real", REAL_LOOPS)
def test_a_pump_restores_the_running_loop_and_the_hooks_of_async_generators(real: str) -> None:
    closed: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    async def abandons(name: str) -> None:
        async for _ in numbers(name):
            break

    async def main() -> None:
        outer = asyncio.get_running_loop()
        hooks = sys.get_asyncgen_hooks()

        def pump() -> Run:
            run = Run(abandons("the run's"))
            assert asyncio.get_running_loop() is outer
            assert sys.get_asyncgen_hooks() == hooks
            return run

        run = await in_a_callback(pump)
        assert run.root.done()
        await abandons("the worker's")
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        assert closed == ["the worker's"]
        await in_a_callback(run.loop.drop)
        assert closed == ["the worker's", "the run's"]

    REAL_LOOPS[real](main())


@pytest.mark.parametrize("real", REAL_LOOPS)
def test_a_pump_inside_a_task_is_refused_and_changes_nothing(real: str) -> None:
    async def flow() -> str:
        return "ran"

    async def main() -> str:
        loop = RunLoop(HandClock())
        root = loop.create_root(flow(), contextvars.Context())
        for attempt in (loop.pump, loop.drop):
            with pytest.raises(RuntimeError, match="from a plain callback"):
                attempt()
        await in_a_callback(loop.pump)
        return root.result()

    assert REAL_LOOPS[real](main()) == "ran"


def test_a_pump_inside_the_run_itself_is_refused() -> None:
    async def flow() -> None:
        for attempt in (here().pump, here().drop):
            with pytest.raises(RuntimeError, match="from a plain callback"):
                attempt()
        here().call_soon(here().pump)

    run = Run(flow())
    run.root.result()
    assert [type(each["exception"]) for each in run.trouble] == [RuntimeError]


def test_the_loop_is_running_only_while_it_is_pumped() -> None:
    async def flow() -> bool:
        return here().is_running()

    run = Run(flow())
    assert run.root.result()
    assert not run.loop.is_running()
    assert not run.loop.is_closed()
    run.loop.drop()
    assert run.loop.is_closed()


def test_a_run_that_spins_is_stopped_by_its_budget() -> None:
    with pytest.raises(Spinning, match=r"without waiting for anything.*asyncio\.Event") as spinning:
        Run(spin(), max_callbacks=5_000)
    assert 5_000 <= spinning.value.callbacks < 7_000


def test_a_thousand_branches_that_spin_are_stopped_as_well() -> None:
    async def flow() -> None:
        await asyncio.gather(*(spin() for _ in range(1_000)))

    with pytest.raises(Spinning) as spinning:
        Run(flow(), max_callbacks=5_000)
    assert spinning.value.callbacks < 50_000


def test_a_run_that_makes_tasks_without_end_is_stopped_as_well() -> None:
    async def nothing() -> None: ...

    async def flow() -> None:
        while True:
            await asyncio.create_task(nothing())

    with pytest.raises(Spinning):
        Run(flow(), max_callbacks=5_000)


def test_a_spinning_run_can_be_dropped() -> None:
    left: list[str] = []

    async def flow() -> None:
        try:
            await spin()
        finally:
            left.append("left")

    loop = RunLoop(HandClock(), max_callbacks=2_000)
    root = loop.create_root(flow(), contextvars.Context())
    with pytest.raises(Spinning):
        loop.pump()
    loop.drop()
    assert left == ["left"]
    assert not root.done()
    assert loop.live_tasks == 0


def test_a_wide_run_is_not_taken_for_a_spinning_one() -> None:
    async def branch(number: int) -> int:
        await asyncio.sleep(0)
        return number

    async def flow() -> int:
        return sum(await asyncio.gather(*(branch(each) for each in range(20_000))))

    run = Run(flow(), max_callbacks=5_000)
    assert run.root.result() == sum(range(20_000))


def test_a_run_that_calls_exit_fails_alone() -> None:
    seen: list[str] = []

    async def exits() -> None:
        sys.exit(3)

    async def flow() -> None:
        task = asyncio.create_task(exits())
        with contextlib.suppress(SystemExit):
            await task
        seen.append("went on")
        sys.exit(4)

    run = Run(flow())
    assert seen == ["went on"]
    error = run.root.exception()
    assert isinstance(error, SystemExit)
    assert error.code == 4


def test_a_keyboard_interrupt_reaches_the_worker() -> None:
    async def flow() -> None:
        raise KeyboardInterrupt

    loop = RunLoop(HandClock())
    root = loop.create_root(flow(), contextvars.Context())
    with pytest.raises(KeyboardInterrupt):
        loop.pump()
    assert isinstance(root.exception(), KeyboardInterrupt)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_an_abandoned_generator_is_not_closed_by_the_garbage_collector() -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append("closed")

    async def flow() -> list[str]:
        async for _ in numbers():
            break
        gc.collect()
        await asyncio.sleep(1)
        return list(closed)

    assert on_run_loop(flow()) == []
    assert closed == ["closed"]


def test_finished_generators_are_not_kept_for_the_life_of_the_run() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    async def flow() -> None:
        for _ in range(5_000):
            async for _ in numbers():
                pass

    run = Run(flow())
    assert run.root.done()
    assert len(run.loop._generators) < 100
    run.loop.drop()
