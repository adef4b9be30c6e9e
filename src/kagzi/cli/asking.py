"""How a command makes a call of the contract that no client class has: by its name, with the fields that are given, and
with the answer as the HTTP API writes it. It tries again for a moment, goes to the next server, and ends the command
with one line when something known goes wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from kagzi.cli.remote import answered, end

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from kagzi.sdk.servers import Server

_PATIENCE = 5.0
_PAGE = 100


class Asking:
    """One command's way to the servers."""

    def __init__(self, url: str | None, namespace: str | None, *, patience: float | None = None) -> None:
        from kagzi.sdk import calls
        from kagzi.sdk.blocking import Thread
        from kagzi.sdk.certificates import resolve_tls
        from kagzi.sdk.servers import Servers

        key = calls.resolve_api_key()
        self.namespace = calls.resolve_namespace(namespace, key)
        self._servers = Servers(calls.resolve_target(url), api_key=key, tls=resolve_tls())
        self._thread = Thread()
        self._patience = _PATIENCE if patience is None else patience

    @property
    def target(self) -> str:
        """The server that was asked last."""
        return self._servers.current.target

    def call(self, rpc: str, /, **given: Any) -> dict[str, Any]:
        """Makes the call "Service.Method" in the namespace, unless another is given."""
        from kagzi.dashboard.api import values
        from kagzi.dashboard.gateway import method

        kind = method(rpc).input_type
        request = values.new(kind)
        own = {"namespace": self.namespace} if "namespace" in kind.fields_by_name else {}
        values.fill(request, own | {name: value for name, value in given.items() if value is not None})
        return values.to_json(self.send(rpc, request))

    def send(self, rpc: str, request: Message) -> Any:
        """Makes the call with a request that is made already; answers the message."""
        from importlib import import_module

        from kagzi.dashboard.gateway import method

        service, _, name = rpc.partition(".")
        stubs = import_module(f"{method(rpc).containing_service.file.name[:-6].replace('/', '.')}_pb2_grpc")
        stub = getattr(stubs, f"{service}Stub")

        def chosen(server: Server) -> Any:
            return getattr(stub(server.channel), name)

        return self._thread.run(self._servers.ask(chosen, request, patience=self._patience))

    def each(self, rpc: str, field: str, limit: int | None = None, /, **given: Any) -> list[dict[str, Any]]:
        """What a list holds, page by page, up to `limit`."""
        return list(islice(self._pages(rpc, field, given), limit))

    def _pages(self, rpc: str, field: str, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        token = ""
        while True:
            page = self.call(rpc, **given, page_size=_PAGE, page_token=token)
            yield from page[field]
            token = page["next_page_token"]
            if not token:
                return

    def close(self) -> None:
        """Ends the connections."""
        self._thread.run(self._servers.close())
        self._thread.stop()


@contextmanager
def asking(url: str | None, namespace: str | None) -> Iterator[Asking]:
    """The way to the servers for one command."""
    from kagzi.dashboard.api.values import Misfit

    with answered():
        asked = Asking(url, namespace)
        try:
            yield asked
        except Misfit as error:
            end(str(error))
        finally:
            asked.close()
