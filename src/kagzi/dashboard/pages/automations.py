"""Automations: handlers and topics as a graph, what is pending and for whom, what came in and what became of it, and,
when one is blocked, what a person can say to unblock it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import uuid_utils

from kagzi.dashboard.drawings.graph import graph
from kagzi.dashboard.pages.forms import value
from kagzi.dashboard.pages.visit import View, Visit, part
from kagzi.dashboard.problems import Problem

DONE = {
    "run": "Every producer is queued.",
    "pause": "Paused: the run under way finishes, no other starts.",
    "resume": "Resumed.",
    "retry": "Unblocked: it is tried again.",
    "resolve": "The mutation was resolved.",
    "skip": "What was pending of this input is skipped.",
    "publish": "The event was published.",
}
RESOLUTIONS = {"HAPPENED", "DID_NOT", "SKIP", "CHECK_AGAIN"}
STATUSES = ("PENDING", "RESERVED", "CONSUMED", "SKIPPED")
# null, for a mutation that returned nothing.
_NOTHING = {"$encoding": "json", "$data": "bnVsbA=="}
_PAGE = 20
_EVENTS = 50
_INPUTS = 20
# What is pending is counted so far, of each automation of a page, and of one that is looked at.
_COUNTED_EACH = 40
_COUNTED = 800
# A page costs the same however rare what is looked for; what lies further back is asked for.
_LOOK_AT = 200
# What is looked at of all that an input caused: of each in the list, and of one that is looked at.
_CAUSED_EACH = 20
_CAUSED = 100

Fields = Mapping[str, str]


async def automations(visit: Visit) -> View:
    """The page `/automations`."""
    told = await visit.ask(
        "AutomationService.ListAutomations",
        page_size=_PAGE,
        page_token=visit.query.get("page", ""),
        count_to=_COUNTED_EACH,
    )
    token = told["next_page_token"]
    return View(
        "automations.html",
        {
            "automations": told["automations"],
            "counted": _COUNTED_EACH,
            "next": visit.link("/automations", page=token) if token else "",
        },
    )


async def automation(visit: Visit) -> View:
    """The page `/automations/{name}`."""
    name = _name(visit)
    told, inputs = await asyncio.gather(
        visit.ask("AutomationService.GetAutomation", name=name, count_to=_COUNTED),
        visit.ask(
            "AutomationService.ListInputs",
            name=name,
            page_size=_INPUTS,
            page_token=visit.query.get("page", ""),
            look_at=_CAUSED_EACH,
        ),
    )
    found = told["automation"]
    token = inputs["next_page_token"]
    here = f"/automations/{part(name)}"
    return View(
        "automation.html",
        {
            "automation": found,
            "here": here,
            "picture": graph(found),
            "counted": _COUNTED,
            "counted_each": _COUNTED // max(1, len(found["backlog"])),
            "topics": sorted({topic for each in found["handlers"] for topic in each["definition"]["subscribes"]}),
            "inputs": inputs["inputs"],
            "first": not visit.query.get("page"),
            "next": visit.link(here, page=token) if token else "",
            "done": DONE.get(visit.query.get("done", ""), ""),
        },
    )


async def events(visit: Visit) -> View:
    """The page `/automations/{name}/events`."""
    name = _name(visit)
    status = visit.query.get("status", "")
    told = await visit.ask(
        "AutomationService.ListEvents",
        name=name,
        topic=visit.query.get("topic", ""),
        consumer=visit.query.get("consumer", ""),
        statuses=[status] if status in STATUSES else [],
        page_size=_EVENTS,
        page_token=visit.query.get("page", ""),
        look_at=_LOOK_AT,
    )
    here = f"/automations/{part(name)}"
    wanted = {key: visit.query.get(key, "") for key in ("topic", "consumer", "status")}
    token = told["next_page_token"]
    return View(
        "events.html",
        {
            "name": name,
            "here": here,
            "events": told["events"],
            "wanted": wanted,
            "first": not visit.query.get("page"),
            "statuses": STATUSES,
            "unused": [f"There is no delivery {status}: it is one of {', '.join(STATUSES)}."]
            if status and status not in STATUSES
            else [],
            "next": visit.link(f"{here}/events", **wanted, page=token) if token else "",
        },
    )


async def input_(visit: Visit) -> View:
    """The page `/automations/{name}/input`."""
    name = _name(visit)
    told = await visit.ask("AutomationService.GetInput", name=name, key=_key(visit.query), look_at=_CAUSED)
    return View("input.html", {"name": name, "here": f"/automations/{part(name)}", **told, "done": ""})


async def run_now(visit: Visit, _: Fields) -> str:
    """Queues every producer."""
    await visit.ask("AutomationService.RunNow", name=_name(visit), request_id=str(uuid_utils.uuid7()))
    return _back(visit, "run")


async def pause(visit: Visit, _: Fields) -> str:
    """Starts no further run."""
    await visit.ask("AutomationService.PauseAutomation", name=_name(visit))
    return _back(visit, "pause")


async def resume(visit: Visit, _: Fields) -> str:
    """Goes on."""
    await visit.ask("AutomationService.ResumeAutomation", name=_name(visit))
    return _back(visit, "resume")


async def retry(visit: Visit, fields: Fields) -> str:
    """Tries again what is blocked."""
    await visit.ask("AutomationService.RetryBlocked", name=_name(visit), run_id=fields.get("run_id", ""))
    return _back(visit, "retry")


async def resolve(visit: Visit, fields: Fields) -> str:
    """Says what became of a mutation."""
    resolution = fields.get("resolution", "")
    if resolution not in RESOLUTIONS:
        raise Problem("INVALID_ARGUMENT", "say what became of the mutation", field="resolution")
    asked: dict[str, Any] = {"reason": fields.get("reason", "")}
    if resolution == "HAPPENED":
        result = value(fields, "result")
        asked["result"] = _NOTHING if result is None else result
    await visit.ask(
        "AutomationService.ResolveMutation",
        name=_name(visit),
        mutation_id=visit.request.path_params["mutation_id"],
        resolution=resolution,
        **asked,
    )
    return _back(visit, "resolve")


async def publish(visit: Visit, fields: Fields) -> str:
    """Publishes an event by hand."""
    event = {"topics": [fields.get("topic", "")], "event_id": fields.get("event_id", "").strip()}
    await visit.ask(
        "AutomationService.Publish", name=_name(visit), events=[{**event, "payload": value(fields, "payload")}]
    )
    return _back(visit, "publish")


async def skip(visit: Visit, fields: Fields) -> str:
    """Skips what is pending of an input."""
    await visit.ask("AutomationService.SkipInput", name=_name(visit), key=_key(fields))
    return _back(visit, "skip")


def _key(given: Fields) -> dict[str, str]:
    return {name: given.get(name, "") for name in ("source", "type", "id")}


def _name(visit: Visit) -> str:
    name: str = visit.request.path_params["name"]
    return name


def _back(visit: Visit, done: str) -> str:
    return visit.link(f"/automations/{part(_name(visit))}", done=done)
