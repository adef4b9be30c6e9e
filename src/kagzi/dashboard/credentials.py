"""Who asks: the API key that a request shows. Programs show it in the Authorization header, people have it in a cookie
since they signed in; the API never reads the cookie, so that no page of another site can borrow it. The key is passed
on with every call and judged by the server; nothing here looks into it or keeps it.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection

COOKIE = "kagzi_key"
_SCHEME = "bearer "


def of_program(request: HTTPConnection) -> str | None:
    """The key in the header, or None."""
    header = request.headers.get("authorization", "")
    if header[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return _printable(header[len(_SCHEME) :].strip())


def of_person(request: HTTPConnection) -> str | None:
    """The key in the cookie, or None."""
    return _printable(request.cookies.get(COOKIE, ""))


def _printable(key: str) -> str | None:
    """What could be a key; other characters could not travel in a header of gRPC."""
    return key if key and key.isascii() and key.isprintable() else None
