"""What a client and its handles share: the servers, the namespace, the codecs, the gathered starts and the one watch.
Requests that change something are tried again for as long as the client is patient; looks give up sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grpc

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.sdk import duration
from kagzi.sdk.calls import resolve_api_key, resolve_namespace, resolve_target
from kagzi.sdk.certificates import Tls, resolve_tls
from kagzi.sdk.codec import Chain, Codec, Role
from kagzi.sdk.duration import Duration
from kagzi.sdk.servers import Server, Servers
from kagzi.sdk.starts import Starts
from kagzi.sdk.values import Values
from kagzi.sdk.watch import Watch

Request = TypeVar("Request")
Response = TypeVar("Response")

# A look is made again by whoever looks; nothing is lost by saying soon that nobody is there.
_LOOK_SECS = 5.0


class Reach:
    """One client's way to its servers."""

    def __init__(
        self,
        url: str | None,
        namespace: str | None,
        api_key: str | None,
        *,
        codecs: Sequence[Codec],
        tls: Tls,
        patience: Duration,
    ) -> None:
        key = resolve_api_key(api_key)
        self.namespace = resolve_namespace(namespace, key)
        self.codecs = Chain(codecs)
        self.patience = duration.named(patience, "patience").total_seconds()
        self.servers = Servers(resolve_target(url), api_key=key, tls=resolve_tls(tls))
        self.starts = Starts(self.servers, self.namespace, self.patience)
        self.watch = Watch(self.servers, self.namespace, self.patience)

    async def change(
        self, method: Callable[[Server], grpc.aio.UnaryUnaryMultiCallable[Request, Response]], request: Request
    ) -> Response:
        """Asks for a change whose repetition is recognised."""
        return await self.servers.ask(method, request, patience=self.patience)

    async def look(
        self, method: Callable[[Server], grpc.aio.UnaryUnaryMultiCallable[Request, Response]], request: Request
    ) -> Response:
        """Asks how something is."""
        return await self.servers.ask(method, request, patience=min(self.patience, _LOOK_SECS))

    def encode(self, value: Any, annotation: Any, workflow_type: str, role: Role) -> Payload:
        """A value of a run of this type, as it is stored."""
        return Values(self.codecs, self.namespace, workflow_type).encode(value, annotation, role)

    def decode(self, stored: Payload | None, annotation: Any, workflow_type: str, role: Role) -> Any:
        """A stored value of a run of this type; None when nothing is stored."""
        return Values(self.codecs, self.namespace, workflow_type).decode(stored, annotation, role)

    async def close(self) -> None:
        """Ends everything."""
        await self.starts.close()
        await self.watch.close()
        await self.servers.close()
