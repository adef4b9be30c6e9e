"""A way to PostgreSQL that a test can watch and break. It forwards every message, counts statements and commits, and on
request loses what a network loses: the answer to a commit that took effect, which it can also hold back, the connection
between two statements, or the whole database. It changes no message and never answers in the server's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator
from typing import Self
from urllib.parse import parse_qs, urlsplit

_SSL_REQUEST = 80877103
_WRITES = re.compile(r"\b(insert into|update|delete from) kagzi\.", re.IGNORECASE)


class Proxy:
    """One listener on loopback before the database at `url`; `proxy.url` is the way through it."""

    def __init__(self, url: str) -> None:
        self._upstream = url
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._open = True
        # Texts of executed statements, those of the protocol's simple and extended form alike.
        self.statements: list[str] = []
        self.commits = 0
        # How many answers to a commit are still to be lost.
        self.answers_to_lose = 0
        # How many answers to a commit are still to be held back, and whether those that are may go.
        self.answers_to_hold = 0
        self.released = asyncio.Event()
        # Cut the connection instead of forwarding this many-th statement inside a transaction; None: never.
        self.cut_before: int | None = None
        self.cuts = 0
        # Notices are lost, as behind a pooler that shares connections between transactions.
        self.deaf = False
        # Connections that were refused because the database is away.
        self.refused = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.break_connections()
        await asyncio.gather(*(link.ended.wait() for link in set(self._links)))

    @property
    def url(self) -> str:
        assert self._server is not None
        parts = urlsplit(self._upstream)
        user = (parts.username or "") + (f":{parts.password}" if parts.password else "")
        port = self._server.sockets[0].getsockname()[1]
        return f"postgresql://{user}@127.0.0.1:{port}{parts.path}?sslmode=disable"

    def break_connections(self) -> None:
        """Every connection is gone, as when a cable is pulled and put back."""
        for link in set(self._links):
            link.cut()

    async def refuses(self, count: int) -> None:
        """Waits until so many connections were refused since the database went away."""
        async with asyncio.timeout(20):
            while self.refused < count:  # noqa: ASYNC110 - whoever connects tells nobody
                await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """The database cannot be reached meanwhile."""
        self._open = False
        self.refused = 0
        self.break_connections()
        try:
            yield
        finally:
            self._open = True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            if self._open:
                await link.serve(*await self._reach())
            else:
                self.refused += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            link.cut()
            self._links.discard(link)
            link.ended.set()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._upstream)
        port = parts.port or 5432
        host = parts.hostname or parse_qs(parts.query).get("host", ["127.0.0.1"])[0]
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)


class _Link:
    """One connection: two pumps, and the rules for breaking it."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_in, self._client_out = reader, writer
        self._server_out: asyncio.StreamWriter | None = None
        # Statements of the transaction under way; None outside of one.
        self._inside: int | None = None
        self._prepared: dict[bytes, str] = {}
        self._bound = ""
        self._swallow = False
        self._hold = False
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server_out = writer
        await self._greet()
        pumps = [asyncio.create_task(self._from_client()), asyncio.create_task(self._from_server(reader))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def cut(self) -> None:
        for writer in (self._client_out, self._server_out):
            if writer is not None:
                writer.close()

    async def _greet(self) -> None:
        """The first message has no letter. A wish for encryption is declined: it could not be read."""
        assert self._server_out is not None
        while True:
            head = await self._client_in.readexactly(8)
            length, code = struct.unpack("!II", head)
            rest = await self._client_in.readexactly(length - 8)
            if code != _SSL_REQUEST:
                break
            self._client_out.write(b"N")
        self._server_out.write(head + rest)

    async def _from_client(self) -> None:
        assert self._server_out is not None
        while True:
            kind, body = await _message(self._client_in)
            statement = self._statement(kind, body)
            if statement is not None and not self._may_pass(statement):
                self._proxy.cuts += 1
                return
            self._server_out.write(kind + struct.pack("!I", len(body) + 4) + body)
            await self._server_out.drain()

    def _statement(self, kind: bytes, body: bytes) -> str | None:
        """The text of a statement that this message executes."""
        match kind:
            case b"Q":
                return body[:-1].decode()
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode()
            case b"B":
                self._bound = self._prepared.get(body.split(b"\0", 2)[1], "")
            case b"E":
                return self._bound
        return None

    def _may_pass(self, statement: str) -> bool:
        word = statement.split(None, 1)[0].strip(";").upper() if statement.strip() else ""
        self._proxy.statements.append(statement)
        if word == "BEGIN":
            self._inside = 0
        elif self._inside is not None:
            self._inside += 1
            if self._inside == self._proxy.cut_before:
                return False
        # A statement outside of a transaction is one, and commits by itself if it writes.
        if word == "COMMIT" or (self._inside is None and word != "BEGIN" and _WRITES.search(statement)):
            self._proxy.commits += 1
            if self._proxy.answers_to_lose:
                self._proxy.answers_to_lose -= 1
                self._swallow = True
            elif self._proxy.answers_to_hold:
                self._proxy.answers_to_hold -= 1
                self._hold = True
        if word in ("COMMIT", "ROLLBACK"):
            self._inside = None
        return True

    async def _from_server(self, reader: asyncio.StreamReader) -> None:
        while True:
            kind, body = await _message(reader)
            if self._hold:
                await self._proxy.released.wait()
                self._hold = False
            if kind == b"A" and self._proxy.deaf:
                continue
            if not self._swallow:
                self._client_out.write(kind + struct.pack("!I", len(body) + 4) + body)
                await self._client_out.drain()
            elif kind == b"Z":
                # The server has committed; nobody hears of it.
                self._proxy.cuts += 1
                return


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head[:1], await reader.readexactly(length - 4)
