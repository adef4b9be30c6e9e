"""How the harness talks to a client of a peer: one line of JSON asks, one answers. The harness does the timing, except
where runs follow each other; a program only starts work through its peer's own API, a hundred starts at a time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

AT_ONCE = 100

Start = Callable[[str, int], Awaitable[Any]]
Execute = Callable[[str, int], Awaitable[Any]]


async def converse(start: Start, execute: Execute) -> None:
    """Does what standard input asks for until it ends."""
    loop = asyncio.get_running_loop()
    print(json.dumps({"ready": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        name, count, given = order["workflow"], order["count"], order["input"]
        if order["do"] == "start":
            await _many(start, name, count, given)
            answer: dict[str, Any] = {"started": count}
        else:
            answer = {"milliseconds": await _one_by_one(execute, name, count, given)}
        print(json.dumps(answer), flush=True)


async def _many(start: Start, name: str, count: int, given: int) -> None:
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await start(name, given)

    await asyncio.gather(*(some() for _ in range(min(AT_ONCE, count))))


async def _one_by_one(execute: Execute, name: str, count: int, given: int) -> list[float]:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await execute(name, given)
        times.append((time.perf_counter() - began) * 1_000)
    return times
