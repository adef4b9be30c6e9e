"""Streams ask for keys too, with their first frame and every later one, and end with the key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import grpc
import pytest

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.worker_pb2_grpc import WorkerServiceStub
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.server.roles import Role
from tests.conformance.execution import new_id
from tests.security.realm import ELSEWHERE, HOME, Realm, detail, shown


def hello(namespace: str) -> pb.ConnectRequest:
    worker = pb.RegisterRequest(namespace=namespace, instance=new_id(), types=[pb.ServedType(name="order")])
    return pb.ConnectRequest(hello=pb.Hello(worker=worker), credit=1)


def watch(namespace: str) -> wf.WatchWorkflowsRequest:
    return wf.WatchWorkflowsRequest(namespace=namespace, watch=[new_id()])


@asynccontextmanager
async def opened(realm: Realm, call: str, key: str | None) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(realm.place.server.address) as channel:
        if call == "Connect":
            yield WorkerServiceStub(channel).Connect(metadata=shown(key))
        else:
            yield WorkflowServiceStub(channel).WatchWorkflows(metadata=shown(key))


async def told(stream: Any) -> ErrorDetail:
    """Why a stream ended."""

    async def end() -> None:
        async with asyncio.timeout(20):
            while await stream.read() is not grpc.aio.EOF:
                pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await end()
    return detail(caught.value)


FRAMES = {"Connect": hello, "WatchWorkflows": watch}


@pytest.mark.parametrize("call", FRAMES)
async def test_a_stream_without_a_key_is_refused(realm: Realm, call: str) -> None:
    for key in (None, "x"):
        async with opened(realm, call, key) as stream:
            assert (await told(stream)).code == ErrorDetail.UNAUTHORIZED


async def test_a_stream_of_a_worker_needs_its_role(realm: Realm) -> None:
    async with opened(realm, "Connect", realm.keys[Role.CLIENT]) as stream:
        assert (await told(stream)).code == ErrorDetail.PERMISSION_DENIED


@pytest.mark.parametrize("call", FRAMES)
async def test_a_first_frame_for_another_namespace_is_refused(realm: Realm, call: str) -> None:
    async with opened(realm, call, realm.keys[Role.ADMIN]) as stream:
        await stream.write(FRAMES[call](ELSEWHERE))
        assert (await told(stream)).code == ErrorDetail.PERMISSION_DENIED


async def test_a_later_frame_for_another_namespace_ends_the_stream(realm: Realm) -> None:
    async with opened(realm, "WatchWorkflows", realm.keys[Role.READER]) as stream:
        await stream.write(watch(""))
        assert list((await stream.read()).unknown)
        await stream.write(watch(ELSEWHERE))
        assert (await told(stream)).code == ErrorDetail.PERMISSION_DENIED


async def test_an_empty_namespace_is_the_one_of_the_key(realm: Realm) -> None:
    async with opened(realm, "Connect", realm.keys[Role.WORKER]) as stream:
        await stream.write(hello(""))
        worker_id = (await stream.read()).welcome.worker_id
    connection = await asyncpg.connect(realm.place.database_url)
    where = await connection.fetchval("select namespace from kagzi.workers where worker_id = $1", worker_id)
    await connection.close()
    assert where == HOME


@pytest.mark.parametrize("call", FRAMES)
async def test_a_stream_ends_when_its_key_is_revoked_here(realm: Realm, call: str) -> None:
    made = realm.made(Role.WORKER)
    async with opened(realm, call, made.secret) as stream:
        await stream.write(FRAMES[call](""))
        await stream.read()
        realm.revoke(made.key)
        assert (await told(stream)).code == ErrorDetail.UNAUTHORIZED


async def test_a_key_revoked_elsewhere_ends_calls_streams_and_polls_at_the_next_look(realm: Realm) -> None:
    made = realm.made(Role.WORKER)
    async with opened(realm, "WatchWorkflows", made.secret) as stream, opened(realm, "Connect", made.secret) as link:
        await stream.write(watch(""))
        await stream.read()
        await link.write(hello(""))
        worker_id = (await link.read()).welcome.worker_id
        async with grpc.aio.insecure_channel(realm.place.server.address) as channel:
            poll = WorkerServiceStub(channel).PollTask(
                pb.PollTaskRequest(worker_id=worker_id, wait_ms=60_000), metadata=shown(made.secret)
            )
            held = realm.place.server.keyring._held
            while len(held[HOME, made.key.key_id]) < 3:  # noqa: ASYNC110 - a call says nothing when it waits
                await asyncio.sleep(0.005)
            connection = await asyncpg.connect(realm.place.database_url)
            await connection.execute("update kagzi.api_keys set revoked_at = now() where key_id = $1", made.key.key_id)
            await connection.close()
            # The look that comes every two seconds, now.
            await asyncio.to_thread(realm.place.do, realm.place.server.keyring.look())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await poll
            assert detail(caught.value).code == ErrorDetail.UNAUTHORIZED
        assert (await told(stream)).code == ErrorDetail.UNAUTHORIZED
        assert (await told(link)).code == ErrorDetail.UNAUTHORIZED
    refused = realm.refusal("WorkflowService/GetWorkflow", wf.GetWorkflowRequest(run_id=new_id()), made.secret)
    assert refused is not None
    assert refused.code == ErrorDetail.UNAUTHORIZED
    assert (HOME, made.key.key_id) not in held
