"""The work on Absurd: `on_absurd.py worker|client URL POLL`. A worker with 100 tasks at a time; a client with ten
connections, because each holds one.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

from absurd_sdk import AsyncAbsurd
from dialog import converse

QUEUE = "bench"
WHAT, URL, POLL = sys.argv[1], sys.argv[2], float(sys.argv[3])
# After this a killed worker's task is free; the default of two minutes would be measured instead of the work.
LEASE_SECS = 5


async def small(number: int) -> dict[str, int]:
    return {"number": number}


def connected() -> AsyncAbsurd:
    app = AsyncAbsurd(URL, queue_name=QUEUE)

    @app.register_task("three")
    async def three(given: Any, ctx: Any) -> int:
        number = given["x"]
        for name in ("a", "b", "c"):
            number = (await ctx.step(name, lambda number=number: small(number)))["number"]
        return number

    @app.register_task("one")
    async def one(given: Any, ctx: Any) -> int:
        return (await ctx.step("a", lambda: small(given["x"])))["number"]

    @app.register_task("row")
    async def row(given: Any, ctx: Any) -> int:
        for number in range(given["x"]):
            await ctx.step("a", lambda number=number: small(number))
        return given["x"]

    @app.register_task("fan")
    async def fan(given: Any, ctx: Any) -> int:
        steps = [ctx.step(f"s{number}", lambda number=number: small(number)) for number in range(given["x"])]
        return len(await asyncio.gather(*steps))

    return app


async def worker() -> None:
    app = connected()
    await app.list_queues()
    print("ready", flush=True)
    await app.start_worker(concurrency=100, poll_interval=POLL, claim_timeout=LEASE_SECS)


async def client() -> None:
    reached = [connected() for _ in range(10)]
    for each in reached:
        await each.list_queues()
    turn = itertools.cycle(reached)

    async def start(name: str, given: int) -> Any:
        return await next(turn).spawn(name, {"x": given})

    async def execute(name: str, given: int) -> Any:
        task = await reached[0].spawn(name, {"x": given})
        return await reached[0].await_task_result(task["task_id"])

    await converse(start, execute)


if __name__ == "__main__":
    asyncio.run(worker() if WHAT == "worker" else client())
