"""What went over the wire when this version of the contract was made: every message with all of its fields, a request
for every call, an operation of every kind. `python -m tests.golden.captures` adds what is new to the file beside this
one; it never changes what stands there, because workers that were built then still send it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from kagzi.protocol.v1 import worker_pb2 as pb
from kagzi.protocol.v1.workflow_pb2 import StartWorkflowRequest
from tests.conformance import specimens
from tests.conformance.place import Place

FILE = Path(__file__).with_name("v1.json")
RUN = pb.Held(run_id=str(UUID(int=1)), claim_token=str(UUID(int=2)))
WORKER_ID = str(UUID(int=3))
NAMESPACE = QUEUE = "golden"
_DEEP = 4
# Ids that their users choose.
_NAMES = ("step_id", "event_id", "failed_step_id", "external_id", "schedule_id")

Captures = dict[str, dict[str, str]]


def recorded() -> Captures:
    """By kind and name, in hexadecimal."""
    return cast("Captures", json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def made() -> Captures:
    """What this version would send."""
    return {
        "messages": {name: _hex(filled(kind, variant)) for name, kind, variant in variants()},
        "requests": {name: _hex(request) for name, request in requests().items()},
        "operations": {name: _hex(operation) for name, operation in operations().items()},
    }


def variants() -> Iterator[tuple[str, Descriptor, str]]:
    """Every message of the contract; one that is one of several things as each of them."""
    known: dict[str, Descriptor] = {}
    for method in specimens.methods():
        for one in (method.input_type, method.output_type):
            _collect(one, known)
    for name, kind in sorted(known.items()):
        choices = [field.name for oneof in kind.oneofs if len(oneof.fields) > 1 for field in oneof.fields]
        for choice in choices or [""]:
            yield f"{name}.{choice}" if choice else name, kind, choice


def _collect(kind: Descriptor, known: dict[str, Descriptor]) -> None:
    if kind.full_name not in known and kind.file.package == "kagzi.v1":
        known[kind.full_name] = kind
        for field in kind.fields:
            if field.message_type is not None:
                _collect(field.message_type, known)


def filled(kind: Descriptor, variant: str = "", depth: int = 0) -> Message:
    """A message with a value in every field."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1 and field.name != (variant or oneof.fields[0].name):
            continue
        _fill(message, field, depth)
    return message


def _fill(message: Message, field: FieldDescriptor, depth: int) -> None:
    nested = field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        entries, value = getattr(message, field.name), nested.fields_by_name["value"]
        if value.message_type is None:
            entries["key"] = _value(value)
        elif depth < _DEEP:
            entries["key"].CopyFrom(filled(value.message_type, "", depth + 1))
    elif nested is not None:
        if depth < _DEEP:
            inner = filled(nested, "", depth + 1)
            place = getattr(message, field.name)
            (place.add() if field.is_repeated else place).CopyFrom(inner)
    elif field.is_repeated:
        getattr(message, field.name).append(_value(field))
    else:
        setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return b"\x00\xff" if field.type == FieldDescriptor.TYPE_BYTES else field.name
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return 1.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return cast("EnumDescriptor", field.enum_type).values[-1].number
    return field.number


def requests() -> dict[str, Message]:
    """A good request for every unary call, always with the same ids."""
    numbers = itertools.count(100)
    start = StartWorkflowRequest(namespace=NAMESPACE, task_queue=QUEUE, workflow_type="order")

    def request(_value: object = None, **fields: Any) -> StartWorkflowRequest:
        asked = StartWorkflowRequest(**fields)
        asked.MergeFrom(StartWorkflowRequest(task_queue=start.task_queue, workflow_type=start.workflow_type))
        asked.namespace = fields.get("namespace", NAMESPACE)
        return asked

    place = SimpleNamespace(namespace=NAMESPACE, queue=QUEUE, type="order", request=request)
    names = vars(specimens)
    random = names["new_id"]
    names["new_id"] = lambda: str(UUID(int=next(numbers)))
    try:
        return specimens.of_everybody(cast("Place", place), WORKER_ID, RUN)
    finally:
        names["new_id"] = random


def operations() -> dict[str, pb.Operation]:
    """An operation of every kind, as a stream carries it."""
    found: dict[str, pb.Operation] = {}
    for number, field in enumerate(pb.Operation.DESCRIPTOR.oneofs_by_name["body"].fields, 1):
        body = _plain(filled(cast("Descriptor", field.message_type)))
        operation = pb.Operation(number=number, run_id=RUN.run_id, claim_token=RUN.claim_token)
        getattr(operation, field.name).CopyFrom(body)
        found[field.name] = operation
    # What only a few values fit.
    for field_name in ("namespace", "delay_ms", "priority"):
        found["start_child"].start_child.child.ClearField(field_name)
    found["peek_events"].peek_events.ClearField("cursor")
    found["finish_mutation"].finish_mutation.ClearField("result")
    return found


def _plain(body: Message) -> Message:
    """Ids are ids, and what is JSON is JSON, at any depth; the rest may be anything."""
    for field, value in body.ListFields():
        nested = field.message_type
        if nested is not None and not nested.GetOptions().map_entry:
            for one in value if field.is_repeated else [value]:
                _plain(one)
        elif field.is_repeated or field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
            continue
        elif field.name.endswith("_json"):
            setattr(body, field.name, "{}")
        elif field.name.endswith("_id") and field.name not in _NAMES:
            setattr(body, field.name, str(UUID(int=field.number)))
    return body


def _hex(message: Message) -> str:
    return message.SerializeToString(deterministic=True).hex()


def main() -> None:
    known, new = recorded(), made()
    merged = {kind: {**new[kind], **known.get(kind, {})} for kind in new}
    FILE.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
