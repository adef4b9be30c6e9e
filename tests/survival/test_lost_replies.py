"""The reply to an operation or a call is lost after it took effect. It is sent again, to the same server or to another,
takes effect once, and the run ends as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from kagzi import Client, Context, Handle, Retry, StepFailed, Worker, step, workflow
from kagzi.errors import RunCancelled, RunFailed
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk.current import current_step
from tests.database import Databases
from tests.survival.load import until
from tests.survival.record import rows
from tests.survival.relay import Relay
from tests.survival.station import Station

# How often each body ran, by run and step.
ran: Counter[tuple[str, str]] = Counter()


def note() -> None:
    current = current_step.get()
    assert current is not None
    ran[current.run_id, current.step_id] += 1


@step
async def plain(word: str) -> str:
    note()
    return word


@step
async def slow(word: str) -> str:
    # Long enough for the record that it began to leave before its result.
    note()
    await asyncio.sleep(0.25)
    return word


@step(retry=Retry(max_attempts=2, initial="10ms"))
async def doomed() -> str:
    note()
    raise ValueError("never")


@step
async def endless() -> str:
    note()
    current = current_step.get()
    assert current is not None
    if ran[current.run_id, current.step_id] == 1:
        await asyncio.Event().wait()
    return "ended"


@workflow
async def echo(ctx: Context, word: str) -> str:
    return await ctx.step("plain", plain, word)


@workflow
async def everything(ctx: Context, hops: int) -> list[str]:
    """Every kind of operation but Fail and Release."""
    if hops:
        await ctx.step("hop", plain, "hop")
        ctx.continue_as_new(hops - 1)
    await ctx.set_state({"phase": "begun"})
    body, early = await asyncio.gather(ctx.step("slow", slow, "slow"), ctx.receive("early", str))
    failure = ""
    try:
        await ctx.step("doomed", doomed)
    except StepFailed as error:
        failure = error.message
    await ctx.sleep("nap", "20ms")
    late = await ctx.receive("late", str)
    child = await ctx.run_child("child", echo, "child")
    return [body, early or "", failure, late or "", child]


class Ear:
    """Set once the code has heard; of one loop, and so made anew for each test."""

    heard = asyncio.Event()


@step
async def until_heard() -> None:
    note()
    await Ear.heard.wait()


@workflow
async def listening(ctx: Context) -> str:
    """A body that ends only when the code has heard of a signal or a cancel meanwhile."""

    async def listen() -> str:
        try:
            return await ctx.receive("word", str) or ""
        finally:
            Ear.heard.set()

    word, _ = await asyncio.gather(listen(), ctx.step("until-heard", until_heard))
    return word


@workflow
async def failing(ctx: Context) -> None:
    await ctx.step("plain", plain, "word")
    raise LookupError("the workflow fails")


@workflow
async def lasting(ctx: Context) -> str:
    return await ctx.step("endless", endless)


@workflow
async def warned(ctx: Context) -> str:
    """A task that does not end when it is told to: it is left behind, and the run says so."""

    async def stubborn() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    kept = asyncio.create_task(stubborn())
    return f"{await ctx.step('plain', plain, 'word')} and {kept.get_name()}"


class Code:
    """What the code of a workflow asks for today."""

    step = "plain"


@workflow
async def changing(ctx: Context) -> str:
    await ctx.step(Code.step, plain, "word")
    return await ctx.receive("go", str) or ""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers on one database."""

    url: str
    servers: tuple[Station, Station]

    async def fetch(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        return await rows(self.url, query, *values)


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the servers of one test, and the queue of its own."""

    pair: Pair
    first: Relay
    second: Relay | None
    queue: str

    @property
    def target(self) -> str:
        return ",".join(relay.address for relay in (self.first, self.second) if relay is not None)

    @property
    def passed(self) -> list[str]:
        return self.first.passed + (self.second.passed if self.second is not None else [])

    def worker(self, **options: Any) -> Worker:
        return Worker(
            self.target, workflows=[everything, echo, failing, lasting, listening, warned], queue=self.queue, **options
        )

    async def once(self, run_id: str) -> None:
        """Every step of the run and of its descendants is on record once, and its body ran once."""
        steps = await self.pair.fetch(
            "select s.run_id::text, s.step_id, count(*), array_agg(distinct s.status) from kagzi.step_runs s "
            "join kagzi.workflow_runs r using (namespace, run_id) where r.task_queue = $1 and s.kind = 'FUNCTION' "
            "group by 1, 2",
            self.queue,
        )
        assert {(run, name): ran[run, name] for run, name, _, _ in steps} == {
            (run, name): 2 if name == "doomed" else 1 for run, name, _, _ in steps
        }
        for _, name, count, statuses in steps:
            assert (count, statuses) == ((2, ["FAILED"]) if name == "doomed" else (1, ["COMPLETED"]))

    async def runs(self) -> dict[tuple[str, str], int]:
        """How many runs there are of each type and status."""
        found = await self.pair.fetch(
            "select workflow_type, status, count(*) from kagzi.workflow_runs where task_queue = $1 group by 1, 2",
            self.queue,
        )
        return {(name, status): count for name, status, count in found}


@pytest.fixture(scope="module")
def pair(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    url = databases.create()
    directory: Path = tmp_path_factory.mktemp("pair")
    with Station(url, directory / "first") as first, Station(url, directory / "second") as second:
        yield Pair(url, (first, second))
    databases.drop(url)


@pytest.fixture(params=[1, 2], ids=["the same server", "another server"])
async def way(request: pytest.FixtureRequest, pair: Pair) -> AsyncIterator[Way]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Relay(pair.servers[0].address))
        second = None
        if request.param == 2:
            second = await stack.enter_async_context(Relay(pair.servers[1].address))
        yield Way(pair, first, second, f"lost-{secrets.token_hex(6)}")


@pytest.mark.parametrize(
    "kind",
    [
        "step_started",
        "step_completed",
        "step_failed",
        "wait",
        "suspend",
        "set_state",
        "start_child",
        "complete",
        "continue_as_new",
    ],
)
async def test_an_operation_whose_reply_is_lost_takes_effect_once(way: Way, kind: str) -> None:
    way.first.lose(kind)
    async with way.worker(), Client(way.pair.servers[0].address) as client:
        handle = await client.start(everything, 1, queue=way.queue)
        await until(lambda: "wait" in way.passed)
        await handle.signal("early", "early")
        await until(lambda: "suspend" in way.passed)
        await handle.signal("late", "late")
        assert await handle.result(timeout=60) == ["slow", "early", "never", "late", "child"]
        last = client.handle(*await _column(way, "select continued_as::text from kagzi.workflow_runs", handle))
        assert await last.state() == {"phase": "begun"}
    assert way.first.lost.is_set()
    assert way.second is None or way.second.passed, "what was not answered goes to the other server"
    await way.once(handle.run_id)
    assert await way.runs() == {("everything", "COMPLETED"): 2, ("echo", "COMPLETED"): 1}


async def test_the_end_of_a_failing_run_whose_reply_is_lost_takes_effect_once(way: Way) -> None:
    way.first.lose("fail")
    async with way.worker(), Client(way.pair.servers[0].address) as client:
        handle = await client.start(failing, queue=way.queue)
        with pytest.raises(RunFailed, match="the workflow fails"):
            await handle.result(timeout=60)
        # The worker is free again when it has heard of the end.
        assert await client.execute(echo, "next", queue=way.queue) == "next"
    assert way.first.lost.is_set()
    await way.once(handle.run_id)
    assert await way.runs() == {("failing", "FAILED"): 1, ("echo", "COMPLETED"): 1}


async def test_a_warning_whose_reply_is_lost_is_noted_once(way: Way) -> None:
    way.first.lose("warn")
    async with way.worker(), Client(way.pair.servers[0].address) as client:
        handle = await client.start(warned, queue=way.queue)
        assert await handle.result(timeout=60) == "word and Task-2"
        assert await client.execute(echo, "next", queue=way.queue) == "next"
        (warning,) = (await handle.describe()).warnings
        assert "after the workflow had ended, 'warned.<locals>.stubborn' at" in warning.message
    assert way.first.lost.is_set()
    assert way.passed.count("warn") == 2
    await way.once(handle.run_id)
    assert await way.runs() == {("warned", "COMPLETED"): 1, ("echo", "COMPLETED"): 1}


async def test_a_release_whose_reply_is_lost_takes_effect_once(way: Way) -> None:
    async with Client(way.pair.servers[0].address) as client:
        async with way.worker(drain_timeout=0):
            handle = await client.start(lasting, queue=way.queue)
            await until(lambda: ran[handle.run_id, "endless"] == 1)
            way.first.lose("release")
        assert way.first.lost.is_set()
        assert await _column(way, "select status from kagzi.workflow_runs", handle) == ["PENDING"]
        async with way.worker():
            assert await handle.result(timeout=60) == "ended"
    assert ran[handle.run_id, "endless"] == 2, "a drained attempt is followed by another"
    assert await _column(way, "select crashes from kagzi.workflow_runs", handle) == [0]


@pytest.mark.parametrize("notice", ["welcome", "deliveries", "wakes", "cancels"])
async def test_a_notice_that_is_lost_is_given_again(way: Way, notice: str) -> None:
    Ear.heard = asyncio.Event()
    way.first.lose(notice)
    async with way.worker(), Client(way.pair.servers[0].address) as client:
        handle = await _listens(way, client)
        if notice == "cancels":
            await _cancelled(handle)
            for _ in range(10):
                if way.first.lost.is_set():
                    break
                # The answer to a heartbeat brought the word sooner, and there was no notice to lose.
                handle = await _listens(way, client)
                await _cancelled(handle)
        else:
            if notice == "wakes":
                # What is there before the server knows of the wait comes with its answer.
                await until(lambda: "wait" in way.first.answered)
            await handle.signal("word", "heard")
            assert await handle.result(timeout=60) == "heard"
    assert way.first.lost.is_set()
    assert ran[handle.run_id, "until-heard"] == 1
    assert await _column(way, "select crashes from kagzi.workflow_runs", handle) == [0]


async def _listens(way: Way, client: Client) -> Handle[str]:
    handle = await client.start(listening, queue=way.queue)
    await until(lambda: ran[handle.run_id, "until-heard"] == 1)
    return handle


async def _cancelled(handle: Handle[Any]) -> None:
    await handle.cancel("enough")
    with pytest.raises(RunCancelled):
        await handle.result(timeout=60)


async def _column(way: Way, query: str, handle: Handle[Any]) -> list[Any]:
    return [row[0] for row in await way.pair.fetch(f"{query} where run_id = $1", handle.run_id)]


Call = Callable[[Client, Way], Awaitable[None]]


async def _start(client: Client, way: Way) -> None:
    handles = await asyncio.gather(*(client.start(echo, str(number), queue=way.queue) for number in range(3)))
    assert not any(handle.already_exists for handle in handles)
    assert await way.runs() == {("echo", "PENDING"): 3}


async def _start_alone(_: Client, way: Way) -> None:
    """The call that other languages have; whoever makes it again says the same."""
    start = StartWorkflowRequest(workflow_type="echo", task_queue=way.queue, run_id=str(uuid.uuid4()))
    last = way.second or way.first
    async with (
        grpc.aio.insecure_channel(way.first.address) as first,
        grpc.aio.insecure_channel(last.address) as second,
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await WorkflowServiceStub(first).StartWorkflow(start)
        again = await WorkflowServiceStub(second).StartWorkflow(start)
    assert (again.run_id, again.already_exists) == (start.run_id, False)
    assert await way.runs() == {("echo", "PENDING"): 1}


async def _start_with_id(client: Client, way: Way) -> None:
    handle = await client.start(echo, "one", queue=way.queue, id=way.queue, on_conflict="reject")
    assert not handle.already_exists
    assert await way.runs() == {("echo", "PENDING"): 1}


async def _replace(client: Client, way: Way) -> None:
    async with Client(way.pair.servers[1].address) as direct:
        await direct.start(echo, "old", queue=way.queue, id=way.queue)
    await client.start(echo, "new", queue=way.queue, id=way.queue, on_conflict="replace")
    assert await way.runs() == {("echo", "CANCELLED"): 1, ("echo", "PENDING"): 1}


async def _signal(client: Client, way: Way) -> None:
    handle = await client.start(everything, 0, queue=way.queue)
    await handle.signal("early", "once")
    count = "select count(*) from kagzi.signals"
    assert await _column(way, count, handle) == [1]


async def _cancel(client: Client, way: Way) -> None:
    handle = await client.start(echo, "one", queue=way.queue)
    assert await handle.cancel("enough") == "CANCELLED"
    assert await way.runs() == {("echo", "CANCELLED"): 1}


async def _cancel_running(client: Client, way: Way) -> None:
    async with Worker(way.pair.servers[0].address, workflows=[lasting], queue=way.queue):
        handle = await client.start(lasting, queue=way.queue)
        await until(lambda: ran[handle.run_id, "endless"] == 1)
        assert await handle.cancel("enough") in ("RUNNING", "CANCELLED")
        with pytest.raises(RunCancelled):
            await handle.result(timeout=60)
    cancels = "select count(*) from kagzi.step_runs where run_id = $1 and kind = 'CANCEL'"
    assert await way.pair.fetch(cancels, handle.run_id) == [(1,)]
    assert ran[handle.run_id, "endless"] == 1


async def _terminate(client: Client, way: Way) -> None:
    handle = await client.start(echo, "one", queue=way.queue)
    assert await handle.terminate("enough") == "CANCELLED"
    assert await way.runs() == {("echo", "CANCELLED"): 1}


async def _retry(client: Client, way: Way) -> None:
    handle = await client.start(echo, "one", queue=way.queue)
    await handle.cancel()
    again = await handle.retry()
    assert await way.runs() == {("echo", "CANCELLED"): 1, ("echo", "PENDING"): 1}
    assert await _column(way, "select retried_from::text from kagzi.workflow_runs", again) == [handle.run_id]


async def _fork(client: Client, way: Way) -> None:
    async with Worker(way.pair.servers[0].address, workflows=[everything, echo], queue=way.queue):
        handle = await client.start(echo, "one", queue=way.queue)
        await handle.result(timeout=60)
        other = await handle.fork("plain", input="two")
        assert await other.result(timeout=60) == "two"
    assert await way.runs() == {("echo", "COMPLETED"): 2}


async def _resume(client: Client, way: Way) -> None:
    direct = way.pair.servers[0].address
    async with Worker(direct, workflows=[changing], queue=way.queue, residents=0):
        handle = await client.start(changing, queue=way.queue)
        await _comes_to(way, handle, "not parked")
    Code.step = "another"
    try:
        async with Worker(direct, workflows=[changing], queue=way.queue):
            await handle.signal("go", "went on")
            await _comes_to(way, handle, "parked")
    finally:
        Code.step = "plain"
    async with Worker(direct, workflows=[changing], queue=way.queue):
        await handle.resume()
        assert await handle.result(timeout=60) == "went on"
    assert ran[handle.run_id, "plain"] == 1
    assert await way.runs() == {("changing", "COMPLETED"): 1}


async def _comes_to(way: Way, handle: Handle[Any], how: str) -> None:
    query = (
        "select case when parked_hash is null then 'not parked' else 'parked' end from kagzi.workflow_runs "
        "where run_id = $1 and status = 'SLEEPING'"
    )
    async with asyncio.timeout(60):
        while await way.pair.fetch(query, handle.run_id) != [(how,)]:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("method", "call"),
    [
        pytest.param("StartWorkflows", _start, id="start"),
        pytest.param("StartWorkflow", _start_alone, id="start alone"),
        pytest.param("StartWorkflows", _start_with_id, id="start with an id that may not be taken"),
        pytest.param("StartWorkflows", _replace, id="start in place of another"),
        pytest.param("SignalWorkflow", _signal, id="signal"),
        pytest.param("CancelWorkflow", _cancel, id="cancel"),
        pytest.param("CancelWorkflow", _cancel_running, id="cancel of a running one"),
        pytest.param("TerminateWorkflow", _terminate, id="terminate"),
        pytest.param("RetryWorkflow", _retry, id="retry"),
        pytest.param("ForkWorkflow", _fork, id="fork"),
        pytest.param("ResumeWorkflow", _resume, id="resume"),
    ],
)
async def test_a_call_whose_reply_is_lost_is_made_again_and_takes_effect_once(
    way: Way, method: str, call: Call
) -> None:
    way.first.lose(method)
    async with Client(way.target) as client:
        await call(client, way)
    assert way.first.lost.is_set()
    asked_again = way.second if way.second is not None else way.first
    assert method in asked_again.passed
    assert way.passed.count(method) == 2
