"""Every call of the contract with no key, a wrong one, one of another namespace, and one of each role."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from kagzi.protocol.v1 import admin_pb2 as ad
from kagzi.protocol.v1 import namespace_pb2 as ns
from kagzi.protocol.v1 import workflow_pb2 as wf
from kagzi.protocol.v1.common_pb2 import ErrorDetail
from kagzi.server.api.scope import place
from kagzi.server.roles import ROLES, Role
from kagzi.store import keys
from tests.conformance import specimens
from tests.conformance.execution import new_id
from tests.security.realm import ELSEWHERE, HOME, OPERATOR, REFUSALS, Realm, requests, unary

SERVED = {
    f"/{service.full_name}/{method.name}"
    for file in (health_pb2, reflection_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# Named again further inside; the servicers hold it to be the same.
INSIDE = {
    "ConnectRequest.operations.start_child.child.namespace",
    "StartChildRequest.start_child.child.namespace",
    "StartWorkflowsRequest.starts.namespace",
}


def needed(call: str) -> Role:
    return ROLES[f"/kagzi.v1.{call}"]


def test_every_call_is_in_the_table_of_roles_and_the_table_holds_nothing_else() -> None:
    contract = {f"/kagzi.v1.{specimens.short(method)}" for method in specimens.methods()}
    assert ROLES.keys() == contract | SERVED


def test_every_namespace_in_a_request_is_looked_at() -> None:
    found: set[str] = set()

    def look(kind: Descriptor, path: tuple[str, ...], above: frozenset[str]) -> None:
        for field in kind.fields:
            if field.type == FieldDescriptor.TYPE_STRING and field.name == "namespace":
                found.add(".".join((*path, "namespace")))
            elif field.message_type is not None and field.message_type.full_name not in above:
                look(field.message_type, (*path, field.name), above | {field.message_type.full_name})

    expected = set(INSIDE)
    for method in specimens.methods():
        kind = method.input_type
        look(kind, (kind.name,), frozenset({kind.full_name}))
        expected |= {".".join((kind.name, *path))} if (path := place(kind)) and path[-1] == "namespace" else set()
    assert found == expected


def test_without_a_valid_key_no_call_is_answered(realm: Realm) -> None:
    unknown = keys.new_secret(HOME, new_id())
    forged = realm.keys[Role.ADMIN][:-43] + secrets.token_urlsafe(32)
    made = realm.made(Role.ADMIN)
    realm.revoke(made.key)
    cases = {"none": None, "nonsense": "x", "unknown": unknown, "forged": forged, "revoked": made.secret}
    wrong = []
    for call, request in requests(HOME).items():
        for case, key in cases.items():
            told = realm.refusal(call, request, key)
            opened = needed(call) is Role.ANYBODY
            if opened != (told is None) or (told is not None and told.code != ErrorDetail.UNAUTHORIZED):
                wrong.append((call, case, told))
    assert wrong == []


def test_a_key_of_each_role_opens_what_the_table_says(realm: Realm) -> None:
    wrong = []
    for call, request in requests(HOME).items():
        for role, key in realm.keys.items():
            told = realm.refusal(call, request, key)
            refused = told is not None and told.code in REFUSALS
            if refused != (role < needed(call)) or (refused and told and told.code != ErrorDetail.PERMISSION_DENIED):
                wrong.append((call, role, told))
    realm.must("NamespaceService/EnableNamespace", ns.EnableNamespaceRequest(name=HOME), OPERATOR)
    assert wrong == []


def test_a_request_for_another_namespace_is_refused_before_anything_is_read(realm: Realm) -> None:
    wrong = []
    for name in (ELSEWHERE, "nowhere"):
        for call, request in requests(name).items():
            path = place(request.DESCRIPTOR)
            told = realm.refusal(call, request, realm.keys[Role.ADMIN])
            if not path:
                assert told is None, (call, told)
            elif told is None or (told.code, told.field) != (ErrorDetail.PERMISSION_DENIED, ".".join(path)):
                wrong.append((call, told))
    assert wrong == []


def test_a_request_that_names_no_namespace_is_about_the_one_of_its_key(realm: Realm) -> None:
    start = wf.StartWorkflowRequest(workflow_type="order", run_id=new_id())
    realm.must("WorkflowService/StartWorkflow", start, realm.keys[Role.CLIENT])
    got = wf.GetWorkflowRequest(namespace=HOME, run_id=start.run_id)
    assert realm.must("WorkflowService/GetWorkflow", got, OPERATOR).run.namespace == HOME  # type: ignore[attr-defined]
    mine = realm.must("NamespaceService/GetNamespace", ns.GetNamespaceRequest(), realm.keys[Role.READER])
    assert mine.namespace.name == HOME  # type: ignore[attr-defined]


def test_starts_for_another_namespace_within_one_of_ours_are_refused_singly(realm: Realm) -> None:
    starts = [wf.StartWorkflowRequest(workflow_type="order", namespace=name) for name in (HOME, ELSEWHERE, "")]
    answer = realm.must(
        "WorkflowService/StartWorkflows", wf.StartWorkflowsRequest(starts=starts), realm.keys[Role.CLIENT]
    )
    assert [one.HasField("error") for one in answer.results] == [False, True, False]  # type: ignore[attr-defined]


def test_a_key_sees_its_own_namespace_and_the_operator_all(realm: Realm) -> None:
    def names(key: str) -> set[str]:
        listed = realm.must("NamespaceService/ListNamespaces", ns.ListNamespacesRequest(), key)
        return {one.name for one in listed.namespaces}  # type: ignore[attr-defined]

    assert names(realm.keys[Role.ADMIN]) == {HOME}
    assert names(OPERATOR) == {HOME, ELSEWHERE, "default"}


def test_an_admin_cannot_make_namespaces_nor_keys_of_others(realm: Realm) -> None:
    admin = realm.keys[Role.ADMIN]
    for call, request in (
        ("NamespaceService/CreateNamespace", ns.CreateNamespaceRequest(name="mine-too")),
        ("NamespaceService/CreateKey", ns.CreateKeyRequest(namespace=ELSEWHERE, role=ns.KEY_READER)),
    ):
        told = realm.refusal(call, request, admin)
        assert told is not None
        assert told.code == ErrorDetail.PERMISSION_DENIED
    told = realm.refusal("NamespaceService/CreateNamespace", ns.CreateNamespaceRequest(), admin)
    assert told is not None
    assert (told.code, told.field) == (ErrorDetail.INVALID_ARGUMENT, "name")


@pytest.mark.parametrize("role", [Role.READER, Role.ADMIN])
def test_the_server_tells_a_caller_who_it_is(realm: Realm, role: Role) -> None:
    info = realm.must("AdminService/GetServerInfo", ad.GetServerInfoRequest(), realm.keys[role])
    assert isinstance(info, ad.GetServerInfoResponse)
    assert (info.credentials_required, info.namespace, info.role) == (True, HOME, role.value)


def test_the_status_is_the_one_that_fits(realm: Realm) -> None:
    method: Any = realm.channel.unary_unary("/kagzi.v1.WorkflowService/StartWorkflow")
    for key, code in ((None, grpc.StatusCode.UNAUTHENTICATED), (Role.READER, grpc.StatusCode.PERMISSION_DENIED)):
        metadata = () if key is None else (("authorization", f"bearer {realm.keys[key]}"),)
        with pytest.raises(grpc.RpcError) as caught:
            method(wf.StartWorkflowRequest(workflow_type="x").SerializeToString(), metadata=metadata)
        assert caught.value.code() is code


def test_a_known_key_costs_no_statement(realm: Realm) -> None:
    looked: list[str] = []
    keyring = realm.place.server.keyring
    original = keyring._look_up

    async def counted(secret: str, hashed: bytes) -> object:
        looked.append(secret)
        return await original(secret, hashed)

    keyring._look_up = counted  # type: ignore[method-assign, assignment]
    key = realm.key(Role.READER)
    for _ in range(20):
        realm.must("NamespaceService/GetNamespace", ns.GetNamespaceRequest(), key)
    keyring._look_up = original  # type: ignore[method-assign]
    assert looked == [key]


def all_unary() -> Iterator[str]:
    yield from (specimens.short(method) for method in unary())


def test_there_is_a_good_request_for_every_unary_call() -> None:
    assert requests(HOME).keys() == set(all_unary())
