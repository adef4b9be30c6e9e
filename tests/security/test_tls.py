"""TLS and mutual TLS of gRPC and HTTP, with certificates made for the test; and no plain listener beyond loopback."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import kagzi
from kagzi import Certificates, Client, Context, Worker, workflow
from kagzi.dashboard.site import Certificate, Site, SiteError
from kagzi.errors import ConfigError, Unavailable
from kagzi.server.app import Server
from kagzi.server.listener import StartError
from kagzi.server.settings import Settings, SettingsError, load
from tests.security.authority import Authority
from tests.security.realm import OPERATOR


@workflow
async def greet(ctx: Context, name: str) -> str:
    return f"hello {name}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def settings(authority: Authority, **more: Any) -> dict[str, Any]:
    own = authority.sign("server")
    return {"server_port": 0, "server_tls_cert": own.cert, "server_tls_key": own.key, **more}


@asynccontextmanager
async def serving(url: str, **given: Any) -> AsyncIterator[Server]:
    server = Server(Settings(**given), url)
    await server.start()
    try:
        yield server
    finally:
        await server.stop(1.0)


async def greeted(server: Server, tls: Any, **more: Any) -> str:
    worker = Worker(server.address, workflows=[greet], tls=tls, **more)
    async with worker, Client(server.address, tls=tls, **more) as client:
        return await client.execute(greet, "you")


async def lost(server: Server, tls: Any) -> Unavailable:
    """What a client is told that cannot speak to the server."""
    async with Client(server.address, tls=tls, patience="0.5s") as client:
        with pytest.raises(Unavailable) as caught:
            await client.handle("00000000-0000-4000-8000-000000000000").describe()
    return caught.value


async def test_runs_go_their_way_over_tls_with_a_key(database_url: str, authority: Authority) -> None:
    given = settings(authority, server_require_keys=True, admin_key=OPERATOR)
    async with serving(database_url, **given) as server:
        assert await greeted(server, Certificates(ca=authority.cert), api_key=OPERATOR) == "hello you"


async def test_who_does_not_trust_the_certificate_or_speaks_plainly_gets_nowhere(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    async with serving(database_url, **settings(authority)) as server:
        await lost(server, None)
        await lost(server, True)
        await lost(server, Certificates(ca=Authority(tmp_path, "another").cert))


async def test_where_clients_must_show_certificates_one_of_our_authority_is_needed(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    ours = authority.sign("client")
    foreign = Authority(tmp_path, "another").sign("client")
    async with serving(database_url, **settings(authority, server_tls_client_ca=authority.cert)) as server:
        assert await greeted(server, Certificates(authority.cert, ours.cert, ours.key)) == "hello you"
        await lost(server, Certificates(ca=authority.cert))
        await lost(server, Certificates(authority.cert, foreign.cert, foreign.key))


async def test_variables_say_how_to_connect(
    database_url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = authority.sign("client")
    for name, value in (("CA", authority.cert), ("CERT", ours.cert), ("KEY", ours.key)):
        monkeypatch.setenv(f"KAGZI_TLS_{name}", str(value))
    async with serving(database_url, **settings(authority, server_tls_client_ca=authority.cert)) as server:
        assert await greeted(server, None) == "hello you"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"KAGZI_TLS": "perhaps"}, "KAGZI_TLS"),
        ({"KAGZI_TLS_CA": "/absent.pem"}, "KAGZI_TLS_CA"),
        ({"KAGZI_TLS_CERT": "/absent.pem"}, "KAGZI_TLS_KEY"),
    ],
    ids=["no answer", "no file", "half a pair"],
)
def test_what_cannot_be_used_is_said_when_the_client_is_made(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        Client()
    with pytest.raises(ConfigError, match=said):
        Worker(workflows=[greet])


async def test_pages_come_over_tls_and_reach_a_server_behind_it(database_url: str, authority: Authority) -> None:
    own = authority.sign("server")
    ours = authority.sign("browser")
    given = settings(authority, server_tls_client_ca=authority.cert, server_require_keys=True, admin_key=OPERATOR)
    async with serving(database_url, **given) as server:
        site = Site(server.reachable_at, port=0, certificate=Certificate(own.cert, own.key, authority.cert))
        await site.start()
        try:
            trusting = ssl.create_default_context(cafile=str(authority.cert))
            async with httpx.AsyncClient(base_url=site.address, verify=trusting) as nobody:
                with pytest.raises(httpx.TransportError):
                    await nobody.get("/healthz")
            trusting.load_cert_chain(ours.cert, ours.key)
            async with httpx.AsyncClient(base_url=site.address, verify=trusting) as http:
                assert (await http.get("/api/v1/runs")).status_code == 401
                shown = {"authorization": f"Bearer {OPERATOR}"}
                assert (await http.get("/api/v1/runs", headers=shown)).status_code == 200
                answer = await http.get("/signin")
                assert "; secure" in answer.headers["set-cookie"].lower()
        finally:
            await site.stop()


async def test_the_way_of_the_pages_is_closed_to_other_users_and_gone_in_the_end(
    database_url: str, authority: Authority
) -> None:
    async with serving(database_url, **settings(authority)) as server:
        socket = Path(server.reachable_at.removeprefix("unix:"))
        assert socket.is_socket()
        assert socket.parent.stat().st_mode & 0o077 == 0
        assert socket.parent.stat().st_uid == os.getuid()
    assert not socket.parent.exists()


async def test_a_certificate_that_cannot_be_used_is_said(
    database_url: str, authority: Authority, tmp_path: Path
) -> None:
    own, other = authority.sign("server"), authority.sign("other")
    with pytest.raises(StartError, match="KAGZI_SERVER_TLS_CERT"):
        async with serving(database_url, server_port=0, server_tls_cert=own.cert, server_tls_key=other.key):
            pass
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(SiteError, match="KAGZI_SERVER_TLS_CERT"):
        await Site("127.0.0.1:1", port=0, certificate=Certificate(nonsense, own.key)).start()


ANYWHERE = "0.0.0.0"  # noqa: S104 - refused, or with all that it takes


def test_beyond_loopback_nothing_listens_without_tls_and_keys(authority: Authority) -> None:
    full = settings(authority)
    for host in ("server_host", "http_host"):
        refused: list[dict[str, Any]] = [
            {},
            {"server_require_keys": True},
            {**full, "server_require_keys": False},
        ]
        for flags in refused:
            with pytest.raises(SettingsError, match="is not loopback"):
                load({host: ANYWHERE, **flags})
        assert load({host: ANYWHERE, **full}).keys_required
        assert not load({host: ANYWHERE, "server_insecure": True}).keys_required
        assert load({host: ANYWHERE, "server_insecure": True, "server_require_keys": True}).keys_required


def test_on_loopback_keys_are_for_who_asks_for_them() -> None:
    assert not load().keys_required
    assert load({"server_require_keys": True}).keys_required


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("KAGZI_SERVER_TLS_CERT", "/absent.pem"),
        ("KAGZI_SERVER_TLS_KEY", __file__),
        ("KAGZI_SERVER_TLS_CLIENT_CA", __file__),
        ("KAGZI_HTTP_TLS_CLIENT_CA", __file__),
        ("KAGZI_ADMIN_KEY", "hunter2"),
    ],
    ids=lambda given: given if given.startswith("KAGZI") else "",
)
def test_what_is_half_set_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert "KAGZI_" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_front_door_has_certificates() -> None:
    assert kagzi.Certificates is Certificates
