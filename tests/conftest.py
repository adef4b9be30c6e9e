"""What every test may ask for: a fresh database with the current schema, or a private server to crash."""

import gc
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from kagzi.embedded import Embedded
from tests.database import BOUNDS, Databases, room, serve, temporary, version

# As uuid4 and uuid7 make them.
_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The processes that share the tests out among them know each by its name, and take the files in this order: what
    is long comes first, so that none is left alone with it at the end.
    """
    long = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in long)
    for item in items:
        if _RANDOM.search(item.nodeid):
            message = f"{item.nodeid} has another name in every process: give its parameters ids=..."
            raise pytest.UsageError(message)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector looks through it no more. With a
    thousand tests a look took 0.2 s, and some tests ask for one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logs_as_found() -> Iterator[None]:
    """What a test does to the logs is not the next one's."""
    told = structlog.is_configured()
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    # A command that ran inside writes to what stood for its stderr, which is closed by now.
    root.handlers[:] = handlers
    if not told:
        structlog.reset_defaults()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """The databases of this run's one server, for tests that need several."""
    with serve() as databases:
        yield databases


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A database of this test's own, with the current schema and nothing in it."""
    url = databases.create()
    yield url
    databases.drop(url)


@pytest.fixture(scope="session")
def _new_cluster() -> Iterator[Path]:
    with temporary(room()) as directory:
        with Embedded(directory, version=version()):
            pass
        yield directory


@pytest.fixture
def data_directory(_new_cluster: Path) -> Iterator[Path]:
    """The directory of an embedded server that was made and stopped: a copy, much quicker than making one."""
    with temporary(room()) as parent:
        subprocess.run(["cp", "-a", _new_cluster, parent / "data"], check=True)
        yield parent / "data"


@pytest.fixture
def postgres(data_directory: Path) -> Iterator[Embedded]:
    """A running server of this test's own, to be stopped, crashed and restarted. Its database is empty."""
    with Embedded(data_directory, version=version(), settings=BOUNDS) as server:
        yield server
        # A server that a test left crashed holds shared memory until the next start finds and frees it.
        server.start()
