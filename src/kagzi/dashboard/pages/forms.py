"""What pages send back. A form carries a token that a cookie of ours carries too, which no page of another site can
read or set; a form without it changes nothing. The cookie is sent to nobody else.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from kagzi.dashboard.problems import Problem

COOKIE = "kagzi_form"
FIELD = "form_token"
_BYTES = 24


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
    try:
        fields = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=200))
    except ValueError:
        raise Problem("INVALID_ARGUMENT", "the form cannot be read") from None
    given, known = fields.pop(FIELD, ""), request.cookies.get(COOKIE, "")
    if not known or not secrets.compare_digest(given.encode(), known.encode()):
        raise Problem("UNAUTHORIZED", "this form is too old, or not ours: go back, reload the page, and try again")
    return fields


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
