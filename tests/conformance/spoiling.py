"""Good requests made bad, one field at a time, by walking the descriptor of their message: what no number, text, id,
enum, payload, time or label may be. Each spoiled request comes with the path of the field that is to be blamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

PAYLOAD_BYTES = 2 << 20
STATE_BYTES = 64 << 10
REASON_BYTES = 2_000

_IDS = frozenset(
    {
        "attempt_id",
        "child_run_id",
        "claim_token",
        "deployment_id",
        "mutation_id",
        "new_run_id",
        "operation_id",
        "parent_run_id",
        "parent_step_attempt_id",
        "request_id",
        "resolution_id",
        "resume_id",
        "run_id",
        "schedule_id",
        "signal_id",
        "template_run_id",
        "worker_id",
    }
)
_DOCUMENTS = frozenset({"state_json", "parked_json"})
# Text of people is cleaned of NUL; only its length is refused.
_PROSE = frozenset({"reason", "description", "title"})
# Text of programs is cleaned and cut: refusing it would hide the error it tells of.
_PROGRAMS = frozenset({"failure.type", "failure.message", "failure.traceback"})
# Any number is one.
_ANY = frozenset({"input_hash", "pid"})
_INTEGERS = {
    "any_attempt": (-20_000, 20_000),
    "attempt_number": (-1, 20_000),
    "completed_seq": (-1, 100_000_001),
    "concurrency": (-1, 10_001),
    "count": (-1, 1_001),
    "count_to": (-1, 10_001),
    "max_catchup": (-1, 10_001),
    "max_runs": (-1, 2**40),
    "look_at": (-1, 10001),
    "maximum_attempts": (-1, 2**31 - 1),
    "number": (0, 2**32 - 1),
    "page_size": (-1, 101),
    "position": (-1, 20_001),
    "priority": (-1, 5),
    "unclear": (-1, 2**15),
}
_MARK = "Q\x7fZ"
# Half a surrogate pair, which is no text: three bytes, as the mark.
_SURROGATE = b"\xed\xa0\x80"


@dataclass(frozen=True, slots=True)
class Spoiled:
    """A request that must be refused, and the field that is to be blamed for it."""

    field: str
    why: str
    request: bytes


def spoiled(good: Message) -> Iterator[Spoiled]:
    """Every way to spoil one field of the request."""
    yield from _walk(good, good, "")


def _walk(whole: Message, part: Message, path: str) -> Iterator[Spoiled]:
    for field in cast("list[FieldDescriptor]", part.DESCRIPTOR.fields):
        where = f"{path}{field.name}"
        if _is_map(field):
            yield from _labels(whole, part, field, where)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            yield from _message(whole, part, field, where)
        else:
            for why, value in _values(field, where):
                yield _with(whole, part, field, where, why, value)
            if field.type == FieldDescriptor.TYPE_STRING:
                spoilt = _with(whole, part, field, where, "half a surrogate pair", _MARK)
                data = spoilt.request.replace(_MARK.encode(), _SURROGATE)
                yield Spoiled(where, spoilt.why, data)


def _message(whole: Message, part: Message, field: FieldDescriptor, where: str) -> Iterator[Spoiled]:
    assert field.message_type is not None
    if field.is_repeated:
        for inner in getattr(part, field.name):
            yield from _walk(whole, inner, f"{where}.")
        return
    if field.message_type.name == "Payload":
        yield from _changed(whole, part, field, where, "one byte too many", _too_large)
    if field.message_type.name == "Timestamp":
        for why, seconds, nanos in (("before 1970", -1, 0), ("far away", 2**40, 0), ("no fraction", 1, -1)):
            yield from _changed(whole, part, field, where, why, _moment(seconds, nanos))
        return
    present = part.HasField(field.name)
    inner = getattr(part, field.name)
    inner.SetInParent()
    yield from _walk(whole, inner, f"{where}.")
    if not present:
        part.ClearField(field.name)


def _values(field: FieldDescriptor, where: str) -> Iterator[tuple[str, Any]]:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            yield from _texts(_text_kind(field), where)
        case FieldDescriptor.TYPE_ENUM:
            yield "unknown", 99
        case FieldDescriptor.TYPE_DOUBLE:
            yield from (("no number", math.nan), ("shrinking", 0.5), ("endless", math.inf))
        case FieldDescriptor.TYPE_BOOL | FieldDescriptor.TYPE_BYTES:
            return
        case _ if field.name in _ANY:
            return
        case _ if field.name.endswith(("_ms", "_us")):
            yield from (("negative", -1), ("absurd", 2**62))
        case _:
            yield from (("out of range", value) for value in _INTEGERS[_number_kind(field)])


def _number_kind(field: FieldDescriptor) -> str:
    """The field's name, by which a number is known; attempts that were set aside have numbers below 0."""
    message = field.containing_type
    return "any_attempt" if message is not None and message.name == "GetStepRequest" else field.name


