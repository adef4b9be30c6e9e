"""Places for servers that a test makes itself. Here they are of the version that whoever names none gets, whatever the
other rooms run on: that is what these tests are about.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kagzi.embedded import Embedded
from tests.database import BOUNDS, room, temporary


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory that is gone after the test, because each server takes 50 MB."""
    with temporary(room()) as directory:
        yield directory


@pytest.fixture(scope="session")
def _new_cluster() -> Iterator[Path]:
    with temporary(room()) as directory:
        with Embedded(directory):
            pass
        yield directory


@pytest.fixture
def postgres(data_directory: Path) -> Iterator[Embedded]:
    """A running server of this test's own, to be stopped, crashed and restarted."""
    with Embedded(data_directory, settings=BOUNDS) as server:
        yield server
        server.start()
