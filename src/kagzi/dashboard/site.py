"""One web server for pages, HTTP API, metrics and health, on a socket of its own. It is a client of one Kagzi server
and holds nothing that a restart could lose. Whoever starts it stops it; open event streams end first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse

from kagzi.dashboard import problems
from kagzi.dashboard.api.router import router
from kagzi.dashboard.credentials import of_program
from kagzi.dashboard.gateway import Gateway
from kagzi.dashboard.guard import Guard
from kagzi.dashboard.pages import routes
from kagzi.dashboard.pages.frame import Frame
from kagzi.protocol.v1 import admin_pb2 as pb
from kagzi.protocol.v1.namespace_pb2 import KEY_ADMIN
from kagzi.sdk.certificates import Tls
from kagzi.sdk.errors import ServerError

# What Prometheus reads, and how that is to be called.
Metrics = Callable[[], Awaitable[tuple[bytes, str]]]

_STOP_SECS = 2


class SiteError(Exception):
    """The site cannot start; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM: what browsers are shown and, if they must show one too, who signs theirs."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Site:
    """Pages and API for the server at `target`. `metrics` answers what this process counts, to admins alone unless they
    are open: where no keys are used, they are there also while the database is not.
    """

    def __init__(
        self,
        target: str,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        allowed_hosts: Collection[str] = (),
        metrics: Metrics | None = None,
        open_metrics: bool = False,
        tls: Tls = None,
        certificate: Certificate | None = None,
    ) -> None:
        self._target = target
        self._host = host
        self._port = port
        self._allowed_hosts = (host, *allowed_hosts)
        self._metrics = metrics
        self._open_metrics = open_metrics
        self._tls = tls
        self._certificate = certificate
        self._gateway: Gateway | None = None
        self._frame: Frame | None = None
        self._web: _Web | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where browsers find it; the port is the bound one once it has started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._certificate is None else 'https'}://{host}:{self._port}"

    async def start(self) -> None:
        """Serves when it returns. SiteError when the port cannot be had, or the certificate cannot be used."""
        listener = self._bind()
        self._gateway = Gateway(self._target, tls=self._tls)
        self._frame = Frame(self._gateway)
        app = Guard(self._application(self._gateway, self._frame), self._allowed_hosts)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_STOP_SECS,
        )
        try:
            _show(self._certificate, config)
        except SiteError:
            listener.close()
            await self._gateway.close()
            raise
        self._web = _Web(config)
        self._serving = asyncio.create_task(self._web.serve([listener]), name="kagzi-site")
        await self._web.ready.wait()

    async def stop(self) -> None:
        """Ends what is open and closes everything."""
        if self._frame is not None:
            self._frame.live.stop()
        if self._web is not None and self._serving is not None:
            self._web.should_exit = True
            await self._serving
        if self._gateway is not None:
            await self._gateway.close()

    def _application(self, server: Gateway, frame: Frame) -> FastAPI:
        return application(server, frame, self._metrics, open_metrics=self._open_metrics)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # With the protocol said aloud: asyncio turns Nagle's delay off, 40 ms an answer, for sockets that say it alone.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self._host, self._port))
        except OSError as error:
            listener.close()
            raise SiteError(
                f"cannot listen on {self.address}: {error.strerror or error}. Another process may have the port: stop "
                "it, or choose another one (KAGZI_HTTP_PORT)"
            ) from None
        self._port = listener.getsockname()[1]
        return listener


def _show(certificate: Certificate | None, config: uvicorn.Config) -> None:
    """Makes a web server speak TLS."""
    if certificate is None:
        return
    config.ssl_certfile, config.ssl_keyfile = str(certificate.cert), str(certificate.key)
    if certificate.client_ca is not None:
        config.ssl_ca_certs, config.ssl_cert_reqs = str(certificate.client_ca), ssl.CERT_REQUIRED
    try:
        config.load()
    except (OSError, ValueError) as error:
        message = f"the certificate cannot be used ({error}): see KAGZI_SERVER_TLS_CERT and KAGZI_HTTP_TLS_CLIENT_CA"
        raise SiteError(message) from None


def application(
    server: Gateway, frame: Frame, metrics: Metrics | None = None, *, open_metrics: bool = False
) -> FastAPI:
    """Everything that is served."""
    app = FastAPI(
        title="Kagzi",
        version=version("kagzi"),
        description="Durable workflows. Everything a client can do, as JSON over HTTP.",
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    problems.install(app)
    app.include_router(router(server))
    _vitals(app, server)
    _measures(app, server, metrics, open_metrics)
    routes.install(app, frame)
    return app


def _vitals(app: FastAPI, server: Gateway) -> None:
    """What machines ask: alive and ready."""

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> PlainTextResponse:
        return PlainTextResponse("alive\n")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> PlainTextResponse:
        try:
            told = await server.call("AdminService.HealthCheck", pb.HealthCheckRequest(), None)
        except ServerError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        assert isinstance(told, pb.HealthCheckResponse)
        lines = [f"{check.name}: {check.message or 'well'}\n" for check in told.checks]
        return PlainTextResponse("".join(lines), 503 if told.status == pb.HEALTH_NOT_SERVING else 200)


def _measures(app: FastAPI, server: Gateway, metrics: Metrics | None, open_to_all: bool) -> None:
    """How it goes. What a process counts is of all namespaces."""

    @app.get("/metrics", include_in_schema=False)
    async def scrape(request: Request) -> Response:
        if not open_to_all:
            told = await server.call("AdminService.GetServerInfo", pb.GetServerInfoRequest(), of_program(request))
            assert isinstance(told, pb.GetServerInfoResponse)
            if told.role != KEY_ADMIN:
                raise problems.Problem("PERMISSION_DENIED", "metrics need a key with the role admin")
        if metrics is None:
            return PlainTextResponse("this process counts nothing\n", 404)
        text, media_type = await metrics()
        return Response(text, media_type=media_type)


class _Web(uvicorn.Server):
    """uvicorn within somebody else's process: signals are not its business."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()
