"""One run: its picture over time, what it took and gave, why it is where it is, its kin, and what can be done to it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from kagzi.dashboard.drawings.timeline import timeline
from kagzi.dashboard.pages.visit import View, Visit, number, part
from kagzi.dashboard.problems import Problem

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
_ATTEMPTS = 50
_MOST_ATTEMPTS = 2**31 - 1
_CHILDREN = 20
# A longer history is listed by the names of its steps, of which a page reads its own alone.
_LOOK_AT = 900


async def run(visit: Visit) -> View:
    """The page `/runs/{run_id}`."""
    run_id: str = visit.request.path_params["run_id"]
    found = (await visit.ask("WorkflowService.GetWorkflow", run_id=run_id))["run"]
    ended = found["status"] in ENDED
    steps, reasons, children = await asyncio.gather(
        _steps(visit, found),
        _reasons(visit, run_id, ended=ended),
        visit.ask("WorkflowService.ListWorkflows", parent_run_id=run_id, page_size=_CHILDREN, look_at=100),
    )
    attempts: list[dict[str, Any]] = steps["steps"]
    return View(
        "run.html",
        {
            "run": found,
            "ended": ended,
            "parked": _parked(found["waiting"]),
            "picture": timeline(found, attempts),
            "reasons": reasons,
            "children": children["runs"],
            "more_children": bool(children["next_page_token"]),
            "unknown": _subjects(reasons, "WAITS_RESOLUTION"),
            "signals": _subjects(reasons, "WAITS_SIGNAL"),
            "steps": list(dict.fromkeys(each["step_id"] for each in attempts if each["is_latest"])),
            "sought": visit.query.get("step", ""),
            "by_name": steps["by_step_id"],
            "done": DONE.get(visit.query.get("done", ""), ""),
            "first": not visit.query.get("page"),
            "next": steps["next_page_token"],
        },
    )


async def _steps(visit: Visit, run: Mapping[str, Any]) -> dict[str, Any]:
    """A page of its attempts; a run that nobody began, and that repeats none, has none."""
    if not run["started_at"] and not run["retried_from"]:
        return {"steps": [], "next_page_token": "", "by_step_id": False}
    sought = visit.query.get("step", "").strip()
    return await visit.ask(
        "AdminService.ListSteps",
        run_id=run["run_id"],
        include_superseded=True,
        step_id=sought,
        by_step_id=bool(sought),
        look_at=_LOOK_AT,
        page_size=_STEPS,
        page_token=visit.query.get("page", ""),
    )


async def _reasons(visit: Visit, run_id: str, *, ended: bool) -> list[dict[str, Any]]:
    """Why it is where it is, the most important first; one that has ended says so itself."""
    if ended:
        return []
    told = await visit.ask("AdminService.ExplainRun", run_id=run_id)
    reasons: list[dict[str, Any]] = told["reasons"]
    return reasons


async def step(visit: Visit) -> View:
    """The page `/runs/{run_id}/step`: one attempt of a step, the latest unless it is said which, and the others."""
    run_id: str = visit.request.path_params["run_id"]
    step_id = visit.query.get("id", "")
    asked = {"attempt_number": _attempt(text)} if (text := visit.query.get("attempt", "")) else {}
    told, others = await asyncio.gather(
        visit.ask("AdminService.GetStep", run_id=run_id, step_id=step_id, **asked),
        visit.ask(
            "AdminService.ListSteps",
            run_id=run_id,
            step_id=step_id,
            include_superseded=True,
            by_step_id=True,
            page_size=_ATTEMPTS,
            page_token=visit.query.get("page", ""),
        ),
    )
    return View(
        "step.html",
        {
            "run_id": run_id,
            "here": f"/runs/{part(run_id)}/step",
            "step": told["step"],
            "attempts": others["steps"],
            "first": not visit.query.get("page"),
            "next": others["next_page_token"],
        },
    )


def _attempt(text: str) -> int:
    found = number(text.removeprefix("-"))
    if found is None or found > _MOST_ATTEMPTS:
        raise Problem("INVALID_ARGUMENT", "an attempt is named by its number, as 2", field="attempt")
    return -found if text.startswith("-") else found


def _parked(waiting: Any) -> dict[str, Any] | None:
    """What a parked run says of itself: what was recorded, and what its code asked for instead."""
    return waiting if isinstance(waiting, dict) and waiting.get("reason") == "nondeterminism" else None


def _subjects(reasons: Sequence[Mapping[str, Any]], code: str) -> list[str]:
    """What the run waits for, of one kind."""
    return [each["subject"] for each in reasons if each["code"] == code and each["subject"]]
