"""Every page and form of the dashboard and the function behind it."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from kagzi.dashboard.api.reference import Reference
from kagzi.dashboard.pages.frame import Frame
from kagzi.dashboard.pages.overview import overview

_FOREVER = "public, max-age=31536000, immutable"


def install(app: FastAPI, frame: Frame) -> None:
    """Adds the pages to an application; after everything else, for they end with a page for what is not there."""
    looks = {"/": overview, "/api/docs": Reference(app).look}
    for path, look in looks.items():
        app.router.add_route(path, frame.show(look), methods=["GET"], include_in_schema=False)
    app.mount("/static", _Static(packages=[("kagzi.dashboard", "static")]))


class _Static(StaticFiles):
    """Files whose addresses change with their content."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers["cache-control"] = _FOREVER
        return answer
