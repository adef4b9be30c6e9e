"""The work on DBOS: `on_dbos.py prepare|worker|client URL POLL`. A queue with 100 places on one worker; the poll
interval is told, because it is what DBOS trades latency for idle cost with. Eight threads: more were slower.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
from typing import Any

from dbos import DBOS, DBOSClient
from dialog import converse

QUEUE = "bench"
WHAT, URL, POLL = sys.argv[1], sys.argv[2], float(sys.argv[3])


@DBOS.step()
async def small(number: int) -> dict[str, int]:
    return {"number": number}


@DBOS.workflow()
async def three(number: int) -> int:
    for _ in range(3):
        number = (await small(number))["number"]
    return number


@DBOS.workflow()
async def one(number: int) -> int:
    return (await small(number))["number"]


@DBOS.workflow()
async def row(count: int) -> int:
    for number in range(count):
        await small(number)
    return count


@DBOS.workflow()
async def fan(count: int) -> int:
    return len(await asyncio.gather(*(small(number) for number in range(count))))


def launch() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "log_level": "WARNING",
            "application_version": "1",
            "executor_id": "local",
            "max_executor_threads": 8,
        }
    )
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=100, polling_interval_sec=POLL)


async def client() -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(20))
    reached = DBOSClient(system_database_url=URL, system_database_pool_size=20)

    async def start(name: str, given: int) -> Any:
        return await reached.enqueue_async({"workflow_name": name, "queue_name": QUEUE}, given)

    async def execute(name: str, given: int) -> Any:
        return await (await start(name, given)).get_result(polling_interval_sec=POLL)

    await converse(start, execute)


if __name__ == "__main__":
    if WHAT == "client":
        asyncio.run(client())
    else:
        launch()
        print("ready", flush=True)
        if WHAT == "worker":
            threading.Event().wait()
        DBOS.destroy()
