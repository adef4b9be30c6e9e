"""Namespaces and the keys that open them. A new key's secret is shown once, in the answer to the form that made it, and
stands in no address and no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import uuid_utils

from kagzi.dashboard import wording
from kagzi.dashboard.pages.visit import View, Visit, part
from kagzi.dashboard.problems import Problem
from kagzi.sdk.errors import ServerError

ROLES = ("READER", "CLIENT", "WORKER", "ADMIN")
RETENTION = ("completed", "failed", "cancelled", "events")
_DAY_MS = 86_400_000
_PAGE = 100


async def namespaces(visit: Visit) -> View:
    """The page `/namespaces`."""
    told = await visit.ask("NamespaceService.ListNamespaces", page_size=_PAGE, page_token=visit.query.get("page", ""))
    token = told["next_page_token"]
    return View(
        "namespaces.html",
        {"found": told["namespaces"], "next": visit.link("/namespaces", page=token) if token else ""},
    )


async def namespace(visit: Visit) -> View:
    """The page `/namespaces/{name}`."""
    name: str = visit.request.path_params["name"]
    told = await visit.ask("NamespaceService.GetNamespace", name=name)
    keys, hidden = await _keys(visit, name)
    return View(
        "namespace.html",
        {
            "space": told["namespace"],
            "here": f"/namespaces/{part(name)}",
            "keys": keys,
            "hidden": hidden,
            "roles": ROLES,
            "kinds": RETENTION,
            "days": _days(told["namespace"]["retention"]),
            "secret": "",
        },
    )


async def create(visit: Visit, fields: Mapping[str, str]) -> str:
    """Makes a namespace."""
    name = fields.get("name", "").strip()
    await visit.ask("NamespaceService.CreateNamespace", name=name, description=fields.get("description", ""))
    return f"/namespaces/{part(name)}"


async def update(visit: Visit, fields: Mapping[str, str]) -> str:
    """Changes what a namespace is for, and how long what has ended is kept."""
    name: str = visit.request.path_params["name"]
    retention = {f"{kind}_ms": _milliseconds(fields, kind) for kind in RETENTION if fields.get(kind, "").strip()}
    description = fields.get("description", "")
    await visit.ask("NamespaceService.UpdateNamespace", name=name, description=description, retention=retention)
    return f"/namespaces/{part(name)}"


async def enable(visit: Visit, _: Mapping[str, str]) -> str:
    """Lets work start again."""
    name: str = visit.request.path_params["name"]
    await visit.ask("NamespaceService.EnableNamespace", name=name)
    return f"/namespaces/{part(name)}"


async def disable(visit: Visit, _: Mapping[str, str]) -> str:
    """Starts, claims and fires nothing more."""
    name: str = visit.request.path_params["name"]
    await visit.ask("NamespaceService.DisableNamespace", name=name)
    return f"/namespaces/{part(name)}"


async def make_key(visit: Visit, fields: Mapping[str, str]) -> View:
    """Makes a key and shows its secret, this once."""
    name: str = visit.request.path_params["name"]
    role = fields.get("role", "")
    if role not in ROLES:
        raise Problem("INVALID_ARGUMENT", f"a role is one of {', '.join(ROLES)}", field="role")
    told = await visit.ask(
        "NamespaceService.CreateKey",
        namespace=name,
        key_id=str(uuid_utils.uuid7()),
        name=fields.get("name", ""),
        role=role,
    )
    shown = await namespace(visit)
    return View(shown.template, {**shown.shown, "secret": told["secret"]})


async def revoke_key(visit: Visit, _: Mapping[str, str]) -> str:
    """Ends a key for good."""
    names: Mapping[str, str] = visit.request.path_params
    await visit.ask("NamespaceService.RevokeKey", namespace=names["name"], key_id=names["key_id"])
    return f"/namespaces/{part(names['name'])}"


async def _keys(visit: Visit, name: str) -> tuple[list[dict[str, Any]], str]:
    """The keys, or why they cannot be had: a reader sees the namespace all the same."""
    try:
        told = await visit.ask("NamespaceService.ListKeys", namespace=name, include_revoked=True, page_size=_PAGE)
    except ServerError as error:
        return [], wording.spoken(error.message)
    return told["keys"], ""


def _days(retention: Mapping[str, int | None] | None) -> dict[str, str]:
    kept = retention or {}
    return {kind: "" if (ms := kept.get(f"{kind}_ms")) is None else f"{ms / _DAY_MS:g}" for kind in RETENTION}


def _milliseconds(fields: Mapping[str, str], kind: str) -> int:
    try:
        return round(float(fields[kind]) * _DAY_MS)
    except (ValueError, OverflowError):
        raise Problem("INVALID_ARGUMENT", "days are a number, as 30 or 0.5; 0 is for ever", field=kind) from None
