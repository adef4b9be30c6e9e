"""Databases for environments: one PostgreSQL for the whole process, started when it is first needed and stopped at
exit, and a copy of a migrated template for each environment. Nothing in it outlives the process, so nothing waits for
the disk.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg

from kagzi.embedded import Embedded
from kagzi.store import migrate
from kagzi.testing.clock import INSTALL

_TEMPLATE = "kagzi_template"
_SETTINGS: dict[str, str | float | bool] = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
    "wal_level": "minimal",
    "max_wal_senders": 0,
    "max_wal_size": "512MB",
    # It would meet the copying of the template, and databases that live for a test have nothing to vacuum.
    "autovacuum": False,
}


class Databases:
    """The databases of this process. Any thread and any event loop may ask for one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: Embedded | None = None
        self._owner = 0
        self._numbers = count(1)

    @contextlib.asynccontextmanager
    async def fresh(self) -> AsyncIterator[str]:
        """The URL of a new database with the current schema and a clock that can be moved; gone afterwards."""
        url = await asyncio.to_thread(self._warm)
        name = f"kagzi_{os.getpid()}_{next(self._numbers)}"
        # Copying files needs a checkpoint, which costs nothing without fsync: 25 ms, where logged copying takes 45.
        await _execute(url, f"create database {name} template {_TEMPLATE} strategy file_copy")
        try:
            yield _database(url, name)
        finally:
            await _execute(url, f"drop database {name} with (force)")

    def close(self) -> None:
        """Stops the server and removes its files. A forked child leaves them to its parent."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None and self._owner == os.getpid():
            server.close()
            shutil.rmtree(server.directory, ignore_errors=True)

    def _warm(self) -> str:
        """The server's URL. The first caller starts it and makes the template; the others wait for that."""
        with self._lock:
            if self._server is None or self._owner != os.getpid():
                self._server = self._start()
                self._owner = os.getpid()
            return self._server.url

    def _start(self) -> Embedded:
        directory = Path(tempfile.mkdtemp(prefix="kagzi-testing-"))
        server = Embedded(directory, settings=_SETTINGS)
        try:
            server.start()
            asyncio.run(_make_template(server.url))
        except BaseException:
            server.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return server


async def _make_template(url: str) -> None:
    await _execute(url, f"create database {_TEMPLATE}")
    template = _database(url, _TEMPLATE)
    await migrate.apply(template)
    await _execute(template, INSTALL)


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


databases = Databases()
atexit.register(databases.close)
