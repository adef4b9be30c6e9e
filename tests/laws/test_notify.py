"""Law 6, NOTIFY is an optimisation: with no listener ever connected runs are picked up within a second all the same, on
another server than the one that stored them. What is sent is one letter and a short hash, never a user's text.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import SIGNAL
from kagzi.protocol.v1.workflow_pb2 import SignalWorkflowRequest
from kagzi.store.notices import CHANNEL
from tests.laws.operations import new_id
from tests.laws.world import SETTINGS
from tests.server.wire import Place, Worker, end, serving, step

NOBODY_LISTENS = "postgresql://nobody@127.0.0.1:1/nothing"
# The law says one second and the time a claim takes; three times that allows for a machine that does other work.
BOUND_SECS = 3 * 1.2


@asynccontextmanager
async def _two_deaf_servers(url: str) -> AsyncIterator[tuple[Place, Place]]:
    async with serving(url, db_listen_url=NOBODY_LISTENS) as one, serving(url, db_listen_url=NOBODY_LISTENS) as other:
        assert not one.server.notifier.connected.is_set()
        assert not other.server.notifier.connected.is_set()
        yield one, other


async def test_a_run_stored_by_another_server_is_picked_up_without_a_notice(database_url: str) -> None:
    async with _two_deaf_servers(database_url) as (one, other):
        worker = Worker(other)
        await worker.hello(credit=10)
        for count in (1, 2, 3):
            await other.idle()
            began = time.monotonic()
            await one.start()
            await worker.take(count)
            assert time.monotonic() - began < BOUND_SECS
        await worker.close()


async def test_a_signal_through_another_server_wakes_a_suspended_run_without_a_notice(database_url: str) -> None:
    async with _two_deaf_servers(database_url) as (one, other):
        worker = Worker(other)
        await worker.hello(credit=10)
        run_id = await other.start()
        [run] = await worker.take()
        waits = pb.StepStarted(
            step_id="r", attempt_id=new_id(), kind=SIGNAL, attempt_number=1, position=1, target="paid"
        )
        suspend = pb.Suspend(step_ids=["r"], operation_id=new_id())
        await worker.send(
            operations=[worker.operation(run, step_started=waits), worker.operation(run, suspend=suspend)]
        )
        await worker.answered(2)
        began = time.monotonic()
        sent = await one.workflows.SignalWorkflow(SignalWorkflowRequest(run_id=run_id, name="paid"))
        await worker.take(2)
        assert time.monotonic() - began < BOUND_SECS
        assert worker.deliveries[1].facts[0].signal.signal_id == sent.signal_id
        await worker.close()


async def test_with_notices_other_servers_do_not_wait_for_their_tick(database_url: str) -> None:
    """The optimisation itself: a tick of a minute is never reached."""
    settings = {"dispatcher_interval_secs": 60.0}
    async with serving(database_url, **settings) as one, serving(database_url, **settings) as other:
        await asyncio.wait_for(other.server.notifier.connected.wait(), 10)
        worker = Worker(other)
        await worker.hello(credit=10)
        await asyncio.wait_for(one.server.notifier.connected.wait(), 10)
        for count in (1, 2):
            await other.idle()
            await one.start()
            await worker.take(count)
        await worker.close()


async def test_notices_hold_no_text_of_a_user(database_url: str) -> None:
    heard: list[str] = []
    listener = await asyncpg.connect(database_url, server_settings=SETTINGS)
    await listener.add_listener(CHANNEL, lambda _connection, _pid, _channel, payload: heard.append(str(payload)))
    async with serving(database_url) as place:
        await asyncio.wait_for(place.server.notifier.connected.wait(), 10)
        worker = Worker(place)
        await worker.hello(credit=1)
        await place.start(task_queue="'; drop table secrets", external_id="secret")
        run_id = await place.start()
        [run] = await worker.take()
        assert run.run_id == run_id
        await worker.send(
            operations=[worker.operation(run, step_completed=step(1)), worker.operation(run, complete=end())]
        )
        await worker.answered(2)
        async with asyncio.timeout(60):
            while len({payload[0] for payload in heard}) < 2:  # noqa: ASYNC110 - it comes or the test fails
                await asyncio.sleep(0.01)
        await worker.close()
    await listener.close()
    assert all(re.fullmatch(r"[wetc][0-9a-f]{12}", payload) for payload in heard), heard
