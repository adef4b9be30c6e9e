"""Where the suite finds its servers. KAGZI_CONFORMANCE_URL names one, host:port, KAGZI_CONFORMANCE_SECOND_URL one on
the same database, and KAGZI_CONFORMANCE_DB_URL that database, for tests that show that nothing was written. Otherwise
the suite starts its own, as processes on a fresh database, behind PgBouncer with KAGZI_TEST_POOLER. Each test has a
queue of its own: servers may be shared.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bouncer import Bouncer
from tests.conformance.contract import Contract
from tests.conformance.place import Place
from tests.conformance.servers import ServerProcess
from tests.database import Databases

# A lease that a test can wait for.
_HASTY = {
    "worker_visibility_timeout_secs": 1.5,
    "coordinator_worker_stale_threshold_secs": 2,
    "coordinator_interval_secs": 0.25,
}


class Servers:
    """The servers of a run, each started when it is first asked for."""

    def __init__(self, databases: Databases, directory: Path, stack: ExitStack) -> None:
        self.database_url = os.environ.get("KAGZI_CONFORMANCE_DB_URL")
        self._given = [
            os.environ[name]
            for name in ("KAGZI_CONFORMANCE_URL", "KAGZI_CONFORMANCE_SECOND_URL")
            if os.environ.get(name)
        ]
        self._databases = databases
        self._directory = directory
        self._stack = stack
        self._started: list[str] = []
        self._hasty = ""
        self._pooler: Bouncer | None = None

    def first(self, count: int) -> tuple[str, ...]:
        """The addresses of so many servers on one database."""
        if self._given:
            if len(self._given) < count:
                pytest.skip("KAGZI_CONFORMANCE_SECOND_URL names no second server")
            return tuple(self._given[:count])
        if self.database_url is None:
            self.database_url = self._databases.create()
            self._stack.callback(self._databases.drop, self.database_url)
        while len(self._started) < count:
            name = f"server-{len(self._started) + 1}"
            self._started.append(self._start(name, self.database_url, coordinator_interval_secs=0.25))
        return tuple(self._started[:count])

    def hasty(self) -> str:
        """The address of a server whose leases are short; the given one, as it is, when one was given."""
        if self._given:
            return self._given[0]
        if not self._hasty:
            url = self._databases.create()
            self._stack.callback(self._databases.drop, url)
            self._hasty = self._start("hasty", url, **_HASTY)
        return self._hasty

    def _start(self, name: str, url: str, **settings: object) -> str:
        if os.environ.get("KAGZI_TEST_POOLER"):
            settings |= {"db_listen_url": url, "db_statement_cache_size": 0}
            self._pooler = self._pooler or self._stack.enter_context(Bouncer(url))
            url = self._pooler.through(url)
        return self._stack.enter_context(ServerProcess(url, self._directory / name, **settings)).address


@pytest.fixture(scope="session")
def servers(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(databases, tmp_path_factory.mktemp("servers"), stack)


@pytest.fixture(params=[1, 2], ids=["one server", "two servers"])
async def place(request: pytest.FixtureRequest, servers: Servers) -> AsyncIterator[Place]:
    """A queue of this test's own, on one server and again on two that take turns."""
    async with Contract(*servers.first(request.param)) as contract:
        yield Place(contract)


@pytest.fixture
async def quiet(servers: Servers) -> AsyncIterator[Place]:
    """A queue of this test's own on one server, for what cannot depend on their number."""
    async with Contract(*servers.first(1)) as contract:
        yield Place(contract)


@pytest.fixture
async def hasty(servers: Servers) -> AsyncIterator[Place]:
    """A queue of this test's own on a server whose leases are short."""
    async with Contract(servers.hasty()) as contract:
        yield Place(contract)
