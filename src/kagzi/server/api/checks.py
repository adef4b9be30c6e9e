"""What a field of a request must look like. Each check answers with the value to use, or raises `Refused`
with the field's name, before anything is read or written. Sizes are counted in bytes of UTF-8 and hold at
the exact boundary. Nothing here looks into a payload or asks the database.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from kagzi.protocol.v1.common_pb2 import ErrorDetail, Failure, Payload, RetryPolicy
from kagzi.server.api.pages import PAGE_ROWS, Page, page, page_token, scope
from kagzi.store.errors import Refused, invalid

__all__ = [
    "LABELS",
    "MESSAGE_BYTES",
    "NAME_BYTES",
    "PAGE_ROWS",
    "PAYLOAD_BYTES",
    "STARTS",
    "STATE_BYTES",
    "TEN_YEARS_MS",
    "Page",
    "duration_ms",
    "enum",
    "exceeded",
    "excerpt",
    "failure",
    "json_document",
    "labels",
    "look_at",
    "moment_and_id",
    "name",
    "namespace",
    "page",
    "page_token",
    "payload",
    "retry",
    "scope",
    "text",
    "timestamp",
    "uuid",
]

MESSAGE_BYTES = 4 * 1024 * 1024
PAYLOAD_BYTES = 2 * 1024 * 1024
STATE_BYTES = 64 * 1024
NAME_BYTES = 255
LABELS = 32
LOOKED_AT = 10_000
STARTS = 1_000
ATTEMPTS = 10_000
TEN_YEARS_MS = 10 * 366 * 24 * 3_600_000

# Text of an error as far as it is stored.
_MESSAGE = 64 * 1024
_TRACEBACK = 256 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_SECOND = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp())
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_IN_TEXT = re.compile(r"[\x00\ud800-\udfff]")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# PostgreSQL's jsonb holds numbers far beyond this, but not without end.
_NUMBER_DIGITS = 1_000
_JSON_DEPTH = 100


def exceeded(field: str, message: str) -> Refused:
    """A limit on size or count was passed."""
    return Refused(ErrorDetail(code=ErrorDetail.LIMIT_EXCEEDED, message=message, field=field))


def name(value: str, field: str, *, default: str | None = None, maximum: int = NAME_BYTES) -> str:
    """A name, an id chosen by a user, a version. An empty one becomes `default`; without one it is refused."""
    if not value:
        if default is None:
            raise invalid(field, f"{field} is missing")
        return default
    if found := _NOT_IN_NAMES.search(value):
        raise invalid(field, f"{field} holds {found[0]!a} at character {found.start() + 1}: leave it out")
    _bounded(value, field, maximum)
    return value


def namespace(value: str) -> str:
    """The namespace of a request; empty means "default"."""
    return name(value, "namespace", default="default")


def uuid(value: str, field: str, *, required: bool = True) -> str:
    """A UUID in its 36-character text form, in lower case; "" when it is absent and may be."""
    if not value and not required:
        return ""
    if not value:
        raise invalid(field, f"{field} is missing: a UUID is needed")
    if not _UUID.fullmatch(value):
        raise invalid(field, f"{field} is no UUID of 36 characters: {value[:40]!a}")
    return value.lower()


def duration_ms(value: int, field: str, *, minimum: int = 0, maximum: int = TEN_YEARS_MS) -> int:
    """A number of milliseconds within its bounds."""
    if not minimum <= value <= maximum:
        raise invalid(field, f"{field} is {value} ms, and must be from {minimum} to {maximum} ms")
    return value


def timestamp(value: Timestamp, field: str) -> datetime:
    """A moment from 1970 to the end of 2199, cut to microseconds."""
    if not (0 <= value.seconds < _LAST_SECOND and 0 <= value.nanos < 1_000_000_000):
        raise invalid(field, f"{field} is not between the years 1970 and 2199: {value.seconds} s since 1970")
    return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)


def moment_and_id(microseconds: int, identity: str) -> tuple[datetime, str]:
    """The key of a list that is ordered by a time and an id."""
    return _EPOCH + microseconds * timedelta(microseconds=1), uuid(identity, "id")


def payload(value: Payload, field: str) -> Payload:
    """A value of the user's, by size and by the name of its encoding alone."""
    if len(value.data) > PAYLOAD_BYTES:
        size = len(value.data)
        raise exceeded(field, f"{field} has {size} bytes, and at most {PAYLOAD_BYTES} are stored: store it elsewhere")
    name(value.encoding, f"{field}.encoding", default="")
    return value


