"""The work on Restate: an ASGI application for the worker, and `on_restate.py client INGRESS`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import aiohttp
import restate
from dialog import converse

service = restate.Service("bench")


async def small(number: int) -> dict[str, int]:
    return {"number": number}


@service.handler()
async def three(ctx: restate.Context, number: int) -> int:
    for name in ("a", "b", "c"):
        number = (await ctx.run_typed(name, small, number=number))["number"]
    return number


@service.handler()
async def one(ctx: restate.Context, number: int) -> int:
    return (await ctx.run_typed("a", small, number=number))["number"]


@service.handler()
async def row(ctx: restate.Context, count: int) -> int:
    for number in range(count):
        await ctx.run_typed("a", small, number=number)
    return count


@service.handler()
async def fan(ctx: restate.Context, count: int) -> int:
    futures = [ctx.run_typed(f"s{number}", small, number=number) for number in range(count)]
    await restate.gather(*futures)
    return len([await future for future in futures])


app = restate.app([service])


async def client(ingress: str) -> None:
    connector = aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(connector=connector) as http:

        async def ask(path: str, given: int) -> Any:
            async with http.post(f"{ingress}/bench/{path}", json=given) as response:
                answer = await response.json()
                if response.status >= 300:
                    raise RuntimeError(answer)
                return answer

        async def start(name: str, given: int) -> Any:
            return await ask(f"{name}/send", given)

        async def execute(name: str, given: int) -> Any:
            return await ask(name, given)

        await converse(start, execute)


if __name__ == "__main__":
    asyncio.run(client(sys.argv[2]))
