"""The server itself: whether it can do its work, what it is, which limits it holds, and which workflows it knows of."""

from __future__ import annotations

import asyncio

from kagzi.dashboard.pages.visit import View, Visit

_TYPES = 100
# Workers that are looked at, and as many again that may be gone.
_LOOK_AT = 400


async def server(visit: Visit) -> View:
    """The page `/server`."""
    info, health, types = await asyncio.gather(
        visit.ask("AdminService.GetServerInfo"),
        visit.ask("AdminService.HealthCheck"),
        visit.ask("AdminService.ListWorkflowTypes", page_size=_TYPES, look_at=_LOOK_AT),
    )
    # The clock moves by itself: a page that showed it would always be new.
    info.pop("database_now")
    checks = [{"name": each["name"], "status": each["status"], "message": each["message"]} for each in health["checks"]]
    shown = {"info": info, "status": health["status"], "checks": checks, "types": types["types"]}
    return View("server.html", shown, every_secs=5.0)
