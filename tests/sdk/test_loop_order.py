"""The same order every time: sets of tasks are walked alike in each repetition, whatever the addresses."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.sdk.test_loop import Run, here, on_run_loop

Order = list[Any]
FLOWS: dict[str, Callable[[], Coroutine[Any, Any, Order]]] = {}


def flow(function: Callable[[], Coroutine[Any, Any, Order]]) -> Callable[[], Coroutine[Any, Any, Order]]:
    FLOWS[getattr(function, "__name__", "")] = function
    return function


async def branch(order: Order, name: object) -> None:
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        order.append(name)
        raise


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("as asked")


@flow
async def cancellations_of_a_task_group() -> Order:
    order: Order = []
    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(branch(order, number))
            group.create_task(fails())
    assert order == list(range(50))
    return order


@flow
async def cancellations_of_a_task_group_whose_tasks_are_far_apart() -> Order:
    order: Order = []

    async def nothing() -> None: ...

    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for number in range(40):
                for _ in range(number % 7 * 11):
                    await asyncio.create_task(nothing())
                group.create_task(branch(order, number))
            group.create_task(fails())
    assert sorted(order) == list(range(40))
    return order


@flow
async def what_wait_gives_back() -> Order:
    async def ends(delay: float) -> float:
        await asyncio.sleep(delay)
        return delay

    tasks = {asyncio.create_task(ends(each % 3), name=str(each)) for each in range(60)}
    done, pending = await asyncio.wait(tasks, timeout=1.5)
    order = [each.get_name() for each in done] + [each.get_name() for each in pending]
    await asyncio.wait(pending)
    return order


@flow
async def futures_in_sets() -> Order:
    loop = here()
    names: dict[int, str] = {}
    futures = set()
    for each in range(60):
        future = loop.create_future() if each % 2 else asyncio.shield(asyncio.create_task(asyncio.sleep(each, each)))
        names[id(future)] = str(each)
        futures.add(future)
        if each % 2:
            loop.call_later(each, future.set_result, each)
    done, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED, timeout=31)
    done, pending = await asyncio.wait(futures, timeout=31)
    order = [names[id(each)] for each in done] + [names[id(each)] for each in pending]
    await asyncio.wait(pending)
    return order


@flow
async def as_completed_over_tasks_that_end_together() -> Order:
    async def ends(number: int) -> int:
        await gate.wait()
        return number

    gate = asyncio.Event()
    tasks = [asyncio.create_task(ends(each)) for each in range(30)]
    here().call_soon(gate.set)
    order = [await each for each in asyncio.as_completed(tasks)]
    assert order == list(range(30))
    return order


@flow
async def tasks_as_keys() -> Order:
    tasks = frozenset(asyncio.create_task(asyncio.sleep(0), name=str(each)) for each in range(100))
    await asyncio.gather(*tasks)
    return [each.get_name() for each in tasks]


@pytest.mark.parametrize("name", FLOWS)
def test_the_order_is_the_same_in_200_repetitions(name: str) -> None:
    first = on_run_loop(FLOWS[name]())
    assert first
    litter: list[list[bytearray]] = []
    for _ in range(200):
        # Other objects on other addresses, so that the tasks land on other addresses too.
        litter.append([bytearray(random.randrange(16, 800)) for _ in range(random.randrange(20))])
        if len(litter) > 10:
            litter.pop(random.randrange(10))
        assert on_run_loop(FLOWS[name]()) == first


def test_many_runs_beside_each_other_do_not_slow_down_the_making_of_tasks() -> None:
    """Tasks of all runs share one set in asyncio, where equal hashes would meet."""

    async def flow() -> None:
        await here().create_future()

    runs = [Run(flow()) for _ in range(300)]
    assert {hash(run.root) for run in runs} == {1}
    registries = [getattr(asyncio.tasks, name, ()) for name in ("_all_tasks", "_scheduled_tasks")]
    stored = [hash(each) for registry in registries for each in getattr(registry, "data", ())]
    assert len(set(stored)) >= len(stored) * 0.9
    for run in runs:
        assert asyncio.all_tasks(run.loop) == {run.root}
        run.loop.drop()
