"""Signing in and out: a person shows an API key once, and the browser keeps it in a cookie that no script can read and
no other site can use. Whether the key is good is the server's to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import RedirectResponse, Response

from kagzi.dashboard.credentials import COOKIE
from kagzi.dashboard.pages.visit import View, Visit, part
from kagzi.dashboard.problems import Problem

_WEEK = 7 * 86_400


async def look(visit: Visit) -> View:
    """The page `/signin`."""
    return View("signin.html", {"to": _local(visit.query.get("to", "/")), "wrong": visit.query.get("wrong") == "1"})


async def sign_in(visit: Visit, fields: Mapping[str, str]) -> str | Response:
    """Keeps a key that the server takes."""
    key, to = fields.get("key", "").strip(), _local(fields.get("to", "/"))
    if not await visit.opens(key):
        return "/signin?wrong=1" + (f"&to={part(to)}" if to != "/" else "")
    answer = RedirectResponse(to, 303)
    secure = visit.request.url.scheme == "https"
    answer.set_cookie(COOKIE, key, max_age=_WEEK, httponly=True, samesite="strict", secure=secure)
    return answer


async def sign_out(_visit: Visit, _fields: Mapping[str, str]) -> Response:
    """Forgets the key."""
    answer = RedirectResponse("/signin", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


def _local(address: str) -> str:
    """An address on this site; anything else leads to the overview."""
    if not address.startswith("/") or address.startswith(("//", "/\\")):
        return "/"
    if any(ord(letter) < 32 for letter in address):
        raise Problem("INVALID_ARGUMENT", "this is no address", field="to")
    return address
