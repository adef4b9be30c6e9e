"""One realm for the tests of a file. It ends with the file: gRPC gets in the way of forks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.database import Databases
from tests.security.realm import Realm


@pytest.fixture(scope="module")
def realm(databases: Databases) -> Iterator[Realm]:
    url = databases.create()
    realm = Realm(url)
    yield realm
    realm.close()
    databases.drop(url)
