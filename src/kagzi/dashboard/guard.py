"""What every request passes before anybody looks at it, and what every answer carries. A request must name a host that
is ours, so that no other site's name can be pointed at us; one that changes something must not come from a page of
another site; its body is bounded. Answers forbid browsers to load anything from elsewhere, to run inline code, and to
show us in a frame.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kagzi.dashboard.problems import Problem, document

# As large as a message to the server may be; its base64 and quoting come on top.
BODY_BYTES = 6 * 1024 * 1024
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_ANSWERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = {"GET", "HEAD", "OPTIONS"}
_TOO_LARGE = Problem("LIMIT_EXCEEDED", f"a body may have {BODY_BYTES} bytes")


class Guard:
    """Stands before the application. `hosts` are the names we are reached by, besides addresses and localhost."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused(scope["method"], headers)

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in _ANSWERS.items():
                    answer.setdefault(name, value)
                # What is shown belongs to whoever may see it now.
                answer.setdefault("cache-control", "no-store")
            await send(message)

        if refused is not None:
            await document(*refused)(scope, receive, dressed)
            return
        body = _Body(receive)

        async def unless_too_large(message: Message) -> None:
            # Whoever reads a body may take our word for bad syntax; the reader of the answer is told the truth.
            if not body.too_large:
                await dressed(message)

        await self._app(scope, body.receive, unless_too_large)
        if body.too_large:
            await document(_TOO_LARGE)(scope, receive, dressed)

    def _refused(self, method: str, headers: Headers) -> tuple[Problem, HTTPStatus] | None:
        host = headers.get("host", "")
        if not self._ours(_name(host)):
            message = f"{_name(host)!r} is no name of this server: add it to KAGZI_HTTP_ALLOWED_HOSTS if it should be"
            return Problem("INVALID_ARGUMENT", message, field="host"), HTTPStatus.MISDIRECTED_REQUEST
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES:
            return _TOO_LARGE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        if method not in _SAFE and _foreign(headers, host):
            return Problem("UNAUTHORIZED", "this comes from a page of another site"), HTTPStatus.FORBIDDEN
        return None

    def _ours(self, name: str) -> bool:
        """An address cannot be another site's name; a name must be known."""
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower() in self._hosts
        return True


class _Body:
    """Reads a request and stops where a body without a length grows too large."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0
        self.too_large = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > BODY_BYTES:
                self.too_large = True
                raise Problem(_TOO_LARGE.code, _TOO_LARGE.detail)
        return message


def _foreign(headers: Headers, host: str) -> bool:
    """Whether a browser says that the request comes from elsewhere; programs say nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != host


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
