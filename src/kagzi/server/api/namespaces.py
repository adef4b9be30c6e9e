"""NamespaceService: the rooms that keep the work of different owners apart, and the keys that open them. Each method
checks its request, asks the store one thing and answers; errors are mapped by the interceptor.
"""

from __future__ import annotations

from typing import Any

import grpc

from kagzi.protocol.v1 import namespace_pb2 as pb
from kagzi.server.api import checks
from kagzi.server.api.keys import Keys
from kagzi.server.credential import only_namespace
from kagzi.store import namespaces, rows
from kagzi.store.namespaces import Namespace, Retention

Context = grpc.aio.ServicerContext[Any, Any]

_DESCRIPTION_BYTES = 2_000


class Namespaces(Keys):
    """Creates, shows and changes namespaces."""

    async def CreateNamespace(self, request: pb.CreateNamespaceRequest, context: Context) -> pb.CreateNamespaceResponse:
        name = checks.name(request.name, "name")
        description = checks.text(request.description, "description", _DESCRIPTION_BYTES)
        retention = _retention(request)
        made, new = await self._database.transact(
            lambda c: namespaces.create(c, name, description=description, retention=retention)
        )
        return pb.CreateNamespaceResponse(namespace=_namespace(made), already_exists=not new)

    async def GetNamespace(self, request: pb.GetNamespaceRequest, context: Context) -> pb.GetNamespaceResponse:
        name = _name(request)
        found = await self._database.read(lambda c: namespaces.get(c, name, field="name"))
        return pb.GetNamespaceResponse(namespace=_namespace(found))

    async def ListNamespaces(self, request: pb.ListNamespacesRequest, context: Context) -> pb.ListNamespacesResponse:
        enabled = request.enabled if request.HasField("enabled") else None
        scope = f"{request.DESCRIPTOR.full_name}\0{enabled}"
        page = checks.page(request.page_size, request.page_token, scope)
        after = page.key(lambda name: checks.name(name, "name"), "")
        only = only_namespace()
        found = await self._database.read(
            lambda c: namespaces.list_page(c, most=page.size + 1, after=after, enabled=enabled, only=only)
        )
        shown = found[: page.size]
        token = checks.page_token(scope, (shown[-1].name,)) if len(found) > page.size else ""
        return pb.ListNamespacesResponse(namespaces=[_namespace(one) for one in shown], next_page_token=token)

    async def UpdateNamespace(self, request: pb.UpdateNamespaceRequest, context: Context) -> pb.UpdateNamespaceResponse:
        name = _name(request)
        description = None
        if request.HasField("description"):
            description = checks.text(request.description, "description", _DESCRIPTION_BYTES)
        retention = _retention(request)
        changed = await self._database.transact(
            lambda c: namespaces.update(c, name, description=description, retention=retention)
        )
        return pb.UpdateNamespaceResponse(namespace=_namespace(changed))

    async def EnableNamespace(self, request: pb.EnableNamespaceRequest, context: Context) -> pb.EnableNamespaceResponse:
        name = _name(request)
        changed = await self._database.transact(lambda c: namespaces.enable(c, name))
        return pb.EnableNamespaceResponse(namespace=_namespace(changed))

    async def DisableNamespace(
        self, request: pb.DisableNamespaceRequest, context: Context
    ) -> pb.DisableNamespaceResponse:
        name = _name(request)
        changed, running = await self._database.transact(lambda c: namespaces.disable(c, name))
        return pb.DisableNamespaceResponse(namespace=_namespace(changed), running=running)


def _name(request: Any) -> str:
    return checks.name(request.name, "name", default="default")


def _retention(request: pb.CreateNamespaceRequest | pb.UpdateNamespaceRequest) -> Retention | None:
    if not request.HasField("retention"):
        return None
    given = request.retention
    kept = {field.name: checks.duration_ms(value, f"retention.{field.name}") for field, value in given.ListFields()}
    return Retention(**kept)


def _namespace(namespace: Namespace) -> pb.Namespace:
    kept = namespace.retention
    return pb.Namespace(
        name=namespace.name,
        description=namespace.description,
        enabled=namespace.enabled,
        retention=pb.Retention(
            completed_ms=kept.completed_ms,
            failed_ms=kept.failed_ms,
            cancelled_ms=kept.cancelled_ms,
            events_ms=kept.events_ms,
        ),
        created_at=rows.timestamp(namespace.created_at),
        updated_at=rows.timestamp(namespace.updated_at),
    )
