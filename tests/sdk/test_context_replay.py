"""Live equals replay. Small workflows of random structure are run, interrupted at random points and taken up again, and
at last replayed whole from their history: the code sees the same results in the same order each time.
"""

import asyncio
import contextlib
import functools
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kagzi import Context, Handle, Retry, StepFailed, Worker, idempotency_key, step, workflow
from kagzi.errors import PreconditionFailed
from kagzi.sdk.host import IN_PLACE_US
from tests.sdk.rig import LONG, Rig, rigged

Node = list[Any]

# What each incarnation of a run saw, by run.
traces: defaultdict[str, list[list[Any]]] = defaultdict(list)
# How often each body ran, by run and step.
ran: Counter[str] = Counter()
# Told whenever a body begins, by run.
watched: dict[str, "Interruptions"] = {}


class Interruptions:
    """Does something each time after so many bodies."""

    def __init__(self, counts: list[int], act: Callable[[], None]) -> None:
        self._counts = list(counts)
        self._act = act
        self._loop = asyncio.get_running_loop()

    def body_begins(self) -> None:
        """Called by a body, in any thread."""
        if self._counts:
            self._counts[0] -= 1
            if not self._counts[0]:
                self._counts.pop(0)
                self._loop.call_soon_threadsafe(self._act)


LEAVES = st.one_of(
    st.tuples(st.just("step"), st.integers(0, 4)),
    st.tuples(st.just("thread"), st.integers(0, 4)),
    st.tuples(st.just("flaky"), st.integers(0, 2)),
    st.tuples(st.just("fail"), st.integers(0, 4)),
    st.tuples(st.just("sleep"), st.integers(0, 6)),
    st.tuples(st.just("asleep"), st.integers(0, 6)),
    st.tuples(st.just("receive"), st.integers(0, 4)),
    st.tuples(st.just("now"), st.just(0)),
    st.tuples(st.just("random"), st.just(0)),
)


