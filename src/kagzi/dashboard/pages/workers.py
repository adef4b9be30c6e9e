"""Workers: who is there, how much each holds, and what waits in the queues they serve."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kagzi.dashboard.pages.visit import View, Visit

_PAGE = 50
_QUEUES = 20
# Leases of each worker that are counted, and those of one alone; who holds more has said how many.
_LOOK_AT = 10
_HELD = 100


async def workers(visit: Visit) -> View:
    """The page `/workers`."""
    gone = visit.query.get("show") == "all"
    told, depths = await asyncio.gather(
        visit.ask(
            "AdminService.ListWorkers",
            statuses=[] if gone else ["ONLINE", "DRAINING"],
            page_size=_PAGE,
            look_at=_LOOK_AT,
            page_token=visit.query.get("page", ""),
        ),
        visit.ask("AdminService.GetQueueDepth", page_size=_QUEUES, counted=True),
    )
    token = told["next_page_token"]
    return View(
        "workers.html",
        {
            "workers": told["workers"],
            "gone": gone,
            "queues": depths["depths"],
            "more_queues": bool(depths["next_page_token"]),
            "first": not visit.query.get("page"),
            "next": visit.link("/workers", show="all" if gone else "", page=token) if token else "",
        },
    )


async def worker(visit: Visit) -> View:
    """The page `/workers/{worker_id}`."""
    told = await visit.ask("AdminService.GetWorker", worker_id=_worker(visit), look_at=_HELD)
    return View("worker.html", {"worker": told["worker"], "runs": told["runs"], "done": visit.query.get("done", "")})


async def drain(visit: Visit, _: Mapping[str, str]) -> str:
    """Asks a worker to take nothing more."""
    await visit.ask("AdminService.DrainWorker", worker_id=_worker(visit))
    return visit.link(f"/workers/{_worker(visit)}", done="drain")


def _worker(visit: Visit) -> Any:
    return visit.request.path_params["worker_id"]
