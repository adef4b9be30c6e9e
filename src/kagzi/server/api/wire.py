"""Finds the field to blame in a message that could not be read. Protobuf refuses text that is no UTF-8
without saying where; this walks the bytes along the message's descriptor until it meets the first such
field. It builds nothing and trusts nothing: whatever does not parse ends the walk with no answer.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEPTH = 32


def bad_text(message: Descriptor, data: bytes, depth: int = 0) -> str:
    """The path of the first text field that is no UTF-8, as "child.version"; "" when none is found."""
    try:
        return _walk(message, data, depth)
    except (IndexError, ValueError):
        return ""


def _walk(message: Descriptor, data: bytes, depth: int) -> str:
    at = 0
    while at < len(data) and depth < _DEPTH:
        tag, at = _varint(data, at)
        field = message.fields_by_number.get(tag >> 3)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("cut short")
            found = _blame(field, data[at : at + size], depth) if field else ""
            if found:
                return found
            at += size
        else:
            raise ValueError("unknown wire type")
    return ""


def _blame(field: FieldDescriptor, value: bytes, depth: int) -> str:
    if field.type == FieldDescriptor.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError:
            return field.name
    elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
        inner = bad_text(field.message_type, value, depth + 1)
        is_map = field.message_type.GetOptions().map_entry
        return field.name if inner and is_map else f"{field.name}.{inner}" if inner else ""
    return ""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number without end")
