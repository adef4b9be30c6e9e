"""What pages send back. A form carries a token that a cookie of ours carries too, which no page of another site can
read or set; a form without it changes nothing. The cookie is sent to nobody else.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import uuid_utils
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from kagzi.dashboard.problems import Problem

COOKIE = "kagzi_form"
FIELD = "form_token"
# Names what a form makes, wherever it makes something: one that is sent twice makes it once.
ONCE = "once"
_BYTES = 24
_FIELDS = 1_000


def token(request: HTTPConnection) -> str:
    """The token of this browser; a new one when it has none. Two asks of one request get the same."""
    if not hasattr(request.state, "form_token"):
        request.state.form_token = request.cookies.get(COOKIE) or secrets.token_urlsafe(_BYTES)
    made: str = request.state.form_token
    return made


def remember(request: HTTPConnection, answer: Response) -> None:
    """Gives the browser its token, if it has none."""
    if request.cookies.get(COOKIE) is None:
        secure = request.url.scheme == "https"
        answer.set_cookie(COOKIE, token(request), httponly=True, samesite="strict", secure=secure)


async def read(request: Request) -> Mapping[str, str]:
    """The fields of a form. Problem when it does not come from a page of ours."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/x-www-form-urlencoded":
        raise Problem("INVALID_ARGUMENT", "a form is expected here")
    body = await request.body()
    if body.count(b"&") >= _FIELDS:
        raise Problem("LIMIT_EXCEEDED", f"a form may have {_FIELDS:,} fields: choose fewer at a time")
    try:
        fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    except ValueError:
        raise Problem("INVALID_ARGUMENT", "the form cannot be read") from None
    given, known = fields.pop(FIELD, ""), request.cookies.get(COOKIE, "")
    if not known or not secrets.compare_digest(given.encode(), known.encode()):
        raise Problem("UNAUTHORIZED", "this form is too old, or not ours: go back, reload the page, and try again")
    return fields


def new_id() -> str:
    """An id that nobody has."""
    return str(uuid_utils.uuid7())


def identity(fields: Mapping[str, str]) -> str:
    """The id of what a form makes: the same as often as it is sent, and another when other things stand in it."""
    try:
        given = uuid.UUID(fields.get(ONCE, ""))
    except ValueError:
        return new_id()
    content = hashlib.sha256(json.dumps(sorted(fields.items())).encode()).digest()
    # The time stays, as ids begin with it; what was chance comes from the content.
    chance = int.from_bytes(content[:8]) & (1 << 62) - 1
    return str(uuid.UUID(int=given.int >> 64 << 64 | 0b10 << 62 | chance))


def value(fields: Mapping[str, str], name: str) -> Any:
    """The JSON value in a field of a form; None when it is empty."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = 'a text needs quotes, as "yes"' if not text.startswith(("{", "[", '"')) else str(error)
        raise Problem("INVALID_ARGUMENT", f"{name} is no JSON: {hint}", field=name) from None
