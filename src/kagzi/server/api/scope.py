"""Where a request names its namespace, and that it is the one of its key. Requests name it in one place each; what
names it again further inside must be the same, which the servicers hold.
"""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from kagzi.protocol.v1 import namespace_pb2, worker_pb2
from kagzi.server.credential import Credential, denied

# A name that is to be made is never filled in.
_MAKES = namespace_pb2.CreateNamespaceRequest.DESCRIPTOR.full_name


@cache
def place(kind: Descriptor) -> tuple[str, ...]:
    """The path to the namespace of a request; empty when it speaks of none."""
    if kind.full_name == worker_pb2.ConnectRequest.DESCRIPTOR.full_name:
        return ("hello", "worker", "namespace")
    for name in ("namespace", "name"):
        field = kind.fields_by_name.get(name)
        own = name == "namespace" or kind.file.name == namespace_pb2.DESCRIPTOR.name
        if own and field is not None and field.type == FieldDescriptor.TYPE_STRING:
            return (name,)
    return ()


def settle(request: Message, credential: Credential) -> None:
    """Puts a request into the namespace of its key, or refuses it when it names another."""
    if credential.everywhere:
        return
    path = place(request.DESCRIPTOR)
    if not path:
        return
    *outer, name = path
    holder = request
    for part in outer:
        if not holder.HasField(part):
            return
        holder = getattr(holder, part)
    named: str = getattr(holder, name)
    if named == credential.namespace:
        return
    if named:
        message = (
            f"this key opens the namespace {credential.namespace!r} alone: show a key of the one that is asked for"
        )
        raise denied(message, named, ".".join(path))
    if request.DESCRIPTOR.full_name != _MAKES:
        setattr(holder, name, credential.namespace)
