"""Programs that are started by a process which talks to a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

_TALKING = """
import asyncio, os, subprocess
import kagzi.sdk.calls, grpc

async def answer(requests, context):
    async for request in requests:
        yield request

async def talk(call):
    while True:
        await call.write(b"x")
        await call.read()

async def main():
    server = grpc.aio.server()
    method = grpc.stream_stream_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Talk": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        talking = asyncio.create_task(talk(channel.stream_stream("/echo/Talk")()))
        start = lambda: subprocess.run(["true"], preexec_fn=os.getpid).returncode
        print([code for code in [await asyncio.to_thread(start) for _ in range(40)] if code])
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
    await server.stop(0)

asyncio.run(main())
"""


async def test_programs_that_a_busy_process_forks_live() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _TALKING], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]", done.stderr
