"""A server in this process and a client of it, for tests that speak to it by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kagzi import Client
from kagzi.server.app import Server
from tests.sdk.serving import serving


@pytest.fixture
async def server(database_url: str) -> AsyncIterator[Server]:
    async with serving(database_url) as server:
        yield server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.address) as client:
        yield client
