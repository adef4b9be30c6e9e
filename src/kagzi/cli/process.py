"""How a command runs until it is told to stop: on uvloop where it exists, with SIGTERM and SIGINT as the ordinary way
to end. The first signal ends the work in order and the command with 0; a second one ends the process at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kagzi.dashboard.site import Site
    from kagzi.server.app import Server
    from kagzi.server.settings import Settings

T = TypeVar("T")

# What closing may take beyond the time that calls under way are given.
_CLOSING_SECS = 3.5
# New objects before the collector looks for cycles among them. Python's 700 are fewer than a single frame brings, which
# is all alive until it is answered: looking so often took a tenth of a busy worker's time and found nothing.
_YOUNG = 20_000


def run(work: Coroutine[object, object, T]) -> T:
    """Runs to the end and answers."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def stays() -> None:
    """Says that the process has loaded what it needs and lives on: that is not looked through for garbage again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)


async def until_signalled(work: Callable[[], Awaitable[None]]) -> None:
    """Does `work`, which is cancelled by the first signal and then closes what it opened."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signals = (signal.SIGTERM, signal.SIGINT)
    told = False

    def end() -> None:
        nonlocal told
        told = True
        for number in signals:
            loop.remove_signal_handler(number)
        task.cancel()

    for number in signals:
        loop.add_signal_handler(number, end)
    try:
        await work()
    except asyncio.CancelledError:
        if not told:
            raise
        task.uncancel()


@contextlib.asynccontextmanager
async def database(settings: Settings, *, up_to_date: bool = True) -> AsyncIterator[str]:
    """The address of the database: the one the settings name, left as it is, else an embedded PostgreSQL."""
    if settings.db_url is not None:
        yield settings.db_url
        return
    from kagzi.embedded import Embedded
    from kagzi.store import migrate

    async with Embedded(settings.data_dir) as embedded:
        if up_to_date:
            await migrate.apply(embedded.url)
        yield embedded.url


async def serve(settings: Settings, url: str, ready: Callable[[Server, Site], None]) -> None:
    """Serves until it is cancelled, gRPC and HTTP; `ready` is called once both do."""
    from kagzi.dashboard.site import Certificate, Site
    from kagzi.server.app import Server

    cert, key = settings.server_tls_cert, settings.server_tls_key
    server = Server(settings, url)
    await server.start()
    site = Site(
        server.reachable_at,
        host=settings.http_host,
        port=settings.web_port,
        allowed_hosts=[name.strip() for name in settings.http_allowed_hosts.split(",") if name.strip()],
        metrics=server.meters.scrape,
        open_metrics=not settings.keys_required,
        certificate=Certificate(cert, key, settings.http_tls_client_ca) if cert and key else None,
    )
    try:
        await site.start()
        stays()
        ready(server, site)
        await asyncio.Event().wait()
    finally:
        async with asyncio.timeout(settings.server_drain_timeout_secs + _CLOSING_SECS):
            await site.stop()
            await server.stop()
