"""The client without `await`: the same calls from threads, with the same results and errors."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kagzi.sdk.client import Client
from kagzi.sdk.context import Context
from kagzi.sdk.current import CurrentStep, current_step
from kagzi.sdk.definition import workflow
from kagzi.sdk.errors import ConfigError, NotFound, RunCancelled, RunFailed, Unavailable
from kagzi.sdk.handle import Handle
from kagzi.sdk.sync import SyncClient, SyncHandle
from kagzi.server.app import Server
from tests.sdk.serving import Hand, completed, echo, failed, new_id, serving, step, until, waits_for, working

# A program that waits for a run until somebody interrupts it.
PATIENT = """
import signal, sys
from kagzi.sdk.sync import SyncClient
# Tests that a shell started in the background pass on that the signal is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with SyncClient(sys.argv[1]) as client:
    handle = client.start("held", run_id=sys.argv[2])
    print("waiting", flush=True)
    handle.result()
"""


@dataclass(frozen=True)
class Receipt:
    number: int


@workflow
async def buy(ctx: Context, cents: int) -> Receipt:
    return Receipt(cents)


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as running:
        yield running


@pytest.fixture
async def hand(server: Server) -> AsyncIterator[Hand]:
    plays = {
        "echo": echo,
        "buy": lambda _: [completed({"number": 7})],
        "bad": lambda _: [step("first", 1, 1), failed("no", step="second")],
        "waits": lambda run: [completed("woken")] if run.facts else waits_for("go"),
    }
    async with working(server.address, "held", **plays) as worker:
        yield worker


async def blocking(server: Server, use: Callable[[SyncClient], Any]) -> Any:
    """Runs `use` in a thread of its own, as a web server would."""

    def run() -> Any:
        with SyncClient(server.address) as client:
            return use(client)

    return await asyncio.to_thread(run)


async def test_runs_are_started_and_give_their_results(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> None:
        assert client.execute("echo", {"a": 1}) == {"a": 1}
        assert client.execute(buy, 3) == Receipt(7)
        handle = client.start(buy, 3, id="order-1", labels={"a": "b"})
        assert handle.result(timeout="10s") == Receipt(7)
        assert client.handle(handle.run_id, buy).result() == Receipt(7)
        assert client.find("order-1").run_id == handle.run_id
        assert handle.describe().labels == {"a": "b"}
        assert handle.steps() == []
        assert handle.state() is None

    await blocking(server, use)


async def test_errors_are_the_same(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> None:
        with pytest.raises(RunFailed, match="no"):
            client.execute("bad")
        with pytest.raises(NotFound):
            client.handle(new_id()).describe()
        with pytest.raises(ConfigError):
            client.handle("no run id")
        held = client.start("held")
        with pytest.raises(TimeoutError, match="goes on"):
            held.result(timeout=0.05)
        assert held.terminate("why") == "CANCELLED"
        with pytest.raises(RunCancelled, match="why"):
            held.result()

    await blocking(server, use)


async def test_runs_are_signalled_retried_and_forked(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> list[str]:
        waiting = client.start("waits")
        waiting.signal("go", 1)
        assert waiting.result() == "woken"
        bad = client.start("bad")
        with pytest.raises(RunFailed):
            bad.result()
        again, other = bad.retry(), bad.fork("first", input=2)
        for handle in (again, other):
            assert isinstance(handle, SyncHandle)
            assert handle.describe().retried_from == bad.run_id
        return [again.run_id, other.run_id]

    assert len(set(await blocking(server, use))) == 2


async def test_runs_are_listed(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> None:
        for index in range(3):
            client.execute("echo", index)
        client.start("nobody serves this")
        assert [run.type for run in client.runs()] == ["nobody serves this", "echo", "echo", "echo"]
        assert [run.type for run in client.runs(status="COMPLETED", limit=2)] == ["echo", "echo"]

    await blocking(server, use)


async def test_any_number_of_threads_share_one_client(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> list[int]:
        results: list[int] = []
        threads = [threading.Thread(target=lambda i=i: results.append(client.execute("echo", i))) for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(results)

    assert await blocking(server, use) == list(range(20))


async def test_the_step_around_a_call_is_known_there_too(server: Server, hand: Hand) -> None:
    def use(client: SyncClient) -> None:
        parent = client.start("held").run_id
        current_step.set(CurrentStep("default", parent, 0, "ship", new_id(), "key"))
        assert client.start("echo", 1).describe().parent_run_id == parent

    await blocking(server, use)


async def test_a_closed_client_ends_its_thread(server: Server) -> None:
    def use(client: SyncClient) -> None:
        client.start("held")
        client.close()
        with pytest.raises(Unavailable, match="closed"):
            client.start("held")

    await blocking(server, use)
    await until(lambda: not any(thread.name == "kagzi-client" for thread in threading.enumerate()))


async def test_a_client_that_was_used_before_a_fork_says_so(server: Server) -> None:
    def use(client: SyncClient) -> None:
        client.start("held")
        client._thread._process = os.getppid()
        with pytest.raises(ConfigError, match="fork"):
            client.start("held")
        client._thread._process = os.getpid()

    await blocking(server, use)


async def test_ctrl_c_ends_the_waiting_and_not_the_run(server: Server, hand: Hand) -> None:
    run_id = new_id()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PATIENT, server.address, run_id, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert program.stdout is not None
    assert await asyncio.wait_for(program.stdout.readline(), 30) == b"waiting\n"
    await until(lambda: run_id in server.watchers._runs["default"])
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    _, said = await asyncio.wait_for(program.communicate(), 30)
    assert b"KeyboardInterrupt" in said
    assert time.monotonic() - began < 25
    await hand.end(run_id, completed("on"))
    async with Client(server.address) as client:
        assert await client.handle(run_id).result() == "on"


@pytest.mark.parametrize(("twin", "original"), [(SyncClient, Client), (SyncHandle, Handle)])
def test_whatever_the_async_side_can_do_can_be_done_here(twin: type, original: type) -> None:
    def public(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}

    assert public(original) <= public(twin) | {"run_id", "already_exists"}
