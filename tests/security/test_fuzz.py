"""Ten thousand malformed messages: each is refused with a clear error, and the server is well afterwards."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.roles import Role
from tests.conformance.execution import new_id
from tests.security.realm import HOME, Realm, detail, requests, shown
from tests.security.test_streams import hello, watch

CALLS = 7_000
STREAMS = 1_000
OPERATIONS = 2_000
AT_ONCE = 50
# What a caller's mistake may be called; above all it is no defect of the server.
SAID = {
    ErrorDetail.INVALID_ARGUMENT,
    ErrorDetail.LIMIT_EXCEEDED,
    ErrorDetail.NOT_FOUND,
    ErrorDetail.CONFLICT,
    ErrorDetail.PRECONDITION_FAILED,
    ErrorDetail.PERMISSION_DENIED,
    ErrorDetail.LEASE_LOST,
    ErrorDetail.PREDECESSOR_REFUSED,
    ErrorDetail.UNIMPLEMENTED,
}


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """The same message with bytes changed, cut, repeated or put in; or no message at all."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(5):
            case 0:
                made[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del made[at:]
            case 2:
                made[at:at] = made[at : at + chance.randrange(64)]
            case 3:
                made[at:at] = chance.randbytes(chance.randrange(32))
            case _:
                made = bytearray(chance.randbytes(chance.randrange(200)))
    return bytes(made)


def identity(data: bytes) -> bytes:
    return data


class Fuzz:
    """Sends what is spoilt and counts what is answered."""

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self._channel = channel
        self._metadata = shown(key)
        self._places = asyncio.Semaphore(AT_ONCE)
        self.answers: Counter[int] = Counter()

    async def call(self, name: str, data: bytes) -> None:
        method: Any = self._channel.unary_unary(f"/kagzi.v1.{name}")
        async with self._places:
            try:
                await method(data, metadata=self._metadata, timeout=30)
            except grpc.aio.AioRpcError as error:
                self.answers[detail(error).code] += 1
            else:
                # What was changed did not matter.
                self.answers[ErrorDetail.CODE_UNSPECIFIED] += 1

    async def stream(self, name: str, first: bytes, data: bytes) -> None:
        """A stream that begins well, or does not, and goes on with nonsense."""
        method: Any = self._channel.stream_stream(f"/kagzi.v1.{name}", identity, identity)
        async with self._places:
            code = None
            while code is None:
                code = await self._heard(method(_each(first, data), metadata=self._metadata, timeout=30))
            self.answers[code] += 1

    async def _heard(self, call: Any) -> int | None:
        """Why the server ended a stream; None when the client did, whose write met that end and hid the reason."""
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return None if "execute_batch" in (error.debug_error_string() or "") else detail(error).code
        return ErrorDetail.CODE_UNSPECIFIED


async def _each(*frames: bytes) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


async def test_no_malformed_message_is_more_than_a_callers_mistake(realm: Realm) -> None:
    chance = random.Random(7)
    # Waiting for work, and leaving the namespace closed, would hold up the rest.
    apart = {"WorkerService/PollTask", "NamespaceService/DisableNamespace"}
    good = {name: one.SerializeToString() for name, one in requests(HOME).items() if name not in apart}
    names = sorted(good)
    async with grpc.aio.insecure_channel(realm.place.server.address) as channel:
        fuzz = Fuzz(channel, realm.keys[Role.ADMIN])
        chosen = [chance.choice(names) for _ in range(CALLS)]
        await asyncio.gather(*(fuzz.call(name, spoilt(good[name], chance)) for name in chosen))
        firsts = {"WorkerService/Connect": hello, "WorkflowService/WatchWorkflows": watch}
        streams = []
        for _ in range(STREAMS):
            name = chance.choice(sorted(firsts))
            first = firsts[name](HOME).SerializeToString()
            begin = first if chance.random() < 0.5 else spoilt(first, chance)
            streams.append(fuzz.stream(name, begin, spoilt(first, chance)))
        await asyncio.gather(*streams)
    assert sum(fuzz.answers.values()) == CALLS + STREAMS
    assert set(fuzz.answers) - SAID - {ErrorDetail.CODE_UNSPECIFIED} == set()
    assert realm.refusal("AdminService/HealthCheck", b"", None) is None


async def test_malformed_operations_are_refused_singly_and_the_stream_goes_on(realm: Realm) -> None:
    chance = random.Random(11)
    bodies = [field.name for field in pb.Operation.DESCRIPTOR.oneofs_by_name["body"].fields]
    call: Any
    async with grpc.aio.insecure_channel(realm.place.server.address) as channel:
        connect: Any = channel.stream_stream(
            "/kagzi.v1.WorkerService/Connect", pb.ConnectRequest.SerializeToString, pb.ConnectResponse.FromString
        )
        call = connect(metadata=shown(realm.keys[Role.WORKER]))
        await call.write(hello(HOME))
        assert (await call.read()).HasField("welcome")
        told: dict[int, int] = {}
        for begin in range(0, OPERATIONS, 500):
            numbers = range(begin + 1, begin + 501)
            await call.write(pb.ConnectRequest(operations=[_operation(number, bodies, chance) for number in numbers]))
            while len(told) < begin + 500:
                frame = await call.read()
                told |= {answer.number: answer.refused.code for answer in frame.answers}
                assert not frame.accepted
        call.cancel()
    assert set(told.values()) <= SAID


def _operation(number: int, bodies: list[str], chance: random.Random) -> pb.Operation:
    """Ids that are none, texts of every kind, bodies left empty, or none at all."""
    texts = ["", "\0", "x" * 300, "'; drop table kagzi.workflow_runs; --", "\U0001f600" * 64, new_id()]
    good = chance.random() < 0.7
    run_id, token = (new_id(), new_id()) if good else (chance.choice(texts), chance.choice(texts))
    made = pb.Operation(number=number, run_id=run_id, claim_token=token)
    if chance.random() < 0.9:
        body = getattr(made, chance.choice(bodies))
        body.SetInParent()
        for field in body.DESCRIPTOR.fields:
            if field.type == field.TYPE_STRING and not field.is_repeated and chance.random() < 0.7:
                setattr(body, field.name, chance.choice(texts))
            elif field.type in (field.TYPE_INT64, field.TYPE_INT32) and not field.is_repeated:
                setattr(body, field.name, chance.choice([0, -1, 2**31 - 1]))
    return made
