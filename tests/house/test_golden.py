"""The contract stays what workers were built with: what was captured once is read today without a rest, and there is a
capture of everything that can be said.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from kagzi.protocol.v1 import worker_pb2 as pb
from tests.conformance import specimens
from tests.golden import captures

RECORDED = captures.recorded()
KINDS = {name: kind for name, kind, _ in captures.variants()}
REQUESTS = {specimens.short(method): method.input_type for method in specimens.methods()}


def rest(message: Message) -> list[int]:
    """The numbers of fields that nobody knows, at any depth."""
    unknown: Any = UnknownFieldSet(message)
    found = [field.field_number for field in unknown]
    for field, value in message.ListFields():
        nested = field.message_type
        if nested is not None and not nested.GetOptions().map_entry:
            for one in value if field.is_repeated else [value]:
                found += rest(one)
    return found


def test_everything_that_can_be_said_was_captured() -> None:
    missing = {kind: sorted(new.keys() - RECORDED.get(kind, {}).keys()) for kind, new in captures.made().items()}
    assert {kind: names for kind, names in missing.items() if names} == {}, "python -m tests.golden.captures adds them"


@pytest.mark.parametrize("name", RECORDED["messages"])
def test_a_message_that_was_captured_is_read_without_a_rest(name: str) -> None:
    assert name in KINDS, "a message of the contract is gone"
    _read(GetMessageClass(KINDS[name])(), RECORDED["messages"][name])


@pytest.mark.parametrize("name", RECORDED["requests"])
def test_a_request_that_was_captured_is_read_without_a_rest(name: str) -> None:
    assert name in REQUESTS, "a call of the contract is gone"
    _read(GetMessageClass(REQUESTS[name])(), RECORDED["requests"][name])


@pytest.mark.parametrize("name", RECORDED["operations"])
def test_an_operation_that_was_captured_is_read_without_a_rest(name: str) -> None:
    operation = pb.Operation()
    _read(operation, RECORDED["operations"][name])
    assert operation.WhichOneof("body") == name


def _read(message: Message, captured: str) -> None:
    message.ParseFromString(bytes.fromhex(captured))
    assert rest(message) == []
    assert message.SerializeToString(deterministic=True).hex() == captured


def test_a_field_that_was_renumbered_is_noticed() -> None:
    assert rest(pb.ConnectRequest.FromString(pb.ConnectRequest(credit=1).SerializeToString() + b"\xa0\x06\x01")) == [
        100
    ]
