"""One place for the tests of a file, and a namespace for each. It ends with the file: gRPC gets in the way of
forks, and other tests start programs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard.place import Place, Space
from tests.database import Databases


@pytest.fixture(scope="module")
def place(databases: Databases) -> Iterator[Place]:
    url = databases.create()
    place = Place(url)
    yield place
    place.close()
    databases.drop(url)


@pytest.fixture
def space(place: Place) -> Space:
    return place.space()
