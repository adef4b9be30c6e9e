"""TCP on loopback, on request, with a password."""

import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from kagzi.embedded import Embedded


async def test_the_url_names_a_loopback_port_and_the_password(place: Path) -> None:
    async with Embedded(place, tcp_port=0) as server:
        where = urlsplit(server.url)
        assert where.hostname == "127.0.0.1"
        assert where.password == place.joinpath("password").read_text().strip()
        assert place.joinpath("password").stat().st_mode & 0o777 == 0o600
        connection = await asyncpg.connect(server.url)
        assert await connection.fetchval("SHOW listen_addresses") == "127.0.0.1"
        assert await connection.fetchval("SELECT host(inet_server_addr())") == "127.0.0.1"
        await connection.close()


async def test_a_connection_without_the_password_is_refused(place: Path) -> None:
    async with Embedded(place, tcp_port=0) as server:
        port = urlsplit(server.url).port
        for password in ("", "wrong"):
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(
                    host="127.0.0.1",
                    port=port,
                    user="kagzi",
                    password=password,
                    database="kagzi",
                    passfile=os.devnull,
                )


async def test_the_port_and_the_password_stay_the_same_over_a_restart(place: Path) -> None:
    async with Embedded(place, tcp_port=0) as server:
        url = server.url
        server.restart(immediate=True)
        assert server.url == url
        await (await asyncpg.connect(url)).close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with Embedded(place, tcp_port=port) as server:
        assert urlsplit(server.url).port == port
        assert urlsplit(server.url).password == urlsplit(url).password


async def test_without_a_port_nothing_listens_on_tcp(postgres: Embedded) -> None:
    connection = await asyncpg.connect(postgres.url)
    assert await connection.fetchval("SHOW listen_addresses") == ""
    await connection.close()
