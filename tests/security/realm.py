"""A server that asks for keys, with its site, and calls of it by anybody: with a key, with a wrong one, with none."""

from __future__ import annotations

from typing import Any, cast

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status

from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.roles import Role
from tests.conformance import specimens
from tests.conformance.contract import Contract
from tests.conformance.execution import new_id
from tests.conformance.place import Place as Queue
from tests.dashboard.place import Place

OPERATOR = "operator-0123456789-0123456789-0123456789"
HOME = "shop"
ELSEWHERE = "bank"
REFUSALS = (ErrorDetail.UNAUTHORIZED, ErrorDetail.PERMISSION_DENIED)


class Realm:
    """One server, two namespaces, and a key of every role in one of them."""

    def __init__(self, database_url: str, **settings: Any) -> None:
        self.place = Place(database_url, server_require_keys=True, admin_key=OPERATOR, **settings)
        self.channel = grpc.insecure_channel(self.place.server.address)
        for name in (HOME, ELSEWHERE):
            self.must("NamespaceService/CreateNamespace", ns.CreateNamespaceRequest(name=name), OPERATOR)
        self.keys = {role: self.key(role) for role in Role if role}

    def close(self) -> None:
        self.channel.close()
        self.place.close()

    def key(self, role: Role, namespace: str = HOME) -> str:
        """The secret of a new key."""
        return self.made(role, namespace).secret

    def made(self, role: Role, namespace: str = HOME) -> ns.CreateKeyResponse:
        request = ns.CreateKeyRequest(namespace=namespace, role=role.value)
        return cast(ns.CreateKeyResponse, self.must("NamespaceService/CreateKey", request, OPERATOR))

    def revoke(self, key: ns.ApiKey) -> None:
        request = ns.RevokeKeyRequest(namespace=key.namespace, key_id=key.key_id)
        self.must("NamespaceService/RevokeKey", request, OPERATOR)

    def must(self, call: str, request: Message, key: str | None) -> Message:
        """The answer to a call that must be allowed."""
        kind = next(one.output_type for one in specimens.methods() if specimens.short(one) == call)
        answer = self._method(call)(request.SerializeToString(), timeout=20, metadata=shown(key))
        return message_factory.GetMessageClass(kind).FromString(answer)

    def refusal(self, call: str, request: Message | bytes, key: str | None) -> ErrorDetail | None:
        """Why a call is refused; None when it is not."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            self._method(call)(data, timeout=20, metadata=shown(key))
        except grpc.RpcError as error:
            return detail(error)
        return None

    def _method(self, call: str) -> Any:
        return self.channel.unary_unary(f"/kagzi.v1.{call}")


def shown(key: str | None) -> tuple[tuple[str, str], ...]:
    return () if key is None else (("authorization", f"Bearer {key}"),)


def detail(error: Any) -> ErrorDetail:
    """What the server said, which always comes with the status that fits."""
    metadata = {str(key): value for key, value in error.trailing_metadata()}
    found = ErrorDetail()
    assert Status.FromString(metadata["grpc-status-details-bin"]).details[0].Unpack(found)
    return found


def requests(namespace: str) -> dict[str, Message]:
    """A good request of every unary call, in a namespace."""
    queue = Queue(cast(Contract, None), namespace)
    held = pb.Held(run_id=new_id(), claim_token=new_id())
    made = ns.CreateNamespaceRequest(name=namespace)
    return {**specimens.of_everybody(queue, new_id(), held), "NamespaceService/CreateNamespace": made}


def unary() -> list[MethodDescriptor]:
    return [method for method in specimens.methods() if not method.client_streaming]
