"""asyncio's own tools, on a run loop and on Python's: each flow must tell the same story on both.

Python's loop runs here on a time of its own, which skips to the next timer instead of waiting for it. No two
timers of a flow are due together: a run is handed one at a time, Python's loop takes all that are due.
"""

import asyncio
import contextlib
import contextvars
import functools
import selectors
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.sdk.test_loop import on_run_loop

Story = list[Any]
Flow = Callable[[Story], Coroutine[Any, Any, Any]]
FLOWS: dict[str, Flow] = {}


def flow(function: Flow) -> Flow:
    FLOWS[getattr(function, "__name__", "")] = function
    return function


class SkippingSelector(selectors.DefaultSelector):
    """Lets the time that it is asked to wait pass at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "the flow waits for nothing"
        self.passed += timeout
        return super().select(0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Python's own loop, on the time of its selector."""

    def __init__(self) -> None:
        self.selector = SkippingSelector()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.passed


def on_pythons_loop(coro: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(coro)


@pytest.mark.parametrize("name", FLOWS)
def test_tells_the_same_story_as_on_pythons_own_loop(name: str) -> None:
    ours: Story = []
    pythons: Story = []
    ours.append(on_run_loop(FLOWS[name](ours)))
    pythons.append(on_pythons_loop(FLOWS[name](pythons)))
    assert ours == pythons
    assert len(ours) > 1 or ours[0] is not None


async def branch(story: Story, name: str, delay: float) -> str:
    story.append(f"{name} begins")
    try:
        await asyncio.sleep(delay)
    except asyncio.CancelledError:
        story.append(f"{name} cancelled")
        raise
    story.append(f"{name} ends")
    return name


async def fails(story: Story, delay: float) -> None:
    await asyncio.sleep(delay)
    story.append("fails")
    raise ValueError("as asked")


@flow
async def gather(story: Story) -> Any:
    return await asyncio.gather(branch(story, "a", 0.02), branch(story, "b", 0.01), branch(story, "c", 0))


@flow
async def gather_with_a_failure(story: Story) -> Any:
    others = [asyncio.create_task(branch(story, name, delay)) for name, delay in (("a", 0.03), ("b", 0.02))]
    with contextlib.suppress(ValueError):
        await asyncio.gather(others[0], fails(story, 0.01), others[1])
    return await asyncio.gather(*others)


@flow
async def gather_of_outcomes(story: Story) -> Any:
    outcomes = await asyncio.gather(fails(story, 0.01), branch(story, "a", 0), return_exceptions=True)
    return [repr(each) for each in outcomes]


@flow
async def gather_cancelled(story: Story) -> Any:
    both = asyncio.gather(branch(story, "a", 1), branch(story, "b", 1))
    await asyncio.sleep(0)
    both.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await both
    return both.cancelled()


@flow
async def task_group(story: Story) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(story, name, 0.01 * place)) for place, name in enumerate("cab")]
    return [each.result() for each in tasks]


@flow
async def task_group_with_a_failure(story: Story) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(branch(story, "a", 1))
            group.create_task(fails(story, 0.01))
            await branch(story, "body", 1)
    except* ValueError as group_error:
        story.append(repr(group_error.exceptions))


@flow
async def wait_for_the_first(story: Story) -> Any:
    tasks = [asyncio.create_task(branch(story, name, delay)) for name, delay in (("a", 0.05), ("b", 0.01))]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    await asyncio.wait(pending)
    return [each.result() for each in done], [each.cancelled() for each in pending]


@flow
async def wait_with_a_timeout(story: Story) -> Any:
    tasks = [asyncio.create_task(branch(story, name, delay)) for name, delay in (("a", 0.05), ("b", 0))]
    done, pending = await asyncio.wait(tasks, timeout=0.01)
    counts = len(done), len(pending)
    await asyncio.wait(pending)
    return counts


@flow
async def wait_for_in_time(story: Story) -> Any:
    return await asyncio.wait_for(branch(story, "a", 0.01), 1)


