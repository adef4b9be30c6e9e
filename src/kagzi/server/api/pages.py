"""Pages of a list and the tokens that lead from one to the next. A token is opaque and holds the key of the
last row of its page, bound to the call, the namespace and the filters it was made for: with others it is
refused. It is no secret and grants nothing; what it names is looked for in the caller's own namespace.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from kagzi.store.errors import Refused, invalid

T = TypeVar("T")
B = TypeVar("B")

PAGE_ROWS = 100
_DEFAULT_ROWS = 50
_DIGEST_BYTES = 12
_FOREIGN = "page_token is not one of this call with these filters: begin without one"


@dataclass(frozen=True, slots=True)
class Page:
    """`size` rows after the one with the key `after`; from the beginning when that is empty."""

    size: int
    after: tuple[str | int, ...]

    def key(self, read: Callable[..., T], beginning: B) -> T | B:
        """What `read` makes of the key after which the page begins. Anybody can make a token: one whose key is not of
        the shape this list gives out is refused.
        """
        if not self.after:
            return beginning
        try:
            return read(*self.after)
        except (TypeError, ValueError, OverflowError, OSError, Refused):
            raise invalid("page_token", _FOREIGN) from None


def scope(request: Message, namespace: str) -> str:
    """What a page token of this request is bound to: everything in it but the page itself."""
    filters = type(request)()
    filters.CopyFrom(request)
    for field in ("namespace", "page_size", "page_token"):
        filters.ClearField(field)
    return "\0".join((request.DESCRIPTOR.full_name, namespace, filters.SerializeToString(deterministic=True).hex()))


def page(size: int, token: str, scope: str) -> Page:
    """The page that a request asks for."""
    if not 0 <= size <= PAGE_ROWS:
        raise invalid("page_size", f"page_size is {size}, and must be from 1 to {PAGE_ROWS}, or 0 for {_DEFAULT_ROWS}")
    return Page(size or _DEFAULT_ROWS, _opened(token, scope) if token else ())


def page_token(scope: str, values: tuple[str | int, ...]) -> str:
    """The token of the page that follows the row with the key `values`."""
    key = json.dumps(values, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_digest(scope, key) + key).decode().rstrip("=")


def _opened(token: str, scope: str) -> tuple[str | int, ...]:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    key = data[_DIGEST_BYTES:]
    if not key or data[:_DIGEST_BYTES] != _digest(scope, key):
        raise invalid("page_token", _FOREIGN)
    try:
        values = json.loads(key)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, list) or not values or not all(isinstance(value, str | int) for value in values):
        raise invalid("page_token", _FOREIGN)
    return tuple(values)


def _digest(scope: str, key: bytes) -> bytes:
    return hashlib.blake2s(scope.encode() + b"\0" + key, digest_size=_DIGEST_BYTES, person=b"kagzipag").digest()
