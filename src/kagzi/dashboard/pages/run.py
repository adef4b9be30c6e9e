"""One run: its picture over time, what it took and gave, why it is where it is, its kin, and what can be done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kagzi.dashboard.drawings.timeline import timeline
from kagzi.dashboard.pages.visit import View, Visit

ENDED = {"COMPLETED", "FAILED", "CANCELLED"}
# What a form said it did, in words.
DONE = {
    "started": "A new run was started.",
    "cancel": "Asked to cancel.",
    "terminate": "Terminated.",
    "signal": "The signal was sent.",
    "resume": "Resumed.",
    "resolve": "The step was resolved.",
}
_STEPS = 100
_CHILDREN = 20


async def run(visit: Visit) -> View:
    """The page `/runs/{run_id}`."""
    run_id: str = visit.request.path_params["run_id"]
    found = (await visit.ask("WorkflowService.GetWorkflow", run_id=run_id))["run"]
    steps, reasons, children = await asyncio.gather(
        _steps(visit, found),
        visit.ask("AdminService.ExplainRun", run_id=run_id),
        visit.ask("WorkflowService.ListWorkflows", parent_run_id=run_id, page_size=_CHILDREN, look_at=100),
    )
    attempts: list[dict[str, Any]] = steps["steps"]
    return View(
        "run.html",
        {
            "run": found,
            "ended": found["status"] in ENDED,
            "parked": _parked(found["waiting"]),
            "picture": timeline(found, attempts),
            "explanation": reasons,
            "children": children["runs"],
            "more_children": bool(children["next_page_token"]),
            "unknown": [each for each in attempts if each["status"] == "UNKNOWN" and each["is_latest"]],
            "signals": _signals(attempts),
            "steps": list(dict.fromkeys(each["step_id"] for each in attempts if each["is_latest"])),
            "done": DONE.get(visit.query.get("done", ""), ""),
            "first": not visit.query.get("page"),
            "next": steps["next_page_token"],
        },
    )


async def _steps(visit: Visit, run: Mapping[str, Any]) -> dict[str, Any]:
    """A page of its attempts; a run that nobody began, and that repeats none, has none."""
    if not run["started_at"] and not run["retried_from"]:
        return {"steps": [], "next_page_token": ""}
    return await visit.ask(
        "AdminService.ListSteps",
        run_id=run["run_id"],
        include_superseded=True,
        page_size=_STEPS,
        page_token=visit.query.get("page", ""),
    )


async def attempt(visit: Visit) -> View:
    """The page `/runs/{run_id}/attempts/{attempt_id}`."""
    names: Mapping[str, str] = visit.request.path_params
    told = await visit.ask("AdminService.GetStep", run_id=names["run_id"], attempt_id=names["attempt_id"])
    return View("attempt.html", {"run_id": told["run_id"], "step": told["step"]})


def _parked(waiting: Any) -> dict[str, Any] | None:
    """What a parked run says of itself: what was recorded, and what its code asked for instead."""
    return waiting if isinstance(waiting, dict) and waiting.get("reason") == "nondeterminism" else None


def _signals(attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The signals that the run waits for."""
    return [
        each["target"]
        for each in attempts
        if each["kind"] == "SIGNAL" and each["status"] == "RUNNING" and each["target"]
    ]
