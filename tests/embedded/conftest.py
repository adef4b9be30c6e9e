"""A place for servers that a test makes itself."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty directory that is gone after the test: each server takes 50 MB."""
    directory = tmp_path / "place"
    directory.mkdir()
    yield directory
    shutil.rmtree(directory)
