"""Messages of the contract as JSON values, and back. Times are ISO 8601 text, enums their names without the family's
prefix, documents (`state_json`) themselves, and a payload is the JSON value it holds: `{"cents": 5}`. A payload that
is no plain JSON (compressed, encrypted) is `{"$encoding": …, "$data": base64}`, and may be sent like that. What is not
there is null.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from os.path import commonprefix
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1.common_pb2 import Payload

TIMESTAMP = Timestamp.DESCRIPTOR.full_name
PAYLOAD = Payload.DESCRIPTOR.full_name

_ENCODED = {"$encoding", "$data"}
_DOCUMENT = "_json"


class Misfit(ValueError):
    """A value that the contract has no place for; `field` is where it stands."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def new(kind: Descriptor) -> Message:
    """An empty message."""
    return GetMessageClass(kind)()


def entry(field: FieldDescriptor) -> Descriptor | None:
    """The message of a map's entries; None when the field is no map."""
    kind = field.message_type
    return kind if kind is not None and kind.GetOptions().map_entry else None


def key(field: FieldDescriptor) -> str:
    """The field's name in JSON; a document is named by what it is."""
    return field.name.removesuffix(_DOCUMENT)


def is_document(field: FieldDescriptor) -> bool:
    """Whether a text field holds JSON."""
    return field.name.endswith(_DOCUMENT)


@cache
def names(enum: EnumDescriptor) -> Mapping[int, str]:
    """An enum's values as they are written; the one for "not given" is left out."""
    given = [value for value in enum.values if value.number]
    family = commonprefix([value.name for value in given]).rpartition("_")  # noqa: RUF071 - these are no paths
    return {value.number: value.name.removeprefix(family[0] + family[1]) for value in given}


def to_json(message: Message) -> dict[str, Any]:
    """A message with all its fields."""
    return {key(field): _field_to_json(message, field) for field in _fields(message)}


def fill(message: Message, document: Mapping[str, Any], path: str = "") -> None:
    """Sets the fields that the document names; those that are null stay as they are. The document has the message's
    form already; Misfit where a value cannot travel all the same.
    """
    chosen: dict[str, str] = {}
    for field in _fields(message):
        value = document.get(key(field))
        if value is None:
            continue
        place = f"{path}{key(field)}"
        one_of = field.containing_oneof
        if one_of is not None and chosen.setdefault(one_of.name, key(field)) != key(field):
            raise Misfit(place, f"say {chosen[one_of.name]} or {key(field)}, not both")
        _set(message, field, value, place)


def payload(value: Any, place: str) -> Payload:
    """A JSON value as a payload; the form for encoded ones is unpacked."""
    if isinstance(value, dict) and value.keys() == _ENCODED:
        try:
            return Payload(data=base64.b64decode(value["$data"], validate=True), encoding=value["$encoding"])
        except (binascii.Error, TypeError, ValueError):
            raise Misfit(place, 'an encoded payload is {"$encoding": text, "$data": base64}') from None
    return Payload(data=_dumps(value, place).encode(), encoding="json")


def payload_to_json(stored: Payload) -> Any:
    """The JSON value in a payload, or the form for encoded ones."""
    if stored.encoding in {"", "json"}:
        try:
            value = json.loads(stored.data, parse_constant=_refuse)
            if not (isinstance(value, dict) and value.keys() == _ENCODED):
                json.dumps(value, allow_nan=False)
                return value
        except (ValueError, RecursionError):
            # Bytes of another client that only claim to be JSON, or a number that none of ours could write.
            pass
    return {"$encoding": stored.encoding or "json", "$data": base64.b64encode(stored.data).decode()}


def moment(value: Timestamp) -> str:
    """A time as text."""
    return value.ToDatetime(UTC).isoformat().replace("+00:00", "Z")


def _field_to_json(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    one = _writer(field)
    pair = entry(field)
    if pair is not None:
        write = _writer(pair.fields_by_name["value"])
        return {name: write(each) for name, each in value.items()}
    if field.is_repeated:
        return [one(each) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return one(value)


@cache
def _writer(field: FieldDescriptor) -> Callable[[Any], Any]:
    kind: Descriptor | None = field.message_type
    if kind is not None:
        special: dict[str, Callable[[Any], Any]] = {TIMESTAMP: moment, PAYLOAD: payload_to_json}
        return special.get(kind.full_name, to_json)
    if field.enum_type is not None:
        return names(field.enum_type).get
    if is_document(field):
        return lambda text: json.loads(text) if text else None
    return lambda value: value


def _set(message: Message, field: FieldDescriptor, value: Any, place: str) -> None:
    target = getattr(message, field.name)
    pair = entry(field)
    if pair is not None:
        inner = pair.fields_by_name["value"]
        for name, each in value.items():
            _text(name, place)
            if inner.message_type is not None:
                target[name].CopyFrom(_message(inner, each, f"{place}.{name}"))
            else:
                target[name] = _scalar(inner, each, f"{place}.{name}")
    elif field.is_repeated:
        make = _message if field.message_type is not None else _scalar
        target.extend(make(field, each, f"{place}.{number}") for number, each in enumerate(value))
    elif field.message_type is not None:
        target.CopyFrom(_message(field, value, place))
    else:
        setattr(message, field.name, _scalar(field, value, place))


def _message(field: FieldDescriptor, value: Any, place: str) -> Message:
    kind = field.message_type
    assert kind is not None
    if kind.full_name == PAYLOAD:
        return payload(value, place)
    if kind.full_name == TIMESTAMP:
        return _timestamp(value, place)
    made = new(kind)
    fill(made, value, f"{place}.")
    return made


def _timestamp(value: datetime, place: str) -> Timestamp:
    made = Timestamp()
    try:
        made.FromDatetime(value.astimezone(UTC))
    except (ValueError, OverflowError):
        raise Misfit(place, f"{value} is no time between the years 1 and 9999") from None
    return made


def _scalar(field: FieldDescriptor, value: Any, place: str) -> Any:
    if field.enum_type is not None:
        return next(number for number, name in names(field.enum_type).items() if name == value)
    if is_document(field):
        return _dumps(value, place)
    if isinstance(value, str):
        _text(value, place)
    return value


def _text(value: str, place: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(place, "half of a surrogate pair is no text") from None


def _dumps(value: Any, place: str) -> str:
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except RecursionError:
        raise Misfit(place, "it nests too deeply") from None
    except ValueError:
        raise Misfit(place, "it holds a number or a text that JSON cannot carry") from None
    return text


def _fields(message: Message) -> Sequence[FieldDescriptor]:
    return cast("Sequence[FieldDescriptor]", message.DESCRIPTOR.fields)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")