def _text_kind(field: FieldDescriptor) -> str:
    """The field's name, by which a text is known; a schedule's own id is a name that somebody chose."""
    message = field.containing_type
    chosen = field.name == "schedule_id" and message is not None and message.file.name.endswith("schedule.proto")
    return "name" if chosen else field.name


def _texts(name: str, where: str) -> Iterator[tuple[str, Any]]:
    if name in _IDS:
        yield from (("no UUID", "7"), ("no UUID", "0" * 36), ("NUL", "\0" * 36))
    elif name == "page_token":
        yield from (("from elsewhere", "AAAA"), ("from elsewhere", "\N{SNOWMAN}"), ("no token", "%"))
    elif name in _DOCUMENTS:
        yield from (("no JSON", "{"), ("NUL", '"\\u0000"'), ("too long", f'"{"x" * STATE_BYTES}"'))
    elif name in _PROSE:
        yield "too long", "x" * (REASON_BYTES + 1)
    elif not where.endswith(tuple(_PROGRAMS)):
        yield from (("too long", "\N{LATIN SMALL LETTER E WITH ACUTE}" * 128), ("NUL", "a\0b"), ("control", "a\nb"))


def _with(whole: Message, part: Message, field: FieldDescriptor, where: str, why: str, value: Any) -> Spoiled:
    """The whole request with one value changed; it is good again afterwards."""
    before = type(part)()
    before.CopyFrom(part)
    if field.is_repeated:
        getattr(part, field.name).append(value)
    else:
        setattr(part, field.name, value)
    data = whole.SerializeToString()
    part.CopyFrom(before)
    return Spoiled(where, why, data)


def _changed(
    whole: Message, part: Message, field: FieldDescriptor, where: str, why: str, change: Callable[[Any], None]
) -> Iterator[Spoiled]:
    before = type(part)()
    before.CopyFrom(part)
    change(getattr(part, field.name))
    data = whole.SerializeToString()
    part.CopyFrom(before)
    yield Spoiled(where, why, data)


def _labels(whole: Message, part: Message, field: FieldDescriptor, where: str) -> Iterator[Spoiled]:
    assert field.message_type is not None
    if field.message_type.fields_by_name["value"].type != FieldDescriptor.TYPE_STRING:
        return
    for why, given in (
        ("key too long", {"x" * 256: "v"}),
        ("key missing", {"": "v"}),
        ("value too long", {"k": "x" * 256}),
        ("NUL", {"k": "\0"}),
        ("too many", {str(number): "v" for number in range(33)}),
    ):
        yield from _changed(whole, part, field, where, why, methodcaller("update", given))
    [marked] = _changed(whole, part, field, where, "half a surrogate pair", methodcaller("update", k=_MARK))
    yield Spoiled(where, marked.why, marked.request.replace(_MARK.encode(), _SURROGATE))


def _too_large(payload: Any) -> None:
    payload.data = bytes(PAYLOAD_BYTES + 1)


def _moment(seconds: int, nanos: int) -> Callable[[Any], None]:
    def change(moment: Any) -> None:
        moment.seconds, moment.nanos = seconds, nanos

    return change


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
