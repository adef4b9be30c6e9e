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
    add_NamespaceServiceServicer_to_server(Namespaces(database, lambda _namespace, _key_id: None), server)
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
        (
            "UpdateNamespace",
            pb.UpdateNamespaceRequest(name="default", retention=pb.Retention(events_ms=-1)),
            "retention.events_ms",
        ),
        (
            "UpdateNamespace",
            pb.UpdateNamespaceRequest(name="default", retention=pb.Retention(events_ms=2**62)),
            "retention.events_ms",
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


async def test_a_key_is_shown_once_and_told_apart_by_how_it_begins(stub: Any) -> None:
    made = await stub.CreateKey(pb.CreateKeyRequest(name="ci", role=pb.KEY_CLIENT))
    assert made.secret.startswith(made.key.prefix)
    assert (made.key.namespace, made.key.name, made.key.role) == ("default", "ci", pb.KEY_CLIENT)
    [listed] = (await stub.ListKeys(pb.ListKeysRequest())).keys
    assert listed == made.key
    assert made.secret[len(made.key.prefix) :] not in str(listed)


async def test_no_second_key_is_made_with_one_id(stub: Any) -> None:
    made = await stub.CreateKey(pb.CreateKeyRequest(role=pb.KEY_READER))
    again = pb.CreateKeyRequest(role=pb.KEY_ADMIN, key_id=made.key.key_id)
    detail = await refusal(stub.CreateKey(again))
    assert (detail.code, detail.field) == (ErrorDetail.CONFLICT, "key_id")
    assert [key.role for key in (await stub.ListKeys(pb.ListKeysRequest())).keys] == [pb.KEY_READER]


async def test_a_revoked_key_stays_revoked_and_is_listed_if_asked_for(stub: Any) -> None:
    made = (await stub.CreateKey(pb.CreateKeyRequest(role=pb.KEY_READER))).key
    ended = await stub.RevokeKey(pb.RevokeKeyRequest(key_id=made.key_id))
    assert ended.key.HasField("revoked_at")
    assert await stub.RevokeKey(pb.RevokeKeyRequest(key_id=made.key_id)) == ended
    assert list((await stub.ListKeys(pb.ListKeysRequest())).keys) == []
    assert list((await stub.ListKeys(pb.ListKeysRequest(include_revoked=True))).keys) == [ended.key]


async def test_keys_come_newest_first_in_pages(stub: Any) -> None:
    made = [(await stub.CreateKey(pb.CreateKeyRequest(role=pb.KEY_READER))).key.key_id for _ in range(3)]
    first = await stub.ListKeys(pb.ListKeysRequest(page_size=2))
    rest = await stub.ListKeys(pb.ListKeysRequest(page_size=2, page_token=first.next_page_token))
    assert [one.key_id for one in (*first.keys, *rest.keys)] == made[::-1]
    assert rest.next_page_token == ""


@pytest.mark.parametrize(
    ("method", "request_", "field_"),
    [
        ("CreateKey", pb.CreateKeyRequest(), "role"),
        ("CreateKey", pb.CreateKeyRequest(role=9), "role"),  # type: ignore[arg-type]
        ("CreateKey", pb.CreateKeyRequest(role=pb.KEY_READER, key_id="x"), "key_id"),
        ("CreateKey", pb.CreateKeyRequest(role=pb.KEY_READER, name="x" * 256), "name"),
        ("ListKeys", pb.ListKeysRequest(page_size=101), "page_size"),
        ("RevokeKey", pb.RevokeKeyRequest(), "key_id"),
    ],
)
async def test_a_bad_request_for_keys_names_its_field(stub: Any, method: str, request_: Any, field_: str) -> None:
    assert (await refusal(getattr(stub, method)(request_))).field == field_
    assert list((await stub.ListKeys(pb.ListKeysRequest())).keys) == []


async def test_keys_of_what_does_not_exist_are_not_found(stub: Any) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    for call in (
        stub.CreateKey(pb.CreateKeyRequest(namespace="nowhere", role=pb.KEY_READER)),
        stub.ListKeys(pb.ListKeysRequest(namespace="nowhere")),
        stub.RevokeKey(pb.RevokeKeyRequest(namespace="nowhere", key_id=nobody)),
        stub.RevokeKey(pb.RevokeKeyRequest(key_id=nobody)),
    ):
        assert (await refusal(call)).code == ErrorDetail.NOT_FOUND
