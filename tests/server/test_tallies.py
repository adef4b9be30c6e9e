"""What a server did is in the charts."""

from __future__ import annotations

import time

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi import Client, Context, Worker, workflow
from kagzi.protocol.v1.admin_pb2 import GetStatsRequest
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.server.app import Server
from kagzi.server.settings import Settings


async def _double(number: int) -> int:
    return number * 2


@workflow
async def counted(ctx: Context, number: int) -> int:
    return await ctx.step("double", _double, number)


async def test_runs_and_steps_are_counted_by_the_minute(database_url: str) -> None:
    server = Server(Settings(server_port=0), database_url)
    await server.start()
    try:
        async with Worker(server.address, workflows=[counted]), Client(server.address) as client:
            for number in range(3):
                assert await client.execute(counted, number) == number * 2
    finally:
        await server.stop(2.0)
    again = Server(Settings(server_port=0), database_url)
    await again.start()
    try:
        async with grpc.aio.insecure_channel(again.address) as channel:
            stub = AdminServiceStub(channel)
            stats = await stub.GetStats(GetStatsRequest())
            since = Timestamp(seconds=int(time.time()) // 3_600 * 3_600 - 3_600)
            hours = await stub.GetStats(GetStatsRequest(since=since, step_ms=3_600_000))
    finally:
        await again.stop(1.0)
    assert sum(point.started for point in stats.points) == 3
    assert sum(point.completed for point in stats.points) == 3
    assert sum(point.steps_completed for point in stats.points) == 3
    assert sum(point.started for point in hours.points) == 3
