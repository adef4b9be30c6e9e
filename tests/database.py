"""Databases for the tests: one server a run, one template migrated once, a copy of it for each test.

Everything happens in a thread with an event loop of its own, because the loops of tests live no longer than a
test. Databases are dropped as soon as their test is over, so a server given from outside is left as it was.
"""

import asyncio
import contextlib
import importlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import asyncpg

from kagzi.embedded import Embedded
from kagzi.embedded.binaries import Version

_Result = TypeVar("_Result")

# A runaway query of a test must not take the machine with it.
BOUNDS = {"max_wal_size": "512MB", "temp_file_limit": "512MB"}

_MEMORY = "/dev/shm"  # noqa: S108  (mkdtemp makes a private directory there)


class Databases:
    """Fresh databases on one server. Any thread may ask for them, also one whose event loop is running."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._prefix = f"kagzi_test_{secrets.token_hex(4)}"
        self._template = f"{self._prefix}_template"
        self._numbers = count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-databases", daemon=True)
        self._thread.start()
        self._admin: asyncpg.Connection[asyncpg.Record] = self._wait(asyncpg.connect(url))
        self._wait(self._make_template())

    def create(self) -> str:
        """The URL of a new database with the current schema."""
        name = f"{self._prefix}_{next(self._numbers)}"
        # Logged copying needs no checkpoint: 15 ms in memory and 40 ms on disk, where copying files takes 90.
        self._wait(self._admin.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY wal_log"))
        return self._url_of(name)

    def drop(self, url: str) -> None:
        """Drop the database, whoever is still connected to it."""
        self._wait(self._admin.execute(f"DROP DATABASE IF EXISTS {urlsplit(url).path[1:]} WITH (FORCE)"))

    def close(self) -> None:
        self.drop(self._url_of(self._template))
        self._wait(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _make_template(self) -> None:
        await self._admin.execute(f"CREATE DATABASE {self._template}")
        if find_spec("kagzi.store.migrate"):
            await importlib.import_module("kagzi.store.migrate").apply(self._url_of(self._template))

    def _url_of(self, name: str) -> str:
        return urlsplit(self._url)._replace(path=f"/{name}").geturl()

    def _wait(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)


@contextlib.contextmanager
def serve() -> Iterator[Databases]:
    """A server for the whole run: the one KAGZI_TEST_DB_URL names, or one of our own."""
    with contextlib.ExitStack() as stack:
        url = os.environ.get("KAGZI_TEST_DB_URL")
        if not url:
            directory = stack.enter_context(temporary(room()))
            url = stack.enter_context(Embedded(directory, version=version(), settings=BOUNDS)).url
        yield stack.enter_context(contextlib.closing(Databases(url)))


def version() -> Version:
    """The PostgreSQL that tests run on: KAGZI_TEST_POSTGRES, 16 or 18."""
    asked = int(os.environ.get("KAGZI_TEST_POSTGRES") or 18)
    assert asked in (16, 18), "KAGZI_TEST_POSTGRES is 16 or 18"
    return cast("Version", asked)


@contextlib.contextmanager
def temporary(parent: str | None) -> Iterator[Path]:
    """A directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="kagzi-tests-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def room() -> str | None:
    """Where tests make servers and databases: in KAGZI_TEST_DATA_DIR, or in memory if there is plenty.

    A database is 300 files, a server 1,300. Ext4 looks at every recently deleted inode when it makes a new
    one, so that a database took 50 ms at first and 250 ms soon after; in memory it stays at 25 ms. A commit waits
    for the disk for a millisecond, or for twenty. Killing processes loses nothing that was written to memory, so a
    crash is the same crash there.
    """
    return os.environ.get("KAGZI_TEST_DATA_DIR") or (_MEMORY if _memory_is_plenty() else None)


def _memory_is_plenty() -> bool:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists() or not Path(_MEMORY).is_dir():
        return False
    available = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
    return shutil.disk_usage(_MEMORY).free > 2 * 2**30 and int(available.split()[1]) > 4 * 2**20
