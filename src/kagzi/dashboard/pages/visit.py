"""One person's look at one page: who asks, for which namespace, and what came with it. A view asks the server through
it, so that nothing is shown that the person's key does not open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request

from kagzi.dashboard import gateway
from kagzi.dashboard.api import values
from kagzi.dashboard.credentials import of_person
from kagzi.dashboard.gateway import Gateway
from kagzi.dashboard.pages import forms
from kagzi.dashboard.problems import Problem
from kagzi.protocol.v1.admin_pb2 import GetServerInfoRequest
from kagzi.sdk.calls import named_by
from kagzi.sdk.errors import Unauthorized

DEFAULT = "default"
# Moments in seconds have twelve.
_DIGITS = 15


@dataclass(frozen=True, slots=True)
class View:
    """What a page shows: a template and what it speaks of."""

    template: str
    shown: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    # How often what can change is looked at again.
    every_secs: float = 1.0


class Visit:
    """One request of a person."""

    def __init__(self, request: Request, server: Gateway) -> None:
        self.request = request
        self.path = request.url.path
        self.query = request.query_params
        self._server = server
        self._credential = of_person(request)
        # Where a person is who does not say: the namespace of the key.
        self.home = named_by(self._credential) or DEFAULT
        self.namespace = self.query.get("namespace") or self.home

    @property
    def key(self) -> tuple[str, ...]:
        """What two looks share that see the same, forms and their token included."""
        return self._credential or "", forms.token(self.request), self.path, self.request.url.query

    async def ask(self, rpc: str, **fields: Any) -> dict[str, Any]:
        """Makes a call in this namespace and answers it as the API does. Problem when a value fits no call."""
        kind = gateway.method(rpc).input_type
        asked = values.new(kind)
        if "namespace" in kind.fields_by_name:
            fields.setdefault("namespace", self.namespace)
        try:
            values.fill(asked, fields)
        except values.Misfit as misfit:
            raise Problem("INVALID_ARGUMENT", f"{misfit.field}: {misfit}", field=misfit.field) from None
        return values.to_json(await self._server.call(rpc, asked, self._credential))

    async def opens(self, key: str) -> bool:
        """Whether the server takes a key that is not this person's yet."""
        if not (key and key.isascii() and key.isprintable()):
            return False
        try:
            await self._server.call("AdminService.GetServerInfo", GetServerInfoRequest(), key)
        except Unauthorized:
            return False
        return True

    def link(self, path: str, **query: Any) -> str:
        """An address on this site, in the same namespace. Parts of `path` that are not ours were quoted before."""
        given = {name: value for name, value in query.items() if value not in (None, "", [])}
        if self.namespace != self.home:
            given.setdefault("namespace", self.namespace)
        return f"{path}?{urlencode(given, doseq=True)}" if given else path


def number(text: str) -> int | None:
    """The number that an address names, 0 or more; None for what is none, or longer than any of ours."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


def part(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")
