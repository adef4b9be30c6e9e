"""A cable between clients or workers and one server: bytes pass, or pass slowly, or vanish while both ends believe in
the connection, or the connection is reset. It knows nothing of what it carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Self

_PIECE = 16 * 1024
_RESET = struct.pack("ii", 1, 0)


class Cable:
    """One listener on loopback before the server at `upstream`; `cable.address` is the way through it."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._whole = asyncio.Event()
        self._whole.set()
        # Bytes a second towards whoever connected; None: as many as come.
        self.pace: int | None = None
        # Bytes that came from the server, and pieces that vanished since it became a hole.
        self.carried = 0
        self.swallowed = 0
        self.address = ""

    def vanish(self) -> None:
        """From now on nothing arrives, in either direction, on old connections and on new ones."""
        self._whole.clear()

    def reset(self) -> None:
        """Ends every connection as a machine does that knows nothing of it any more."""
        for end in list(self._ends):
            connection: socket.socket | None = end.get_extra_info("socket")
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in self._ends:
            end.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        self._ends |= {writer, upstream_writer}
        ways = ((reader, upstream_writer, False), (upstream_reader, writer, True))
        tasks = {asyncio.create_task(self._carry(*way)) for way in ways}
        self._tasks |= tasks
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._tasks -= tasks
            for end in (writer, upstream_writer):
                self._ends.discard(end)
                end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, down: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                if not self._whole.is_set():
                    self.swallowed += 1
                    continue
                if down:
                    self.carried += len(data)
                    if self.pace is not None:
                        await asyncio.sleep(len(data) / self.pace)
                writer.write(data)
                await writer.drain()
        if not self._whole.is_set():
            # The other end hears of nothing, not even of an end.
            await asyncio.Event().wait()
