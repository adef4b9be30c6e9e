"""What workflow code cannot do, and what it is told to do instead."""

import asyncio
import contextvars
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kagzi.sdk.loop import NotInWorkflow, RunLoop
from tests.sdk.test_loop import HandClock, Run, here, on_run_loop

ATTEMPTS: dict[str, Callable[[], Awaitable[Any]]] = {
    "asyncio.to_thread": lambda: asyncio.to_thread(time.time),
    "loop.run_in_executor()": lambda: here().run_in_executor(None, time.time),
    "asyncio.open_connection": lambda: asyncio.open_connection("localhost", 1),
    "asyncio.start_server": lambda: asyncio.start_server(print, "localhost", 0),
    "asyncio.open_unix_connection": lambda: asyncio.open_unix_connection("/nowhere"),
    "asyncio.start_unix_server": lambda: asyncio.start_unix_server(print, "/nowhere"),
    "asyncio.create_subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "asyncio.create_subprocess_shell": lambda: asyncio.create_subprocess_shell("true"),
    "loop.getaddrinfo()": lambda: here().getaddrinfo("localhost", 1),
}


@pytest.mark.parametrize("call", ATTEMPTS)
def test_input_and_output_are_refused_by_name_with_the_advice_to_use_a_step(call: str) -> None:
    async def flow() -> None:
        with pytest.raises(NotInWorkflow) as refusal:
            await ATTEMPTS[call]()
        assert call in str(refusal.value)
        assert "do this in a step" in str(refusal.value)

    on_run_loop(flow())


def test_a_thread_cannot_wake_a_run() -> None:
    loop = RunLoop(HandClock())
    with pytest.raises(NotInWorkflow, match="no other thread may wake a run"):
        loop.call_soon_threadsafe(print)


def test_files_sockets_and_signals_are_refused() -> None:
    loop = RunLoop(HandClock())
    left, right = socket.socketpair()
    with left, right:
        for attempt, argument in (
            (loop.add_reader, left),
            (loop.add_writer, left),
            (loop.add_signal_handler, 2),
            (loop.sock_recv, left),
        ):
            with pytest.raises(NotInWorkflow, match="do this in a step"):
                attempt(argument, print)


def test_code_does_not_drive_its_own_loop() -> None:
    async def flow() -> None:
        loop = here()
        for attempt in (loop.run_forever, loop.stop, loop.close):
            with pytest.raises(NotInWorkflow, match="the worker drives this loop"):
                attempt()
        with pytest.raises(NotInWorkflow, match="made by its loop"):
            loop.set_task_factory(None)

    on_run_loop(flow())


def test_every_method_of_the_loop_interface_is_either_done_or_refused() -> None:
    left_over = [
        name
        for name, method in inspect.getmembers(asyncio.AbstractEventLoop, inspect.isfunction)
        if not name.startswith("__") and getattr(RunLoop, name) is method
    ]
    assert left_over == []


def test_as_completed_over_coroutines_is_refused_because_it_starts_them_by_address() -> None:
    started: list[int] = []

    async def branch(number: int) -> None:
        started.append(number)

    async def flow() -> None:
        branches = [branch(each) for each in range(5)]
        try:
            with pytest.raises(NotInWorkflow, match="give it tasks"):
                list(asyncio.as_completed(branches))
        finally:
            for left in branches:
                left.close()

    on_run_loop(flow())
    assert started == []


def test_as_completed_over_other_awaitables_is_refused_too() -> None:
    class Wish:
        def __await__(self) -> Any:
            return iter(())

    async def flow() -> None:
        with pytest.raises(NotInWorkflow, match="as_completed"):
            list(asyncio.as_completed([Wish()]))

    on_run_loop(flow())


def test_gather_and_ensure_future_take_coroutines_inside_and_outside_of_as_completed() -> None:
    async def branch(number: int) -> int:
        await asyncio.sleep(number)
        return number

    async def both() -> tuple[int, int]:
        first, second = await asyncio.gather(branch(2), branch(1))
        return first, second

    async def flow() -> list[Any]:
        tasks = [asyncio.ensure_future(both()), asyncio.ensure_future(branch(1))]
        return [await each for each in asyncio.as_completed(tasks)]

    assert on_run_loop(flow()) == [1, (2, 1)]


def test_a_refusal_inside_a_task_is_the_failure_of_that_task() -> None:
    async def flow() -> None:
        await asyncio.to_thread(time.time)

    run = Run(flow())
    assert isinstance(run.root.exception(), NotInWorkflow)
    run.loop.drop()


def test_a_root_takes_its_context_by_position() -> None:
    async def nothing() -> None: ...

    loop = RunLoop(HandClock())
    root = loop.create_root(nothing(), contextvars.Context())
    loop.pump()
    assert root.done()