@flow
async def wait_for_too_long(story: Story) -> Any:
    try:
        await asyncio.wait_for(branch(story, "a", 1), 0.01)
    except TimeoutError:
        story.append("timeout")


@flow
async def wait_for_no_time(story: Story) -> Any:
    try:
        await asyncio.wait_for(branch(story, "a", 1), 0)
    except TimeoutError:
        story.append("timeout")


@flow
async def timeout(story: Story) -> Any:
    limit = asyncio.timeout(0.01)
    try:
        async with limit:
            await branch(story, "a", 1)
    except TimeoutError:
        story.append("timeout")
    return limit.expired()


@flow
async def timeout_already_past(story: Story) -> Any:
    try:
        async with asyncio.timeout(-1):
            await branch(story, "a", 1)
    except TimeoutError:
        story.append("timeout")


@flow
async def timeout_moved(story: Story) -> Any:
    async with asyncio.timeout(0.01) as limit:
        limit.reschedule(asyncio.get_running_loop().time() + 1)
        await branch(story, "a", 0.03)
    return limit.expired()


@flow
async def nested_timeouts(story: Story) -> Any:
    try:
        async with asyncio.timeout(0.03):
            try:
                async with asyncio.timeout(0.01):
                    await branch(story, "inner", 1)
            except TimeoutError:
                story.append("inner timeout")
            await branch(story, "outer", 1)
    except TimeoutError:
        story.append("outer timeout")


@flow
async def shield(story: Story) -> Any:
    inner = asyncio.create_task(branch(story, "inner", 0.02))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(inner), 0.01)
    story.append("outer gave up")
    return await inner


@flow
async def sleep(story: Story) -> Any:
    story.append(await asyncio.sleep(0, "zero"))
    return await asyncio.sleep(0.01, "some")


@flow
async def lock(story: Story) -> Any:
    mutex = asyncio.Lock()

    async def enter(name: str) -> None:
        async with mutex:
            story.append(f"{name} in")
            await asyncio.sleep(0)
            story.append(f"{name} out")

    await asyncio.gather(*(enter(name) for name in "abc"))
    return mutex.locked()


