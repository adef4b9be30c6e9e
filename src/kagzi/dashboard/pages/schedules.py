"""Schedules: what fires when, in words, what is next and what was, and what can be done about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import uuid_utils

from kagzi.dashboard.pages.forms import value
from kagzi.dashboard.pages.visit import View, Visit, number, part
from kagzi.dashboard.problems import Problem
from kagzi.sdk.errors import PreconditionFailed

DONE = {
    "create": "The schedule was made.",
    "pause": "Paused: nothing fires until it is resumed.",
    "resume": "Resumed: slots that were missed meanwhile are skipped.",
    "trigger": "A run was started.",
    "skipped": "No run was started: its overlap says to skip while another one runs.",
    "update": "The schedule was changed.",
}
OVERLAPS = ("ALLOW", "SKIP", "QUEUE_ONE", "CANCEL_PREVIOUS")
_CRON = re.compile(r"@\w+|(?:[\dA-Z*/,#?-]+\s+){4,5}[\dA-Z*/,#?-]+", re.IGNORECASE)
_PAGE = 50
_NEXT = 10
_HISTORY = 20
# A backfill is done by the thousand, and a person waits for so many of them.
_FILLED = 10
# The end of the calendar.
_LATEST = 253_402_300_799

Fields = Mapping[str, str]


async def schedules(visit: Visit) -> View:
    """The page `/schedules`."""
    told = await visit.ask(
        "WorkflowScheduleService.ListSchedules", page_size=_PAGE, page_token=visit.query.get("page", "")
    )
    token = told["next_page_token"]
    return View(
        "schedules.html",
        {
            "schedules": told["schedules"],
            "overlaps": OVERLAPS,
            "first": not visit.query.get("page"),
            "next": visit.link("/schedules", page=token) if token else "",
        },
    )


async def schedule(visit: Visit) -> View:
    """The page `/schedules/{schedule_id}`."""
    name = _name(visit)
    told, fires, history = await asyncio.gather(
        visit.ask("WorkflowScheduleService.GetSchedule", schedule_id=name),
        _next(visit, name),
        visit.ask("WorkflowScheduleService.ListScheduleRuns", schedule_id=name, page_size=_HISTORY),
    )
    return View(
        "schedule.html",
        {
            "schedule": told["schedule"],
            "here": f"/schedules/{part(name)}",
            "fires": fires,
            "runs": history["runs"],
            "more": bool(history["next_page_token"]),
            "overlaps": OVERLAPS,
            "done": DONE.get(visit.query.get("done", ""), "") or _filled(visit.query),
        },
    )


async def _next(visit: Visit, name: str) -> list[Any]:
    """When it fires next; one that cannot fire says so itself."""
    try:
        told = await visit.ask("WorkflowScheduleService.PreviewSchedule", schedule_id=name, count=_NEXT)
    except PreconditionFailed:
        return []
    fires: list[Any] = told["fires"]
    return fires


async def create(visit: Visit, fields: Fields) -> str:
    """Makes a schedule."""
    name = fields.get("schedule_id", "").strip()
    await visit.ask(
        "WorkflowScheduleService.CreateSchedule",
        schedule_id=name,
        template_run_id=str(uuid_utils.uuid7()),
        workflow_type=fields.get("workflow_type", "").strip(),
        task_queue=fields.get("task_queue", "").strip(),
        timing=_timing(fields.get("when", "")),
        timezone=fields.get("timezone", "").strip(),
        overlap=_overlap(fields),
        input=value(fields, "input"),
    )
    return visit.link(f"/schedules/{part(name)}", done="create")


async def update(visit: Visit, fields: Fields) -> str:
    """Changes when it fires."""
    changes: dict[str, Any] = {"timing": _timing(fields.get("when", "")), "overlap": _overlap(fields)}
    if fields.get("timezone", "").strip():
        changes["timezone"] = fields["timezone"].strip()
    await visit.ask("WorkflowScheduleService.UpdateSchedule", schedule_id=_name(visit), **changes)
    return _back(visit, "update")


async def pause(visit: Visit, fields: Fields) -> str:
    """Lets nothing fire."""
    reason = fields.get("reason", "")
    await visit.ask("WorkflowScheduleService.PauseSchedule", schedule_id=_name(visit), reason=reason)
    return _back(visit, "pause")


async def resume(visit: Visit, _: Fields) -> str:
    """Lets it fire again."""
    await visit.ask("WorkflowScheduleService.ResumeSchedule", schedule_id=_name(visit))
    return _back(visit, "resume")


async def trigger(visit: Visit, _: Fields) -> str:
    """Starts a run now."""
    told = await visit.ask(
        "WorkflowScheduleService.TriggerSchedule", schedule_id=_name(visit), run_id=str(uuid_utils.uuid7())
    )
    return _back(visit, "skipped" if told["skipped"] else "trigger")


async def backfill(visit: Visit, fields: Fields) -> str:
    """Starts the runs of slots that have passed, or says how many these are."""
    counts = fields.get("dry_run") == "yes"
    since: datetime | None = _moment(fields, "since")
    until = _moment(fields, "until")
    overlap = _overlap(fields, (*OVERLAPS, "QUEUE_ALL"))
    total = started = existed = pages = 0
    while since is not None and pages < _FILLED:
        told = await visit.ask(
            "WorkflowScheduleService.BackfillSchedule",
            schedule_id=_name(visit),
            since=since,
            until=until,
            overlap=overlap,
            dry_run=counts,
        )
        pages += 1
        total, started, existed = max(total, told["total"]), started + told["started"], existed + told["already_exist"]
        since = datetime.fromisoformat(told["continue_from"]) if told["continue_from"] else None
    told_of = {"slots": str(total)} if counts else {"started": str(started)}
    left = "" if since is None or counts else str(int(since.timestamp()))
    return visit.link(f"/schedules/{part(_name(visit))}", **told_of, existed=str(existed), left=left)


async def delete(visit: Visit, _: Fields) -> str:
    """Removes a schedule; its runs stay."""
    await visit.ask("WorkflowScheduleService.DeleteSchedule", schedule_id=_name(visit))
    return visit.link("/schedules")


def _filled(query: Mapping[str, str]) -> str:
    """What a backfill did, or would do. Numbers alone are taken from the address."""
    for name, said in (("slots", "slots lie there"), ("started", "runs were started")):
        count, existed, left = (number(query.get(each, "")) for each in (name, "existed", "left"))
        if count is not None and existed is not None:
            done = f"{count:,} {said}; {existed:,} existed already."
            if left is None:
                return done
            rest = datetime.fromtimestamp(min(left, _LATEST), UTC)
            return f"{done} There are more: go on from {rest:%Y-%m-%d %H:%M:%S} UTC."
    return ""


def _timing(when: str) -> dict[str, str]:
    """A cron expression, or words."""
    when = when.strip()
    if not when:
        raise Problem("INVALID_ARGUMENT", "say when it fires, as `every friday at 5pm` or `0 2 * * *`", field="when")
    return {"cron": when} if _CRON.fullmatch(when) else {"text": when}


def _overlap(fields: Fields, known: Sequence[str] = OVERLAPS) -> str | None:
    chosen = fields.get("overlap", "")
    if chosen and chosen not in known:
        raise Problem("INVALID_ARGUMENT", f"an overlap is one of {', '.join(known)}", field="overlap")
    return chosen or None


def _moment(fields: Fields, name: str) -> datetime:
    """A time of a form, which names no zone: the schedule's own is meant, or UTC."""
    try:
        given = datetime.fromisoformat(fields.get(name, ""))
        zone = ZoneInfo(fields.get("timezone") or "UTC")
    except (ValueError, ZoneInfoNotFoundError, OSError):
        raise Problem("INVALID_ARGUMENT", "a time is written as 2026-01-31T12:00", field=name) from None
    return given if given.tzinfo is not None else given.replace(tzinfo=zone)


def _name(visit: Visit) -> str:
    name: str = visit.request.path_params["schedule_id"]
    return name


def _back(visit: Visit, done: str) -> str:
    return visit.link(f"/schedules/{part(_name(visit))}", done=done)
