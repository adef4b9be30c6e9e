"""The wire does the damage it says and no other: each kind is seen on an echo, and the wire is whole afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.faults.wire import Wire
from tests.survival.load import until

# How long nothing is waited for before it counts as nothing.
_NOTHING = 0.2


class Echo:
    """A server that answers every piece with itself, and keeps what arrived."""

    def __init__(self) -> None:
        self.heard = b""
        self.ends = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1_000):
                self.heard += data
                writer.write(data)
                await writer.drain()
        self.ends += 1
        writer.close()


class Caller:
    """One connection through the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, text: bytes, seconds: float = 30) -> bytes:
        """The answer; nothing when the connection ended."""
        with suppress(ConnectionError):
            self._writer.write(text)
            return await asyncio.wait_for(self._reader.read(1_000), seconds)
        return b""

    async def hears_nothing(self, text: bytes) -> None:
        with pytest.raises(TimeoutError):
            await self.ask(text, _NOTHING)


@asynccontextmanager
async def called(wire: Wire) -> AsyncIterator[Caller]:
    host, _, port = wire.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Caller(reader, writer)
    finally:
        writer.transport.abort()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def wire(echo: Echo) -> AsyncIterator[Wire]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with Wire(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as wire:
        yield wire
        wire.heal()
        async with called(wire) as caller:
            assert await caller.ask(b"whole") == b"whole"
    server.close()


async def test_bytes_pass_and_are_counted(wire: Wire) -> None:
    async with called(wire) as caller:
        assert await caller.ask(b"one") == b"one"
    assert (wire.carried_up, wire.carried_down) == (3, 3)


async def test_a_cut_ends_the_connection_at_both_ends(wire: Wire, echo: Echo) -> None:
    async with called(wire) as caller:
        await caller.ask(b"one")
        wire.cut()
        assert await caller.ask(b"two") == b""
        await until(lambda: echo.ends == 1)


async def test_a_black_hole_swallows_both_ways_and_says_nothing(wire: Wire, echo: Echo) -> None:
    async with called(wire) as caller:
        await caller.ask(b"one")
        wire.black_hole()
        await caller.hears_nothing(b"two")
    assert (echo.heard, echo.ends) == (b"one", 0)


async def test_one_direction_may_vanish_alone(wire: Wire, echo: Echo) -> None:
    wire.swallows_down = True
    async with called(wire) as caller:
        await caller.hears_nothing(b"one")
    await until(lambda: echo.heard == b"one")


async def test_a_half_open_connection_is_gone_at_one_end_and_believed_in_at_the_other(wire: Wire, echo: Echo) -> None:
    async with called(wire) as caller:
        await caller.ask(b"one")
        wire.half_open()
        await until(lambda: echo.ends == 1)
        await caller.hears_nothing(b"two")
        assert echo.heard == b"one"
        wire.heal()
        assert await caller.ask(b"three") == b""


async def test_a_lost_reply_is_that_of_a_request_that_arrived(wire: Wire, echo: Echo) -> None:
    async with called(wire) as caller:
        await caller.ask(b"one")
        wire.lose_reply()
        assert await caller.ask(b"two") == b""
    assert (echo.heard, wire.lost_replies) == (b"onetwo", 1)


async def test_refused_connections_are_reset(wire: Wire) -> None:
    wire.refuses = True
    async with called(wire) as caller:
        assert await caller.ask(b"one") == b""
    assert wire.refused == 1


async def test_a_late_wire_keeps_the_order_and_a_slow_one_its_pace(wire: Wire) -> None:
    loop = asyncio.get_running_loop()
    async with called(wire) as caller:
        wire.delay = 0.05
        began = loop.time()
        assert await caller.ask(b"one") == b"one"
        assert loop.time() - began >= 0.1
        wire.heal()
        wire.pace = 100
        began = loop.time()
        assert await caller.ask(b"12345") == b"12345"
        assert loop.time() - began >= 0.1
