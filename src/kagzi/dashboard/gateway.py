"""The way from HTTP to the server: one channel, every call with the credential of whoever asks, errors as the SDK's. It
keeps no credential and decides nothing: what a caller may do is the server's to say.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from kagzi.protocol.v1 import admin_pb2, automation_pb2, namespace_pb2, schedule_pb2, workflow_pb2
from kagzi.protocol.v1.admin_pb2_grpc import AdminServiceStub
from kagzi.protocol.v1.automation_pb2_grpc import AutomationServiceStub
from kagzi.protocol.v1.namespace_pb2_grpc import NamespaceServiceStub
from kagzi.protocol.v1.schedule_pb2_grpc import WorkflowScheduleServiceStub
from kagzi.protocol.v1.workflow_pb2_grpc import WorkflowServiceStub
from kagzi.sdk import calls
from kagzi.sdk.certificates import Tls

Answer = TypeVar("Answer", bound=Message)

_CALL_SECS = 20.0
_SERVICES: Mapping[str, tuple[Any, type]] = {
    "WorkflowService": (workflow_pb2, WorkflowServiceStub),
    "WorkflowScheduleService": (schedule_pb2, WorkflowScheduleServiceStub),
    "AdminService": (admin_pb2, AdminServiceStub),
    "NamespaceService": (namespace_pb2, NamespaceServiceStub),
    "AutomationService": (automation_pb2, AutomationServiceStub),
}


class _Unary(Protocol):
    async def __call__(self, request: Message, *, timeout: float, metadata: Any) -> Message: ...


class Gateway:
    """Calls of one server, for whoever shows a credential."""

    def __init__(self, target: str, *, tls: Tls = None) -> None:
        self._target = target
        self._channel = calls.channel(target, tls=tls)
        self._stubs = {name: stub(self._channel) for name, (_, stub) in _SERVICES.items()}

    async def call(self, rpc: str, request: Message, credential: str | None) -> Message:
        """Makes the call "Service.Method". Raises a ServerError."""
        service, _, name = rpc.partition(".")
        method = cast(_Unary, getattr(self._stubs[service], name))
        try:
            return await method(request, timeout=_CALL_SECS, metadata=_metadata(credential))
        except grpc.RpcError as failed:
            raise calls.error_from(failed, self._target) from None

    async def watch(
        self, request: workflow_pb2.WatchWorkflowsRequest, credential: str | None
    ) -> AsyncIterator[workflow_pb2.WatchWorkflowsResponse]:
        """The ends of the runs that are asked for. Raises a ServerError."""
        call = self._stubs["WorkflowService"].WatchWorkflows(metadata=_metadata(credential))
        try:
            await call.write(request)
            async for told in call:
                yield told
        except grpc.RpcError as failed:
            raise calls.error_from(failed, self._target) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        """Ends all calls."""
        await self._channel.close()


def method(rpc: str) -> MethodDescriptor:
    """The descriptor of the call "Service.Method"."""
    service, _, name = rpc.partition(".")
    return cast(MethodDescriptor, _SERVICES[service][0].DESCRIPTOR.services_by_name[service].methods_by_name[name])


def _metadata(credential: str | None) -> tuple[tuple[str, str], ...]:
    return () if credential is None else (("authorization", f"Bearer {credential}"),)