def look_at(value: int) -> int:
    """How many rows are looked at for a page; 0 for as many as it takes."""
    if not 0 <= value <= LOOKED_AT:
        raise invalid("look_at", f"look_at is {value}, and must be from 0 to {LOOKED_AT}")
    return value


def labels(mapping: Mapping[str, str], field: str) -> dict[str, str]:
    """At most 32 labels. A value may be empty, a key may not."""
    if len(mapping) > LABELS:
        raise exceeded(field, f"{field} has {len(mapping)} entries, and at most {LABELS} are stored")
    return {name(key, field): name(mapping[key], field, default="") for key in sorted(mapping)}


def text(value: str, field: str, maximum: int) -> str:
    """Free text of a person, cleaned of what PostgreSQL cannot store."""
    clean = _NOT_IN_TEXT.sub("\N{REPLACEMENT CHARACTER}", value.replace("\0", ""))
    _bounded(clean, field, maximum)
    return clean


def excerpt(value: str, maximum: int) -> str:
    """Text of a program, as an error's message: cleaned like `text`, and cut: refusing it would hide it."""
    clean = _NOT_IN_TEXT.sub("\N{REPLACEMENT CHARACTER}", value.replace("\0", ""))
    data = clean.encode()
    return clean if len(data) <= maximum else data[: maximum - 3].decode(errors="ignore") + "\N{HORIZONTAL ELLIPSIS}"


def retry(policy: RetryPolicy, field: str) -> RetryPolicy:
    """A retry policy whose delays can be computed and are never shorter than the one before; 0 leaves a
    default.
    """
    if not 0 <= policy.maximum_attempts <= ATTEMPTS:
        message = f"{field}.maximum_attempts is {policy.maximum_attempts}, and must be from 0 to {ATTEMPTS}"
        raise invalid(f"{field}.maximum_attempts", message)
    coefficient = policy.backoff_coefficient
    if coefficient != 0 and not (math.isfinite(coefficient) and coefficient >= 1):
        message = f"{field}.backoff_coefficient is {coefficient}, and must be a number of at least 1"
        raise invalid(f"{field}.backoff_coefficient", message)
    initial = duration_ms(policy.initial_interval_ms, f"{field}.initial_interval_ms")
    if policy.maximum_interval_ms:
        duration_ms(policy.maximum_interval_ms, f"{field}.maximum_interval_ms", minimum=initial)
    return policy


def failure(given: Failure, field: str) -> None:
    """An error's texts are cleaned and cut, never refused: refusing them would hide the error."""
    given.type = excerpt(given.type, NAME_BYTES)
    given.message = excerpt(given.message, _MESSAGE)
    given.traceback = excerpt(given.traceback, _TRACEBACK)
    if given.HasField("retry_after_ms"):
        duration_ms(given.retry_after_ms, f"{field}.retry_after_ms")


def enum(value: int, kind: Any, field: str, *, required: bool = False) -> int:
    """A value the contract knows; the unspecified one (0) only where it has a meaning."""
    known = kind.DESCRIPTOR.values_by_number
    if value not in known or (required and value == 0):
        names = ", ".join(entry.name for number, entry in sorted(known.items()) if number)
        raise invalid(field, f"{field} is {value}, and must be one of {names}")
    return value


def json_document(value: str, field: str, maximum: int) -> str:
    """A JSON document that PostgreSQL's jsonb can hold, unchanged."""
    _bounded(value, field, maximum)
    try:
        _storable(json.loads(value, parse_constant=_refuse, parse_float=_number, parse_int=_number))
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(field, f"{field} cannot be stored as JSON: {reason}") from None
    return value


def _bounded(value: str, field: str, maximum: int) -> None:
    size = len(value.encode(errors="surrogatepass"))
    if size > maximum:
        raise exceeded(field, f"{field} has {size} bytes, and at most {maximum} are stored")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _number(digits: str) -> float:
    if len(digits) > _NUMBER_DIGITS or not math.isfinite(number := float(digits)):
        raise ValueError("a number is too long")
    if number == 0 and re.search("[1-9]", re.split("[eE]", digits)[0]):
        raise ValueError("a number is too small")
    return number


def _storable(document: Any, depth: int = 0) -> None:
    if depth > _JSON_DEPTH:
        raise RecursionError
    if isinstance(document, str):
        if _NOT_IN_TEXT.search(document):
            raise ValueError("a text holds NUL or half a surrogate pair")
    elif isinstance(document, dict):
        for key, value in document.items():
            _storable(key)
            _storable(value, depth + 1)
    elif isinstance(document, list):
        for value in document:
            _storable(value, depth + 1)
