"""The reply to a client's request is lost: it is sent again, to the same server or to another, and takes effect once. A
proxy lets the server do its work, which is durable when it answers, and breaks the call instead of passing it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import grpc
import pytest

from kagzi.protocol.v1.common_pb2 import FUNCTION, STEP_UNKNOWN
from kagzi.protocol.v1.worker_pb2 import Delivery, StepFailed, StepStarted, Suspend
from kagzi.sdk.client import Client
from kagzi.sdk.errors import RunFailed
from kagzi.sdk.handle import Handle
from tests.sdk.serving import Hand, completed, echo, failed, new_id, serving, step, until, working

SERVICE = "/kagzi.v1.WorkflowService/"


class Proxy(grpc.GenericRpcHandler):
    """Passes bytes on, but not the first reply to the method `drops`."""

    def __init__(self, upstream: Any) -> None:
        self._upstream = upstream
        self.drops = ""
        self.dropped = 0

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = handler_call_details.method

        async def unary(request: bytes, context: Any) -> bytes:
            reply: bytes = await self._upstream.unary_unary(method)(request)
            await self._lose(method, context)
            return reply

        async def stream(requests: Any, context: Any) -> AsyncIterator[bytes]:
            async for reply in self._upstream.stream_stream(method)(requests):
                await self._lose(method, context)
                yield reply

        if method.endswith("/WatchWorkflows"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _lose(self, method: str, context: Any) -> None:
        if method == SERVICE + self.drops:
            self.drops = ""
            self.dropped += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply is lost")


def parks(_: Delivery) -> list[tuple[str, Any]]:
    """Code that does not fit, whatever happens."""
    document = '{"reason": "nondeterminism", "message": "", "recorded": [], "requested": []}'
    return [("suspend", Suspend(parked_json=document, parked_hash="same", operation_id=new_id()))]


class Scene:
    """A client behind a proxy, a worker, and the database to look into."""

    def __init__(self, client: Client, proxy: Proxy, hand: Hand, connection: Any) -> None:
        self.client = client
        self.proxy = proxy
        self.hand = hand
        self._connection = connection

    async def count(self, table: str, condition: str = "true") -> int:
        asked = f"select count(*) from kagzi.{table} where {condition}"  # noqa: S608 - the tests' own words
        counted: int = await self._connection.fetchval(asked)
        return counted

    async def failed(self) -> Handle[Any]:
        handle = await self.client.start("bad")
        with pytest.raises(RunFailed):
            await handle.result()
        return handle

    def deliveries(self, handle: Handle[Any]) -> int:
        return sum(delivery.run_id == handle.run_id for delivery in self.hand.delivered)

    async def parked(self, handle: Handle[Any], deliveries: int) -> None:
        """The run was handed out so often, and stands still."""
        await until(lambda: self.deliveries(handle) >= deliveries)
        while (await handle.describe()).status != "SLEEPING":
            pass

    async def doubtful(self) -> Handle[Any]:
        """A run that is suspended over an effect whose outcome is unknown."""
        handle = await self.client.start("held")
        name: dict[str, Any] = {
            "step_id": "pay",
            "attempt_id": new_id(),
            "attempt_number": 1,
            "kind": FUNCTION,
            "position": 1,
        }
        await self.hand.end(
            handle.run_id,
            ("step_started", StepStarted(**name, effect=True)),
            ("step_failed", StepFailed(**name, outcome=STEP_UNKNOWN)),
            ("suspend", Suspend(step_ids=["pay"], operation_id=new_id())),
        )
        while (await handle.describe()).status != "SLEEPING":
            pass
        return handle


@pytest.fixture(params=["the same server", "another server"])
async def scene(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Scene]:
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(database_url))
        hand = await stack.enter_async_context(
            working(
                first.address, "held", echo=echo, bad=lambda _: [step("a", 1, 1), failed("no", step="b")], parks=parks
            )
        )
        upstream = await stack.enter_async_context(grpc.aio.insecure_channel(first.address))
        proxy = Proxy(upstream)
        server = grpc.aio.server(handlers=[proxy])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        stack.push_async_callback(server.stop, 0)
        if request.param == "another server":
            second = await stack.enter_async_context(serving(database_url))
            address += f",{second.address}"
        client = await stack.enter_async_context(Client(address))
        connection = await asyncpg.connect(database_url)
        stack.push_async_callback(connection.close)
        yield Scene(client, proxy, hand, connection)


async def lost(scene: Scene, method: str, ask: Callable[[], Awaitable[Any]]) -> Any:
    """What the client gets although the first reply was lost."""
    scene.proxy.drops = method
    result = await ask()
    assert scene.proxy.dropped == 1
    return result


async def test_a_run_is_started_once(scene: Scene) -> None:
    handle = await lost(scene, "StartWorkflows", lambda: scene.client.start("echo", 1, id="order-1"))
    assert not handle.already_exists
    assert await handle.result() == 1
    assert await scene.count("workflow_runs") == 1


async def test_a_signal_is_sent_once(scene: Scene) -> None:
    handle = await scene.client.start("nobody serves this")
    await lost(scene, "SignalWorkflow", lambda: handle.signal("go", 1))
    assert await scene.count("signals") == 1


async def test_a_run_is_cancelled_once(scene: Scene) -> None:
    handle = await scene.client.start("nobody serves this")
    assert await lost(scene, "CancelWorkflow", handle.cancel) == "CANCELLED"


async def test_a_run_is_terminated_once(scene: Scene) -> None:
    handle = await scene.client.start("held")
    assert await lost(scene, "TerminateWorkflow", lambda: handle.terminate("why")) == "CANCELLED"
    error = (await handle.describe()).error
    assert error is not None
    assert error.message == "why"


async def test_a_run_is_retried_once(scene: Scene) -> None:
    handle = await scene.failed()
    again = await lost(scene, "RetryWorkflow", handle.retry)
    assert await scene.count("workflow_runs", f"retried_from = '{handle.run_id}'") == 1
    assert (await again.describe()).retried_from == handle.run_id


async def test_a_run_is_forked_once(scene: Scene) -> None:
    handle = await scene.failed()
    await lost(scene, "ForkWorkflow", lambda: handle.fork("a"))
    assert await scene.count("workflow_runs", f"retried_from = '{handle.run_id}'") == 1


async def test_a_step_is_resolved_once(scene: Scene) -> None:
    handle = await scene.doubtful()
    await lost(scene, "ResolveStep", lambda: handle.resolve("pay", "applied", "by hand"))
    await until(lambda: handle.run_id in scene.hand.held)
    [fact] = scene.hand.held[handle.run_id].facts
    assert fact.step_resolved.step.output.data == b'"by hand"'


async def test_a_run_is_resumed_once(scene: Scene) -> None:
    """It is parked again before the client asks again, and stays so."""
    handle = await scene.client.start("parks")
    await scene.parked(handle, deliveries=1)
    await lost(scene, "ResumeWorkflow", handle.resume)
    await scene.parked(handle, deliveries=2)
    assert await scene.client.execute("echo", 1) == 1
    assert scene.deliveries(handle) == 2
    await handle.resume()
    await scene.parked(handle, deliveries=3)


async def test_an_end_that_was_lost_with_its_stream_is_told_by_the_next(scene: Scene) -> None:
    handle = await scene.client.start("held")
    scene.proxy.drops = "WatchWorkflows"
    await scene.hand.end(handle.run_id, completed("told"))
    assert await handle.result() == "told"
    assert scene.proxy.dropped == 1


async def test_what_is_only_looked_at_is_looked_at_again(scene: Scene) -> None:
    handle = await scene.client.start("nobody serves this")
    run = await lost(scene, "GetWorkflow", handle.describe)
    assert run.run_id == handle.run_id
