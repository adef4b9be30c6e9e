"""Runs as a list: found by status, type, queue, age, label or id, newest first, and live."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kagzi.dashboard import words
from kagzi.dashboard.pages.visit import View, Visit, number
from kagzi.sdk.errors import NotFound

STATUSES = ("PENDING", "RUNNING", "SLEEPING", "COMPLETED", "FAILED", "CANCELLED")
SINCE = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
FIELDS = ("q", "status", "type", "queue", "since", "label", "parent", "schedule")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PAGE = 50
# A page costs the same however rare what is looked for; what lies further back is asked for.
_LOOK_AT = 900


async def runs(visit: Visit) -> View:
    """The page `/runs`."""
    wanted = {name: visit.query.get(name, "").strip() for name in FIELDS}
    found, token = await _find(visit, wanted)
    return View(
        "runs.html",
        {
            "runs": found,
            "wanted": wanted,
            "statuses": STATUSES,
            "since": list(SINCE),
            "filtered": any(wanted.values()),
            "unused": _unused(wanted),
            "done": _done(visit.query),
            "first": not visit.query.get("page"),
            "next": visit.link("/runs", **wanted, page=token) if token else "",
        },
    )


def _done(query: Mapping[str, str]) -> str:
    """What was done with the runs that were chosen. Numbers alone are taken from the address."""
    said = {"retry": "started anew", "cancel": "asked to cancel", "terminate": "terminated"}.get(
        query.get("action", "")
    )
    changed, left = number(query.get("changed", "")), number(query.get("left", ""))
    if said is None or changed is None or left is None:
        return ""
    rest = f" {left:,} stayed as they were: it does not apply to them." if left else ""
    return f"{changed:,} {'run was' if changed == 1 else 'runs were'} {said}.{rest}"


def _unused(wanted: dict[str, str]) -> list[str]:
    """What of the filters could not be used, in sentences: what is shown is not what was asked for."""
    q, said = wanted["q"], []
    if wanted["status"] and wanted["status"] not in STATUSES:
        said.append(f"There is no status {wanted['status']}: it is one of {', '.join(map(words.plain, STATUSES))}.")
    if wanted["since"] and wanted["since"] not in SINCE:
        said.append(f"{wanted['since']} is no time to look back: it is one of {', '.join(SINCE)}.")
    if wanted["label"] and "=" not in wanted["label"]:
        said.append(f"{wanted['label']} is no label: one is written as customer=7.")
    if q and "=" not in q and any(wanted[name] for name in FIELDS if name != "q"):
        said.append(f"{q} is looked for as an id, and an id is looked for without other filters.")
    return said


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
