"""Ten times what the database can take: callers are told to come back and when, memory stays bounded, the server
answers again in seconds once it is over, and what it acknowledged is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Payload
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import calls
from tests.faults.scale import figures, scaled
from tests.faults.wire import Wire
from tests.survival.load import until
from tests.survival.record import rows
from tests.survival.station import Station

if TYPE_CHECKING:
    from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceAsyncStub

_QUEUE_BYTES = 4 * 1024 * 1024
_PAYLOAD = 10_000
# A commit takes at least four crossings of the wire, and holds so many starts.
_CROSSING = 0.1
_BATCH = 20
_SETTINGS = {
    "batcher_queue_bytes": _QUEUE_BYTES,
    "batcher_queue_operations": 100,
    "batcher_batch_operations": _BATCH,
    "batcher_patience_secs": 0.2,
}
# What waits, what callers that wait for room hold once more, copies of both on their way, and what Python keeps.
_GROWTH = 10 * _QUEUE_BYTES + 64 * 1024 * 1024


class Crowd:
    """Callers that ask, and ask again whatever they are told."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._over = False
        self.acknowledged: set[str] = set()
        self.refused: list[ErrorDetail] = []
        self.offered = 0

    async def press(self, callers: int, seconds: float) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = WorkflowServiceStub(channel)
            pressing = [asyncio.create_task(self._press(stub)) for _ in range(callers)]
            await asyncio.sleep(seconds)
            # On a slow machine the crowd takes longer to form.
            await until(lambda: bool(self.refused), 60)
            self._over = True
            await asyncio.gather(*pressing)

    async def _press(self, stub: WorkflowServiceAsyncStub) -> None:
        while not self._over:
            start = StartWorkflowRequest(
                workflow_type="work", run_id=str(uuid.uuid4()), input=Payload(data=b'"' + b"1" * _PAYLOAD + b'"')
            )
            self.offered += 1
            try:
                self.acknowledged.add((await stub.StartWorkflow(start)).run_id)
            except grpc.aio.AioRpcError as error:
                # One without a detail has no code, and is found by the test.
                self.refused.append(calls._detail(error) or ErrorDetail())
                await asyncio.sleep(0.02)


def resident(pid: int) -> int:
    """The memory of a process, in bytes."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_row_18_overload_is_refused_with_a_time_to_come_back_and_costs_no_memory(
    database_url: str, tmp_path: Path
) -> None:
    async with Wire(database_url) as wire:
        server = Station(wire.url, tmp_path / "server", **_SETTINGS)
        with contextlib.ExitStack() as stack:
            stack.push(server)
            # The wire is in this process: it must not stand still meanwhile.
            await asyncio.to_thread(server.start)
            crowd = Crowd(server.address)
            before = resident(server.pid)
            wire.delay = _CROSSING
            await crowd.press(callers=300, seconds=scaled(4.0, 60.0))
            grown = resident(server.pid) - before
            wire.heal()
            healed = time.monotonic()
            async with grpc.aio.insecure_channel(server.address) as channel:
                last = StartWorkflowRequest(workflow_type="work", run_id=str(uuid.uuid4()))
                await WorkflowServiceStub(channel).StartWorkflow(last, timeout=60, wait_for_ready=True)
            recovery = time.monotonic() - healed
    stored = {str(run_id) for (run_id,) in await rows(database_url, "select run_id::text from kagzi.workflow_runs")}
    lost = crowd.acknowledged - stored
    print(  # noqa: T201
        f"\n{crowd.offered} starts offered, {len(crowd.acknowledged)} acknowledged, {len(crowd.refused)} refused; "
        f"memory grew by {grown / 1e6:.0f} MB; recovery {recovery:.1f} s"
    )
    figures(18, runs=len(stored), faults=1, violations=len(lost), slowest=recovery)
    assert lost == set()
    assert {detail.code for detail in crowd.refused} == {ErrorDetail.RESOURCE_EXHAUSTED}
    assert all(detail.retry_after_ms > 0 for detail in crowd.refused)
    assert grown < _GROWTH
