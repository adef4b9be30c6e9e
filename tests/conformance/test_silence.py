"""A worker that is stopped by a signal falls silent: it is shown OFFLINE, and ONLINE once it goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kagzi.protocol.v1 import admin_pb2 as ad
from tests.conformance.contract import eventually
from tests.conformance.place import Place

pytestmark = pytest.mark.conformance

ROOT = Path(__file__).parents[2]


@contextmanager
def _worker_process(place: Place) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.conformance.worker", place.contract.addresses[0], place.queue]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()


async def test_a_stopped_worker_is_offline_and_online_again_when_it_goes_on(hasty: Place) -> None:
    with _worker_process(hasty) as process:
        assert process.stdout is not None
        worker_id = process.stdout.readline().strip()

        async def status() -> ad.WorkerStatus.ValueType:
            request = ad.ListWorkersRequest(task_queue=hasty.queue)
            [worker] = (await hasty.contract.admin.ListWorkers(request)).workers
            assert worker.worker_id == worker_id
            return worker.status

        assert await hasty.result(await hasty.start("heard", workflow_type="echo")) == "heard"
        assert await status() == ad.WORKER_ONLINE
        process.send_signal(signal.SIGSTOP)
        # 40 s with the settings a server has by itself; tests allow three times as much.
        await eventually(status, lambda seen: seen == ad.WORKER_OFFLINE, within=120)
        run_id = await hasty.start("again", workflow_type="echo")
        process.send_signal(signal.SIGCONT)
        await eventually(status, lambda seen: seen == ad.WORKER_ONLINE, within=120)
        assert await hasty.result(run_id) == "again"
    assert process.returncode == 0
    request = ad.GetWorkerRequest(worker_id=worker_id)
    gone = (await hasty.contract.admin.GetWorker(request)).worker
    assert gone.status == ad.WORKER_OFFLINE
    assert gone.HasField("deregistered_at")
