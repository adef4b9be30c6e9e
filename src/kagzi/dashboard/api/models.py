"""The contract's messages as pydantic models, made from their descriptors: they check what comes in, and describe both
ways in the OpenAPI document. A field that the contract gains is here without a line of code; an unknown one is refused
by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema, create_model

from kagzi.dashboard.api import values
from kagzi.dashboard.api.comments import comments

INT32 = 2**31
INT64 = 2**63

_PAYLOAD = (
    "A JSON value. One that is compressed or encrypted is an object of `$encoding` and `$data`, in base64, instead."
)


def body(kind: Descriptor, without: Collection[str]) -> type[BaseModel] | None:
    """What a request may carry in its body: the message's fields but those that stand elsewhere. None when none is
    left.
    """
    fields = {values.key(field): _given(field) for field in kind.fields if field.name not in without}
    if not fields:
        return None
    return create_model(kind.name, __config__=ConfigDict(extra="forbid"), __doc__=_said(kind.full_name), **fields)


@cache
def answer(kind: Descriptor) -> type[BaseModel]:
    """What an answer looks like: every field is there, null where nothing is."""
    fields = {values.key(field): _shown(field) for field in kind.fields}
    return create_model(_name(kind), __config__=ConfigDict(extra="forbid"), __doc__=_said(kind.full_name), **fields)


def query(field: FieldDescriptor) -> Any:
    """The type of a field that travels as a query parameter: text, so what looks like a number is one."""
    if values.entry(field) is not None:
        pair = Annotated[str, AfterValidator(_pair), Field(pattern="^[^=]+=")]
        return list[pair]
    inner = _query_scalar(field)
    return list[inner] if field.is_repeated else inner  # type: ignore[valid-type]  # made at run time


def _query_scalar(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return Literal[tuple(values.names(field.enum_type).values())]
    if field.message_type is not None:
        return _MOMENT
    return {
        FieldDescriptor.CPPTYPE_INT32: Annotated[int, Field(ge=-INT32, lt=INT32)],
        FieldDescriptor.CPPTYPE_INT64: Annotated[int, Field(ge=-INT64, lt=INT64)],
        FieldDescriptor.CPPTYPE_BOOL: bool,
    }.get(field.cpp_type, str)


def _given(field: FieldDescriptor) -> Any:
    """A field of a request: optional, as every field of the contract is."""
    return Annotated[_type(field, _nested) | None, Field(description=_said(field.full_name))], None


def _shown(field: FieldDescriptor) -> Any:
    """A field of an answer."""
    inner = _type(field, answer)
    may_miss = not field.is_repeated and (field.has_presence or field.enum_type or values.is_document(field))
    return Annotated[inner | None if may_miss else inner, Field(description=_said(field.full_name))], ...


@cache
def _nested(kind: Descriptor) -> type[BaseModel]:
    """A message within a request."""
    fields = {values.key(field): _given(field) for field in kind.fields}
    name = f"{_name(kind)}Given"
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=_said(kind.full_name), **fields)


def _type(field: FieldDescriptor, nested: Callable[[Descriptor], type[BaseModel]]) -> Any:
    entry = values.entry(field)
    if entry is not None:
        return dict[str, _scalar(entry.fields_by_name["value"], nested)]  # type: ignore[misc]  # made at run time
    inner = _scalar(field, nested)
    return list[inner] if field.is_repeated else inner  # type: ignore[valid-type]  # made at run time


def _scalar(field: FieldDescriptor, nested: Callable[[Descriptor], type[BaseModel]]) -> Any:
    if field.message_type is not None:
        special = {values.TIMESTAMP: _MOMENT, values.PAYLOAD: _VALUE}
        return special.get(field.message_type.full_name) or nested(field.message_type)
    if field.enum_type is not None:
        return Literal[tuple(values.names(field.enum_type).values())]
    if values.is_document(field):
        return _VALUE
    return {
        FieldDescriptor.CPPTYPE_INT32: Annotated[int, Strict(), Field(ge=-INT32, lt=INT32)],
        FieldDescriptor.CPPTYPE_INT64: Annotated[int, Strict(), Field(ge=-INT64, lt=INT64)],
        FieldDescriptor.CPPTYPE_BOOL: Annotated[bool, Strict()],
        FieldDescriptor.CPPTYPE_DOUBLE: Annotated[float, Strict(), Field(allow_inf_nan=False)],
    }.get(field.cpp_type, Annotated[str, Strict()])


def _name(kind: Descriptor) -> str:
    """Nested messages carry the name of what they are nested in: HealthCheckResponseCheck."""
    return "".join(kind.full_name.split(".")[2:])


def _said(name: str) -> str | None:
    return comments().get(name)


def _pair(text: str) -> str:
    if not text.partition("=")[0]:
        raise ValueError("a label is key=value")
    return text


def _as_text(given: Any) -> Any:
    """Numbers are no times here, although pydantic would read them as such."""
    if not isinstance(given, str):
        raise ValueError("a time is text, as 2026-01-31T12:00:00Z")  # noqa: TRY004 - pydantic wants a ValueError
    return given


def _aware(given: datetime) -> datetime:
    if given.tzinfo is None:
        raise ValueError("a time names its zone, as 2026-01-31T12:00:00Z")
    return given


_MOMENT: Any = Annotated[
    datetime,
    BeforeValidator(_as_text),
    AfterValidator(_aware),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
_VALUE: Any = Annotated[Any, WithJsonSchema({"description": _PAYLOAD})]
