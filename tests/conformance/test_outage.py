"""What nobody notices but by waiting: the database goes away in the middle of everything and comes back, and a server
is told to stop under load. Nothing that was acknowledged is lost, and no step with a result runs again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import asyncpg
import grpc
import pytest

from kagzi.embedded import Embedded
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import COMPLETED, FUNCTION, ErrorDetail
from kagzi.store import migrate
from tests.conformance.contract import PASSING, Contract, detail, eventually, patiently
from tests.conformance.execution import Run, encoded, new_id
from tests.conformance.place import Place, held
from tests.conformance.servers import ServerProcess

pytestmark = pytest.mark.conformance

RUNS = 40
STEPS = 4


class Effects:
    """What the bodies of steps did, outside of the engine."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()

    async def note(self, run: Run, number: int) -> int:
        self.ran[f"{run.task.run_id}/{number}"] += 1
        return number

    async def workflow(self, run: Run) -> int:
        total = 0
        for number in range(STEPS):
            total += await run.step(f"step-{number}", partial(self.note, run, number))
            if number == 1:
                await run.sleep("pause", 30)
        return total

    async def begun(self) -> int:
        return sum(self.ran.values())


@pytest.fixture
async def migrated(postgres: Embedded) -> Embedded:
    await migrate.apply(postgres.url)
    return postgres


@pytest.fixture
def server(migrated: Embedded, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(migrated.url, tmp_path / "server") as server:
        yield server


async def test_an_outage_of_the_database_loses_nothing_and_needs_no_restart(
    migrated: Embedded, server: ServerProcess
) -> None:
    effects = Effects()
    async with Contract(server.address) as contract:
        place = Place(contract)
        async with place.worker(effects.workflow, slots=8):
            starts = [place.request(run_id=new_id()) for _ in range(RUNS)]
            starting = asyncio.gather(
                *(patiently(partial(contract.workflows.StartWorkflow, start)) for start in starts)
            )
            await eventually(effects.begun, lambda begun: begun > RUNS)
            await asyncio.to_thread(migrated.stop, immediate=True)
            # Somebody asks while it is away, and is answered when it is back.
            late = place.request(run_id=new_id())
            asking = asyncio.ensure_future(patiently(partial(contract.workflows.StartWorkflow, late)))
            asked, _ = await asyncio.wait({asking}, timeout=0.5)
            assert not asked
            await asyncio.to_thread(migrated.start)
            await asking
            await starting
            for start in (*starts, late):
                run = await place.ended(start.run_id, within=60)
                assert run.status == COMPLETED
                assert run.crashes == 0
    assert server.running
    # Every worker lived on and sent again what was not answered, so no body ran twice.
    assert effects.ran == {f"{start.run_id}/{number}": 1 for start in (*starts, late) for number in range(STEPS)}
    await _each_step_has_one_result(migrated.url)


async def _each_step_has_one_result(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        stored = await connection.fetchrow(
            "select count(*) filter (where status = 'COMPLETED' and kind = 'FUNCTION') as results,"
            " count(distinct (run_id, step_id)) filter (where kind = 'FUNCTION') as steps,"
            " count(distinct run_id) as runs from kagzi.step_runs"
        )
        assert stored is not None
        assert stored["results"] == stored["steps"] == stored["runs"] * STEPS
    finally:
        await connection.close()


class Load:
    """Callers that go on until the server is gone, and what they were told."""

    def __init__(self, contract: Contract) -> None:
        self.place = Place(contract)
        self.started: set[str] = set()
        self.stored: set[tuple[str, str]] = set()
        self.refused: list[grpc.aio.AioRpcError] = []
        self._contract = contract

    async def start(self) -> None:
        while not self.refused:
            request = self.place.request(run_id=new_id())
            try:
                await self._contract.workflows.StartWorkflow(request, timeout=20)
                self.started.add(request.run_id)
            except grpc.aio.AioRpcError as error:
                self.refused.append(error)

    async def work(self) -> None:
        worker = await self.place.hand()
        run = held(await worker.take())
        for number in range(100_000):
            step = pb.StepCompleted(step_id=f"s{number}", attempt_id=new_id(), kind=FUNCTION, output=encoded(number))
            try:
                request = pb.CompleteStepRequest(run=run, step=step)
                await self._contract.workers.CompleteStep(request, timeout=20)
                self.stored.add((run.run_id, step.step_id))
            except grpc.aio.AioRpcError as error:
                self.refused.append(error)
                return

    async def wait_for_runs(self) -> None:
        """Somebody always waits for a run of a kind that nobody starts."""
        worker = await self.place.hand(types=[pb.ServedType(name="nothing")])
        while True:
            try:
                assert await worker.poll(wait_ms=60_000) is None
            except grpc.aio.AioRpcError as error:
                self.refused.append(error)
                return

    async def under_way(self) -> int:
        return min(len(self.started), len(self.stored))


async def test_a_server_told_to_stop_under_load_answers_or_refuses_every_call_and_loses_none(
    migrated: Embedded, server: ServerProcess
) -> None:
    async with Contract(server.address) as contract:
        load = Load(contract)
        callers = [asyncio.create_task(load.start()) for _ in range(8)]
        callers += [asyncio.create_task(load.work()) for _ in range(4)]
        callers += [asyncio.create_task(load.wait_for_runs()) for _ in range(3)]
        await eventually(load.under_way, lambda count: count > 100)
        began = time.monotonic()
        server.send(signal.SIGTERM)
        code = await asyncio.to_thread(server.wait, 30)
        took = time.monotonic() - began
        await asyncio.gather(*callers)
    assert code == 0, server.log.read_text()[-2_000:]
    assert took < 10
    for error in load.refused:
        assert error.code() in PASSING, f"{error.code()}: {error.details()}"
        assert detail(error).code in (ErrorDetail.CODE_UNSPECIFIED, ErrorDetail.UNAVAILABLE)
    connection = await asyncpg.connect(migrated.url)
    runs = await connection.fetch("select run_id from kagzi.workflow_runs")
    steps = await connection.fetch("select run_id, step_id from kagzi.step_runs where status = 'COMPLETED'")
    await connection.close()
    assert load.started <= {str(row["run_id"]) for row in runs}
    assert load.stored <= {(str(row["run_id"]), row["step_id"]) for row in steps}


async def test_a_run_goes_on_at_another_server_when_its_own_was_stopped(
    migrated: Embedded, server: ServerProcess, tmp_path: Path
) -> None:
    effects = Effects()
    with ServerProcess(migrated.url, tmp_path / "other") as other:
        async with Contract(server.address, other.address) as contract:
            place = Place(contract)
            async with place.worker(effects.workflow, slots=4):
                starts = [place.request(run_id=new_id()) for _ in range(10)]
                for start in starts:
                    await patiently(partial(contract.workflows.StartWorkflow, start))
                server.send(signal.SIGTERM)
                for start in starts:
                    get = partial(patiently, partial(place.get, start.run_id))
                    run = await eventually(get, lambda run: run.status == COMPLETED, within=60)
                    assert run.crashes == 0
                assert await asyncio.to_thread(server.wait, 30) == 0
    assert sum(effects.ran.values()) == 10 * STEPS, "an answer that came is not asked for again"