def _branches(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(children, min_size=1, max_size=4)
    return st.one_of(
        *(
            st.tuples(st.just(kind), several)
            for kind in ("in turn", "gather", "settle", "group", "select", "lock", "race", "shield")
        ),
        st.tuples(st.just("limit"), st.integers(0, 8), children),
        st.tuples(st.just("wait_for"), st.integers(1, 8), children),
    )


PROGRAMS = st.recursive(LEAVES, _branches, max_leaves=8).map(lambda node: ["in turn", [node, ("step", 0)]])


async def linger(number: int) -> int:
    _begin()
    await asyncio.sleep(number / 1_000)
    return number


def compute(number: int) -> int:
    _begin()
    return number * 10


async def waver(number: int) -> int:
    if _begin() <= number:
        raise ValueError(f"try {number}")
    return number


async def give_out(number: int) -> int:
    _begin()
    await asyncio.sleep(number / 1_000)
    raise KeyError(number)


def _begin() -> int:
    key = idempotency_key()
    ran[key] += 1
    watched[key.partition("/")[0]].body_begins()
    return ran[key]


@workflow(step_retry=Retry(max_attempts=3, initial="1ms"))
async def program(ctx: Context, node: Node) -> list[Any]:
    trace: list[Any] = []
    traces[ctx.run_id].append(trace)
    try:
        await _play(ctx, node, trace, "0")
    except (StepFailed, TimeoutError, ExceptionGroup) as error:
        trace.append(_shown(error))
    return trace


def _shown(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return f"{type(error).__name__}({', '.join(map(_shown, error.exceptions))})"
    return f"{type(error).__name__}({getattr(error, 'step', '')})"


async def _play(ctx: Context, node: Node, trace: list[Any], path: str) -> Any:
    try:
        result = await _do(ctx, node, trace, path)
    except (Exception, asyncio.CancelledError) as error:
        trace.append([path, _shown(error)])
        raise
    trace.append([path, result])
    return result


async def _do(ctx: Context, node: Node, trace: list[Any], path: str) -> Any:
    kind, given = node[0], node[1]
    match kind:
        case "step":
            return await ctx.step(f"s{given}", linger, given)
        case "thread":
            return await ctx.step("thread", compute, given)
        case "flaky":
            return await ctx.step("flaky", waver, given)
        case "fail":
            return await ctx.step(f"s{given}", step(give_out).with_options(retry=Retry(max_attempts=1)), given)
        case "sleep":
            return await ctx.sleep("sleep", given / 1_000)
        case "asleep":
            return await asyncio.sleep(given / 1_000)
        case "receive":
            return await ctx.receive("word", str, timeout=given / 1_000)
        case "now":
            return ctx.now().isoformat()
        case "random":
            return [str(ctx.uuid()), ctx.random().random()]
    if kind in ("limit", "wait_for"):
        return await _limited(kind, given / 1_000, _play(ctx, node[2], trace, f"{path}.0"))
    plays = [functools.partial(_play, ctx, child, trace, f"{path}.{at}") for at, child in enumerate(given)]
    return await _several(ctx, kind, plays)


async def _limited(kind: str, seconds: float, play: Coroutine[Any, Any, Any]) -> Any:
    if kind == "wait_for":
        return await asyncio.wait_for(play, seconds)
    try:
        async with asyncio.timeout(seconds):
            return await play
    finally:
        play.close()


async def _several(ctx: Context, kind: str, plays: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> Any:
    match kind:
        case "in turn":
            return [await play() for play in plays]
        case "gather":
            return await asyncio.gather(*(play() for play in plays))
        case "settle":
            results = await asyncio.gather(*(play() for play in plays), return_exceptions=True)
            return [_shown(result) if isinstance(result, BaseException) else result for result in results]
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(play()) for play in plays]
            return [task.result() for task in tasks]
        case "select":
            return list(await ctx.select(*(play() for play in plays)))
        case "shield":
            return await asyncio.shield(plays[0]())
        case "race":
            tasks = [asyncio.create_task(play()) for play in plays]
            return [await task for task in asyncio.as_completed(tasks)]
        case "lock":
            lock = asyncio.Lock()

            async def alone(play: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
                async with lock:
                    return await play()

            return await asyncio.gather(*(alone(play) for play in plays))
    raise AssertionError(kind)


@pytest.fixture
async def rig(database_url: str) -> AsyncIterator[Rig]:
    async with rigged(database_url) as rig:
        yield rig


@pytest.fixture
async def worker(rig: Rig) -> AsyncIterator[Worker]:
    async with rig.working(program) as worker:
        yield worker


def _interrupt(worker: Worker, run_id: str) -> None:
    """The worker gives a run back in the middle, as it does when it stops, and will get it again."""
    assert worker._shift is not None
    for lease in worker._shift.leases.all():
        if lease.run_id == run_id and lease.execution is not None and not lease.over:
            asyncio.get_running_loop().call_soon(lease.execution.interrupt)


async def _history(rig: Rig, handle: Handle[Any]) -> list[Any]:
    query = (
        "select step_id, attempt_id, attempt_number, is_latest, status, position, completed_seq from kagzi.step_runs "
        "where run_id = $1 order by position, attempt_number"
    )
    return [tuple(row.values()) for row in await rig.fetch(query, handle.run_id)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    node=PROGRAMS,
    interruptions=st.lists(st.integers(1, 3), max_size=3),
    in_place=st.booleans(),
    residents=st.sampled_from([0, 1_000]),
)
@example(
    node=["in turn", [("select", [("select", [("step", 0)])]), ("step", 0)]],
    interruptions=[1],
    in_place=False,
    residents=0,
)
async def test_the_code_sees_the_same_live_and_in_replay(
    rig: Rig, worker: Worker, node: Node, interruptions: list[int], in_place: bool, residents: int
) -> None:
    assert worker._shift is not None
    worker._shift.in_place_us = IN_PLACE_US if in_place else 0
    worker._shift.residents._most = residents
    run_id = str(uuid.uuid4())
    left = Interruptions(interruptions, lambda: _interrupt(worker, run_id))
    watched[run_id] = left
    handle = await rig.client.start(program, node, run_id=run_id)
    for word in ("one", "two"):
        # A short program may have ended by now.
        with contextlib.suppress(PreconditionFailed):
            await handle.signal("word", word)
    trace = await handle.result(timeout=LONG)
    history, bodies_run = await _history(rig, handle), ran.copy()
    again = await rig.replay(handle)

    assert again == trace
    assert await _history(rig, handle) == history
    assert ran == bodies_run
    *earlier, replayed = traces.pop(run_id)
    for seen in earlier:
        assert replayed[: len(seen)] == seen
