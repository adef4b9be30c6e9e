"""The calls of NamespaceService that make, list and revoke keys. A secret is in one answer and nowhere else; no key is
made twice with one id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import uuid_utils

from kagzi.protocol.v1 import namespace_pb2 as pb
from kagzi.protocol.v1.namespace_pb2_grpc import NamespaceServiceServicer
from kagzi.server.api import checks
from kagzi.store import keys, rows
from kagzi.store.database import Database
from kagzi.store.keys import Key

Context = grpc.aio.ServicerContext[Any, Any]

_ROLE_NAMES: dict[int, str] = {
    number: name.removeprefix("KEY_").lower() for name, number in pb.KeyRole.items() if number
}
_ROLES = {name.removeprefix("KEY_").lower(): number for name, number in pb.KeyRole.items() if number}


class Keys(NamespaceServiceServicer):
    """Keeps the keys. `revoked` is told the namespace and id of each that ends here."""

    def __init__(self, database: Database, revoked: Callable[[str, str], None]) -> None:
        self._database = database
        self._revoked = revoked

    async def CreateKey(self, request: pb.CreateKeyRequest, context: Context) -> pb.CreateKeyResponse:
        namespace = checks.namespace(request.namespace)
        key_id = checks.uuid(request.key_id, "key_id", required=False) or str(uuid_utils.uuid7())
        name = checks.name(request.name, "name", default="")
        role = _ROLE_NAMES[checks.enum(request.role, pb.KeyRole, "role", required=True)]
        secret = keys.new_secret(namespace, key_id)
        made = await self._database.transact(lambda c: keys.create(c, namespace, key_id, secret, name=name, role=role))
        return pb.CreateKeyResponse(key=_key(made), secret=secret)

    async def ListKeys(self, request: pb.ListKeysRequest, context: Context) -> pb.ListKeysResponse:
        namespace = checks.namespace(request.namespace)
        scope = checks.scope(request, namespace)
        page = checks.page(request.page_size, request.page_token, scope)
        before = page.key(checks.moment_and_id, None)
        found = await self._database.read(
            lambda c: keys.list_page(c, namespace, most=page.size + 1, before=before, revoked=request.include_revoked)
        )
        shown = [_key(one) for one in found[: page.size]]
        token = ""
        if len(found) > page.size:
            token = checks.page_token(scope, (shown[-1].created_at.ToMicroseconds(), shown[-1].key_id))
        return pb.ListKeysResponse(keys=shown, next_page_token=token)

    async def RevokeKey(self, request: pb.RevokeKeyRequest, context: Context) -> pb.RevokeKeyResponse:
        namespace = checks.namespace(request.namespace)
        key_id = checks.uuid(request.key_id, "key_id")
        ended = await self._database.transact(lambda c: keys.revoke(c, namespace, key_id))
        self._revoked(namespace, key_id)
        return pb.RevokeKeyResponse(key=_key(ended))


def _key(key: Key) -> pb.ApiKey:
    return pb.ApiKey(
        key_id=key.key_id,
        namespace=key.namespace,
        name=key.name,
        role=_ROLES[key.role],
        prefix=key.prefix,
        created_at=rows.timestamp(key.created_at),
        revoked_at=rows.timestamp(key.revoked_at),
    )
