"""A place for servers that a test makes itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.database import room, temporary


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty directory that is gone after the test, because each server takes 50 MB."""
    with temporary(room()) as directory:
        yield directory
