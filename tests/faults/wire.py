"""A TCP proxy: the wire between any two processes, which a test can damage. Bytes pass, pass late or slowly, vanish in
one direction or in both while each end believes in the connection; connections are reset, refused, or lose one end, or
lose the reply to what they have carried. It knows nothing of what it carries and changes no byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self
from urllib.parse import parse_qs, urlsplit

_PIECE = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class Wire:
    """One listener on loopback before `upstream`, a "host:port" or the URL of a database; `wire.address` is the way
    through it.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        # Seconds that every piece waits, and bytes a second; nothing: as it comes.
        self.delay = 0.0
        self.pace: int | None = None
        # Whether pieces towards the upstream, and back from it, vanish.
        self.swallows_up = False
        self.swallows_down = False
        self.refuses = False
        # What was seen, for tests of the wire and for its summary.
        self.carried_up = 0
        self.carried_down = 0
        self.swallowed = 0
        self.lost_replies = 0
        self.refused = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The way to the database through this wire."""
        parts = urlsplit(self._upstream)
        user = (parts.username or "") + (f":{parts.password}" if parts.password else "")
        return f"postgresql://{user}@{self.address}{parts.path}?sslmode=disable"

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Ends every connection as a machine does that knows nothing of it any more."""
        for link in list(self._links):
            link.reset()

    def black_hole(self) -> None:
        """Nothing arrives any more, in either direction, on old connections and on new ones."""
        self.swallows_up = self.swallows_down = True

    def half_open(self) -> None:
        """The upstream loses every connection, and whoever connected hears nothing of it."""
        for link in list(self._links):
            link.half_open()

    def lose_reply(self) -> None:
        """What is asked on each connection still arrives; the answer does not, and the connection is reset."""
        for link in list(self._links):
            link.losing = True

    def heal(self) -> None:
        """As good as new. Connections that lost bytes cannot go on, and are reset."""
        damaged = self.swallows_up or self.swallows_down
        self.delay, self.pace = 0.0, None
        self.swallows_up = self.swallows_down = self.refuses = False
        for link in list(self._links):
            if damaged or link.halved:
                link.reset()
            link.losing = False

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = None
        try:
            if self.refuses:
                self.refused += 1
                _abort(writer)
                return
            link = _Link(self, reader, writer, *await self._reach())
            self._links.add(link)
            await link.serve()
        except OSError:
            _abort(writer)
        except asyncio.CancelledError:
            # By this wire's end alone. A task of the stream server that ends so is complained of.
            _abort(writer)
        finally:
            if link is not None:
                self._links.discard(link)
                link.reset()
            self._tasks.discard(task)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if "://" not in self._upstream:
            host, _, port = self._upstream.rpartition(":")
            return await asyncio.open_connection(host, int(port))
        parts = urlsplit(self._upstream)
        host = parts.hostname or parse_qs(parts.query).get("host", ["127.0.0.1"])[0]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{parts.port or 5432}")
        return await asyncio.open_connection(host, parts.port or 5432)


class _Link:
    """One connection: a way up and a way down."""

    def __init__(
        self,
        wire: Wire,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        self._wire = wire
        self._near = (reader, writer)
        self._far = (far_reader, far_writer)
        self._asked = False
        self.losing = False
        self.halved = False

    async def serve(self) -> None:
        ways = {asyncio.create_task(self._up()), asyncio.create_task(self._down())}
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if self.halved:
                # Whoever connected goes on believing, until they give up or the wire is healed.
                await asyncio.wait(ways)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    def reset(self) -> None:
        for _, writer in (self._near, self._far):
            _abort(writer)

    def half_open(self) -> None:
        self.halved = True
        _abort(self._far[1])

    async def _up(self) -> None:
        wire = self._wire
        with contextlib.suppress(OSError):
            while data := await self._near[0].read(_PIECE):
                if self.halved or wire.swallows_up:
                    wire.swallowed += 1
                    continue
                await self._wait(len(data))
                wire.carried_up += len(data)
                self._asked = True
                self._far[1].write(data)
                await self._far[1].drain()

    async def _down(self) -> None:
        wire = self._wire
        with contextlib.suppress(OSError):
            while data := await self._far[0].read(_PIECE):
                if self.losing and self._asked:
                    wire.lost_replies += 1
                    return
                if wire.swallows_down:
                    wire.swallowed += 1
                    continue
                await self._wait(len(data))
                wire.carried_down += len(data)
                self._near[1].write(data)
                await self._near[1].drain()
        if wire.swallows_down:
            # Not even an end arrives.
            await asyncio.Event().wait()

    async def _wait(self, size: int) -> None:
        wire = self._wire
        if wire.delay:
            await asyncio.sleep(wire.delay)
        if wire.pace is not None:
            await asyncio.sleep(size / wire.pace)


def _abort(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket | None = writer.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
