"""NamespaceService over the wire: what is asked, answered and refused, by a real server on a real database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from kagzi.protocol.v1 import namespace_pb2 as pb
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.protocol.v1.namespace_pb2_grpc import NamespaceServiceStub, add_NamespaceServiceServicer_to_server
from kagzi.server.api.errors import Errors
from kagzi.server.api.namespaces import Namespaces
from kagzi.store.database import Database
from tests.server.calls import refusal


@pytest_asyncio.fixture
async def stub(database_url: str) -> AsyncIterator[Any]:
    """A client of a server with NamespaceService alone."""
    database = await Database(database_url).open()
    server = grpc.aio.server(interceptors=[Errors()])
    add_NamespaceServiceServicer_to_server(Namespaces(database), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield NamespaceServiceStub(channel)
    await server.stop(None)
    await database.close()


async def test_a_second_creation_answers_what_exists_and_changes_nothing(stub: Any) -> None:
    kept = pb.Retention(completed_ms=1_000, failed_ms=0)
    first = await stub.CreateNamespace(pb.CreateNamespaceRequest(name="shop", description="orders", retention=kept))
    second = await stub.CreateNamespace(pb.CreateNamespaceRequest(name="shop", description="other"))
    assert (first.already_exists, second.already_exists) == (False, True)
    assert first.namespace == second.namespace
    assert (first.namespace.description, first.namespace.enabled) == ("orders", True)
    # 0 is for ever and absent is the server's setting: they are not the same.
    assert first.namespace.retention == kept
    assert not first.namespace.retention.HasField("cancelled_ms")


async def test_a_namespace_without_a_name_is_the_default_one(stub: Any) -> None:
    assert (await stub.GetNamespace(pb.GetNamespaceRequest())).namespace.name == "default"


async def test_an_update_changes_what_is_given(stub: Any) -> None:
    await stub.CreateNamespace(pb.CreateNamespaceRequest(name="shop", description="orders"))
    changed = await stub.UpdateNamespace(pb.UpdateNamespaceRequest(name="shop", retention=pb.Retention(events_ms=5)))
    assert (changed.namespace.description, changed.namespace.retention.events_ms) == ("orders", 5)
    changed = await stub.UpdateNamespace(pb.UpdateNamespaceRequest(name="shop", description=""))
    assert (changed.namespace.description, changed.namespace.retention.events_ms) == ("", 5)
    assert (await stub.GetNamespace(pb.GetNamespaceRequest(name="shop"))).namespace == changed.namespace


async def test_disabling_and_enabling_can_be_repeated(stub: Any) -> None:
    disabled = await stub.DisableNamespace(pb.DisableNamespaceRequest())
    assert (disabled.namespace.enabled, disabled.running) == (False, 0)
    assert await stub.DisableNamespace(pb.DisableNamespaceRequest()) == disabled
    enabled = await stub.EnableNamespace(pb.EnableNamespaceRequest())
    assert enabled.namespace.enabled
    assert await stub.EnableNamespace(pb.EnableNamespaceRequest()) == enabled


async def test_namespaces_come_by_name_in_pages(stub: Any) -> None:
    for name in ("b", "a"):
        await stub.CreateNamespace(pb.CreateNamespaceRequest(name=name))
    first = await stub.ListNamespaces(pb.ListNamespacesRequest(page_size=2))
    token = first.next_page_token
    rest = await stub.ListNamespaces(pb.ListNamespacesRequest(page_size=2, page_token=token))
    assert [one.name for one in (*first.namespaces, *rest.namespaces)] == ["a", "b", "default"]
    assert rest.next_page_token == ""
    detail = await refusal(stub.ListNamespaces(pb.ListNamespacesRequest(enabled=True, page_token=token)))
    assert detail.field == "page_token"


@pytest.mark.parametrize(
    ("method", "request_", "field_"),
    [
        ("CreateNamespace", pb.CreateNamespaceRequest(), "name"),
        ("CreateNamespace", pb.CreateNamespaceRequest(name="x" * 256), "name"),
        ("CreateNamespace", pb.CreateNamespaceRequest(name="a\0"), "name"),
        ("CreateNamespace", pb.CreateNamespaceRequest(name="a", description="x" * 2_001), "description"),
        (
            "CreateNamespace",
            pb.CreateNamespaceRequest(name="a", retention=pb.Retention(failed_ms=-1)),
            "retention.failed_ms",
        ),
        ("ListNamespaces", pb.ListNamespacesRequest(page_size=101), "page_size"),
    ],
)
async def test_bad_input_is_refused_with_the_name_of_its_field(
    stub: Any, method: str, request_: Any, field_: str
) -> None:
    detail = await refusal(getattr(stub, method)(request_))
    assert detail.field == field_
    assert detail.code in (ErrorDetail.INVALID_ARGUMENT, ErrorDetail.LIMIT_EXCEEDED)
    assert len((await stub.ListNamespaces(pb.ListNamespacesRequest())).namespaces) == 1


async def test_what_does_not_exist_is_not_found(stub: Any) -> None:
    for call in (
        stub.GetNamespace(pb.GetNamespaceRequest(name="nowhere")),
        stub.UpdateNamespace(pb.UpdateNamespaceRequest(name="nowhere", description="x")),
        stub.EnableNamespace(pb.EnableNamespaceRequest(name="nowhere")),
        stub.DisableNamespace(pb.DisableNamespaceRequest(name="nowhere")),
    ):
        assert (await refusal(call)).code == ErrorDetail.NOT_FOUND


async def test_keys_are_for_a_later_server(stub: Any) -> None:
    for call in (
        stub.CreateKey(pb.CreateKeyRequest()),
        stub.ListKeys(pb.ListKeysRequest()),
        stub.RevokeKey(pb.RevokeKeyRequest()),
    ):
        assert (await refusal(call)).code == ErrorDetail.UNIMPLEMENTED
