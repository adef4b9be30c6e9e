"""The first page: how it goes, what stands where, and what needs a person."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kagzi.dashboard import words
from kagzi.dashboard.drawings.chart import Chart, Series, bars, lines
from kagzi.dashboard.pages.visit import View, Visit, part

# How far back, and how many minutes make a point. Points of whole hours are read from rows of hours.
RANGES = {"1h": (60, 1), "6h": (360, 5), "24h": (1_440, 60), "7d": (10_080, 120)}
# Leases of each worker that are counted; who holds more has said how many.
_LOOK_AT = 4
# Counts that the charts are made of: with very many servers those of the last minutes are left for later.
_COUNTS = 900
# Where each kind of attention leads.
_LEADS = {
    "FAILED_RUNS": ("/runs", {"status": "FAILED"}),
    "PARKED_RUNS": ("/runs", {"status": "SLEEPING"}),
    "UNKNOWN_STEPS": ("/runs", {"status": "SLEEPING"}),
    "UNSERVED_RUNS": ("/runs", {"status": "PENDING"}),
    "BROKEN_SCHEDULES": ("/schedules", {}),
    "BLOCKED_AUTOMATIONS": ("/automations", {}),
    "SILENT_WORKERS": ("/workers", {}),
}
_SUBJECTS = {"BROKEN_SCHEDULES": "/schedules/", "BLOCKED_AUTOMATIONS": "/automations/", "SILENT_WORKERS": "/workers/"}


async def overview(visit: Visit) -> View:
    """The page `/`."""
    chosen = visit.query.get("range", "1h")
    minutes, step = RANGES.get(chosen, RANGES["1h"])
    since = _floor(datetime.now(UTC), step) - timedelta(minutes=minutes - step)
    stats, workers = await asyncio.gather(
        visit.ask("AdminService.GetStats", since=since, step_ms=step * 60_000, include_attention=True, look_at=_COUNTS),
        visit.ask("AdminService.ListWorkers", statuses=["ONLINE", "DRAINING"], page_size=100, look_at=_LOOK_AT),
    )
    until: str | None = stats["looked_until"]
    points: list[dict[str, Any]] = [each for each in stats["points"] if until is None or _at(each["at"]) < _at(until)]
    now = next((point for point in reversed(points) if _gauged(point)), None)
    return View(
        "overview.html",
        {
            "ranges": list(RANGES),
            "chosen": chosen if chosen in RANGES else "1h",
            "unused": [] if chosen in RANGES else [f"{chosen} is no range: it is one of {', '.join(RANGES)}."],
            "totals": {name: sum(point[name] for point in points) for name in ("started", "completed", "failed")},
            "now": now,
            "looked_until": until,
            "workers": workers["workers"],
            "more_workers": bool(workers["next_page_token"]),
            "attention": [_attention(visit, each) for each in stats["attention"]],
            "charts": _charts(points, days=minutes > 1_440),
            "quiet": not any(_gauged(point) or point["started"] or point["completed"] for point in points),
        },
        every_secs=3.0,
    )


def _attention(visit: Visit, found: dict[str, Any]) -> dict[str, Any]:
    path, query = _LEADS[found["code"]]
    lead = _SUBJECTS.get(found["code"], "/runs/")
    subjects = [(subject, visit.link(lead + part(subject))) for subject in found["subjects"]]
    return {**found, "link": visit.link(path, **query), "shown": subjects}


def _charts(points: Sequence[dict[str, Any]], *, days: bool) -> list[tuple[str, Chart]]:
    times = [_time(point["at"], days=days) for point in points]

    def series(tone: str, name: str, field: str) -> Series:
        return Series(tone, name, [point[field] for point in points])

    def gauge(tone: str, name: str, field: str) -> Series:
        return Series(tone, name, [point[field] if _gauged(point) else None for point in points])

    def latency(tone: str, name: str, field: str, rank: str) -> Series:
        return Series(tone, name, [point[field][rank] if point[field] else None for point in points])

    return [
        (
            "Runs that ended",
            bars(
                "Runs that ended",
                times,
                [
                    series("good", "completed", "completed"),
                    series("bad", "failed", "failed"),
                    series("gone", "cancelled", "cancelled"),
                ],
                lambda value: f"{value:,.0f}",
            ),
        ),
        (
            "In the queues",
            lines(
                "In the queues",
                times,
                [
                    gauge("wait", "due, waiting for a slot", "pending_due"),
                    gauge("busy", "running", "running"),
                    gauge("rest", "sleeping", "sleeping"),
                ],
                lambda value: f"{value:,.0f}",
            ),
        ),
        (
            "From start to end",
            lines(
                "From start to end",
                times,
                [latency("busy", "median", "duration", "p50_ms"), latency("wait", "95 of 100", "duration", "p95_ms")],
                words.length,
            ),
        ),
        (
            "From due to picked up",
            lines(
                "From due to picked up",
                times,
                [latency("busy", "median", "pickup", "p50_ms"), latency("wait", "95 of 100", "pickup", "p95_ms")],
                words.length,
            ),
        ),
    ]


def _floor(moment: datetime, minutes: int) -> datetime:
    """The beginning of the stretch that a moment is in."""
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (moment - midnight) // timedelta(minutes=minutes) * timedelta(minutes=minutes)


def _gauged(point: dict[str, Any]) -> bool:
    return bool(point["pending_due"] or point["running"] or point["sleeping"])


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _time(text: str, *, days: bool) -> str:
    at = _at(text)
    return at.strftime("%d %b %H:%M" if days else "%H:%M")
