"""Runs as a list: found by status, type, queue, age, label or id, newest first, and live."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from kagzi.dashboard.pages.visit import View, Visit
from kagzi.sdk.errors import NotFound

STATUSES = ("PENDING", "RUNNING", "SLEEPING", "COMPLETED", "FAILED", "CANCELLED")
SINCE = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_FIELDS = ("q", "status", "type", "queue", "since", "label", "parent", "schedule")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PAGE = 50
# A page costs the same however rare what is looked for; what lies further back is asked for.
_LOOK_AT = 900


async def runs(visit: Visit) -> View:
    """The page `/runs`."""
    wanted = {name: visit.query.get(name, "").strip() for name in _FIELDS}
    found, token = await _find(visit, wanted)
    return View(
        "runs.html",
        {
            "runs": found,
            "wanted": wanted,
            "statuses": STATUSES,
            "since": list(SINCE),
            "filtered": any(wanted.values()),
            "first": not visit.query.get("page"),
            "next": visit.link("/runs", **wanted, page=token) if token else "",
        },
    )


async def _find(visit: Visit, wanted: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    q = wanted["q"]
    if q and "=" not in q:
        return await _by_id(visit, q), ""
    labels = dict(_label(text) for text in (wanted["label"], q) if "=" in text)
    age = SINCE.get(wanted["since"])
    told = await visit.ask(
        "WorkflowService.ListWorkflows",
        statuses=[wanted["status"]] if wanted["status"] in STATUSES else [],
        workflow_type=wanted["type"],
        task_queue=wanted["queue"],
        labels=labels,
        parent_run_id=wanted["parent"],
        schedule_id=wanted["schedule"],
        since=None if age is None else datetime.now(UTC).replace(second=0, microsecond=0) - age,
        page_size=_PAGE,
        page_token=visit.query.get("page", ""),
        look_at=_LOOK_AT,
    )
    return told["runs"], told["next_page_token"]


async def _by_id(visit: Visit, text: str) -> list[dict[str, Any]]:
    """The run with this id, or the one that its caller named so."""
    try:
        if _UUID.fullmatch(text):
            told = await visit.ask("WorkflowService.GetWorkflow", run_id=text.lower())
        else:
            told = await visit.ask("WorkflowService.GetWorkflowByExternalId", external_id=text)
    except NotFound:
        return []
    return [told["run"]]


def _label(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key.strip(), value.strip()
