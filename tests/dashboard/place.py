"""A server with its site, and a worker, in a thread of their own: tests of pages and API speak to them as anybody does,
over sockets. One place serves many tests, each in a namespace of its own.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from kagzi.dashboard.site import Site
from kagzi.sdk.client import Client
from kagzi.sdk.worker import Worker
from kagzi.server.app import Server
from kagzi.server.settings import Settings

T = TypeVar("T")


class Place:
    """Where it all runs."""

    def __init__(self, database_url: str, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="place", daemon=True)
        self._thread.start()
        self.database_url = database_url
        self._spaces: list[Space] = []
        self.server, self.site = self.do(self._start(Settings(server_port=0, **settings)))
        self.url = self.site.address

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something on the loop of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        for space in self._spaces:
            space.http.close()
        self.do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def space(self, further: str = "") -> Space:
        """A namespace that nobody else uses, whose name ends as said."""
        made = Space(self, f"space-{uuid.uuid4().hex[:8]}{further}")
        self._spaces.append(made)
        return made

    async def _start(self, settings: Settings) -> tuple[Server, Site]:
        server = Server(settings, self.database_url)
        await server.start()
        site = Site(server.address, port=0, metrics=server.meters.scrape)
        await site.start()
        return server, site

    async def _stop(self) -> None:
        await self.site.stop()
        await self.server.stop(1.0)


class Space:
    """A namespace, and HTTP in it."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.http = httpx.Client(base_url=place.url, timeout=30)
        self.api("POST", "/namespaces", json={"name": name})

    def api(self, verb: str, path: str, status: int | None = None, **more: Any) -> Any:
        """What the API answers; `status` is the one it must have."""
        more["params"] = {"namespace": self.name, **more.get("params", {})}
        answer = self.http.request(verb, f"/api/v1{path}", **more)
        expected = {status} if status else {200, 201}
        assert answer.status_code in expected, answer.text
        return answer.json()

    @contextmanager
    def worker(self, *workflows: Any, **more: Any) -> Iterator[None]:
        """A worker of these workflows and automations."""

        async def start() -> Worker:
            made = Worker(self.place.server.address, workflows=workflows, namespace=self.name, **more)
            await made.__aenter__()
            return made

        worker = self.place.do(start())
        try:
            yield
        finally:
            self.place.do(worker.__aexit__(None, None, None))

    def client(self, work: Any) -> Any:
        """Does something with a client of this namespace: `work` is given one."""

        async def use() -> Any:
            async with Client(self.place.server.address, namespace=self.name) as client:
                return await work(client)

        return self.place.do(use())