@flow
async def lock_with_a_cancelled_waiter(story: Story) -> Any:
    mutex = asyncio.Lock()
    await mutex.acquire()
    waiters = [asyncio.create_task(mutex.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[0].cancel()
    mutex.release()
    await asyncio.wait(waiters[:2])
    story.append([each.done() for each in waiters])
    mutex.release()
    return await waiters[2]


@flow
async def event(story: Story) -> Any:
    happened = asyncio.Event()

    async def waits(name: str) -> None:
        await happened.wait()
        story.append(name)

    tasks = [asyncio.create_task(waits(name)) for name in "abc"]
    await asyncio.sleep(0)
    happened.set()
    story.append("set")
    await asyncio.gather(*tasks)


@flow
async def semaphore(story: Story) -> Any:
    slots = asyncio.BoundedSemaphore(2)

    async def use(name: str, delay: float) -> None:
        async with slots:
            await branch(story, name, delay)

    await asyncio.gather(use("a", 0.01), use("b", 0.04), use("c", 0.01), use("d", 0.05), use("e", 0))


@flow
async def condition(story: Story) -> Any:
    changed = asyncio.Condition()
    level = 0

    async def waits(name: str, enough: int) -> None:
        async with changed:
            await changed.wait_for(lambda: level >= enough)
            story.append(name)

    tasks = [asyncio.create_task(waits(name, enough)) for name, enough in (("a", 2), ("b", 1), ("c", 2))]
    for _ in range(2):
        await asyncio.sleep(0)
        async with changed:
            level += 1
            changed.notify_all()
    await asyncio.gather(*tasks)


@flow
async def barrier(story: Story) -> Any:
    meeting = asyncio.Barrier(3)

    async def comes(name: str) -> None:
        place = await meeting.wait()
        story.append((name, place))

    await asyncio.gather(*(comes(name) for name in "abc"))


@flow
async def queue(story: Story) -> Any:
    line: asyncio.Queue[int] = asyncio.Queue(maxsize=2)

    async def take(name: str) -> None:
        while True:
            item = await line.get()
            story.append((name, item))
            await asyncio.sleep(0)
            line.task_done()

    takers = [asyncio.create_task(take(name)) for name in "ab"]
    for item in range(8):
        await line.put(item)
    await line.join()
    for each in takers:
        each.cancel()
    await asyncio.gather(*takers, return_exceptions=True)


@flow
async def priority_queue(story: Story) -> Any:
    line: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
    for item in (3, 1, 2):
        line.put_nowait(item)
    return [await line.get() for _ in range(3)]


@flow
async def as_completed_over_tasks(story: Story) -> Any:
    delays = {"a": 0.03, "b": 0.01, "c": 0.02}
    tasks = [asyncio.create_task(branch(story, name, delay)) for name, delay in delays.items()]
    return [await each for each in asyncio.as_completed(tasks)]


@flow
async def as_completed_with_a_timeout(story: Story) -> Any:
    tasks = [asyncio.create_task(branch(story, name, delay)) for name, delay in (("a", 0.06), ("b", 0))]
    try:
        for each in asyncio.as_completed(tasks, timeout=0.02):
            story.append(await each)
    except TimeoutError:
        story.append("timeout")
    return await tasks[0]


if sys.version_info >= (3, 13):

    @flow
    async def as_completed_as_async_iterator(story: Story) -> Any:
        tasks = [asyncio.create_task(branch(story, name, delay)) for name, delay in (("a", 0.02), ("b", 0))]
        return [await each async for each in asyncio.as_completed(tasks)]


async def numbers(story: Story, stop: int) -> AsyncIterator[int]:
    try:
        for number in range(stop):
            await asyncio.sleep(0)
            yield number
    finally:
        await asyncio.sleep(0)
        story.append("generator closed")


@flow
async def async_generator(story: Story) -> Any:
    return [number async for number in numbers(story, 4)]


@flow
async def async_generator_closed_early(story: Story) -> Any:
    async with contextlib.aclosing(numbers(story, 4)) as some:  # type: ignore[type-var]  # a generator, by its yield
        async for number in some:
            if number == 1:
                break
    story.append("after")


@flow
async def async_context_manager(story: Story) -> Any:
    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        try:
            yield "inside"
        finally:
            await asyncio.sleep(0.01)
            story.append("left")

    async with around() as word:
        story.append(word)


@flow
async def context_variables(story: Story) -> Any:
    color = contextvars.ContextVar("color", default="none")

    async def paint(name: str) -> None:
        story.append(color.get())
        color.set(name)
        await asyncio.sleep(0)
        story.append(color.get())

    color.set("root")
    await asyncio.gather(paint("red"), paint("blue"))
    given = contextvars.copy_context()
    await asyncio.create_task(paint("green"), context=given)
    return color.get(), given[color]


@flow
async def cancelling(story: Story) -> Any:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError as error:
            story.append(error.args)
            await asyncio.sleep(0.01)
        return "went on"

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    task.cancel("please")
    result = await task
    return result, task.cancelling(), task.uncancel()


@flow
async def callbacks_of_futures(story: Story) -> Any:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    for name in "abc":
        future.add_done_callback(functools.partial(lambda name, done: story.append((name, done.result())), name))
    loop.call_soon(story.append, "soon").cancel()
    loop.call_soon(future.set_result, 1)
    return await future


@flow
async def many_tasks_interleaved(story: Story) -> Any:
    async def walk(name: int) -> None:
        for step in range(3):
            story.append((name, step))
            await asyncio.sleep(0)

    await asyncio.gather(*(walk(name) for name in range(20)))


if sys.version_info >= (3, 12):

    @flow
    async def eager_task(story: Story) -> Any:
        loop = asyncio.get_running_loop()
        task = asyncio.Task(branch(story, "eager", 0.01), loop=loop, eager_start=True)
        story.append("made")
        return await task


if sys.version_info >= (3, 14):

    @flow
    async def eager_task_of_the_loop(story: Story) -> Any:
        task = asyncio.create_task(branch(story, "eager", 0.01), eager_start=True)
        story.append("made")
        return await task
