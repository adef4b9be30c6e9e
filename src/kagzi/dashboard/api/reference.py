"""The reference of the HTTP API at `/api/docs`: the OpenAPI document as a page of our own, which loads nothing from
anywhere else. What it says comes from the document, and that from the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from kagzi.dashboard.pages.visit import View, Visit

_DEEPEST = 4


class Reference:
    """The view of an application's own document."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._groups: dict[str, list[dict[str, Any]]] = {}

    async def look(self, _: Visit) -> View:
        """The page `/api/docs`."""
        # It never changes while the process lives.
        self._groups = self._groups or _groups(self._app.openapi())
        return View("reference.html", {"groups": self._groups})


def _groups(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The routes by their noun."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, verbs in document["paths"].items():
        for verb, route in verbs.items():
            found.setdefault(route["tags"][0], []).append(_route(path, verb, route, document))
    return found


def _route(path: str, verb: str, route: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    status, answer = next((code, told) for code, told in route["responses"].items() if code.startswith("2"))
    return {
        "id": route["operationId"],
        "verb": verb.upper(),
        "path": path,
        "said": route["description"],
        "parameters": [
            {
                "name": each["name"],
                "place": each["in"],
                "kind": _kind(each["schema"], document),
                "said": each.get("description", ""),
            }
            for each in route.get("parameters", ())
        ],
        "body": _fields(body, document) if body else [],
        "status": status,
        "answer": json.dumps(_example(answer["content"]["application/json"]["schema"], document), indent=2),
    }


def _fields(schema: Mapping[str, Any], document: Mapping[str, Any]) -> list[dict[str, str]]:
    found = _resolved(schema, document)
    return [
        {"name": name, "kind": _kind(each, document), "said": each.get("description", "")}
        for name, each in found.get("properties", {}).items()
    ]


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follows references, and looks past "or null"."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            return _resolved(choice, document)
    if "$ref" not in schema:
        return schema
    found: Mapping[str, Any] = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _kind(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    found = _resolved(schema, document)
    if "enum" in found:
        return " | ".join(found["enum"])
    if "const" in found:
        return str(found["const"])
    if found.get("type") == "array":
        return f"list of {_kind(found['items'], document)}"
    if "properties" in found:
        return "{" + ", ".join(found["properties"]) + "}"
    return str(found.get("format") or found.get("type") or "JSON value")


def _example(schema: Mapping[str, Any], document: Mapping[str, Any], depth: int = 0) -> Any:
    """The form of an answer, with the kinds of its values."""
    found = _resolved(schema, document)
    if "properties" in found and depth < _DEEPEST:
        return {name: _example(each, document, depth + 1) for name, each in found["properties"].items()}
    if found.get("type") == "array" and depth < _DEEPEST:
        return [_example(found["items"], document, depth + 1)]
    return _kind(found, document)
