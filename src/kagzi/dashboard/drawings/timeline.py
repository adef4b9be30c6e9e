"""A run over time: one row a step, with its attempts, the pauses between them, and its waits. Places are percentages of
the time from the run's creation to its end, or to now. What is too short to see is drawn as wide as can be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from kagzi.dashboard import words

# In percent: a step of a millisecond in a run of days is still there to be pointed at.
_NARROWEST = 0.5
_TICKS = 4
_WAITS = {"SLEEP": "rest", "SIGNAL": "rest", "CHILD_WORKFLOW": "rest"}
_TONES = {"COMPLETED": "good", "FAILED": "bad", "UNKNOWN": "bad", "RUNNING": "busy", "PENDING": "wait"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a row."""

    x: float
    width: float
    tone: str
    said: str


@dataclass(frozen=True, slots=True)
class Row:
    """One step."""

    step: Mapping[str, Any]
    # Its attempts, the latest last.
    attempts: Sequence[Mapping[str, Any]]
    segments: Sequence[Segment]
    took: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole picture."""

    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    # Before a worker first had the run.
    queued: Segment | None
    span: str


@dataclass(frozen=True, slots=True)
class _Scale:
    start: datetime
    end: datetime

    def place(self, moment: datetime) -> float:
        length = (self.end - self.start) / timedelta(microseconds=1)
        return 100 * min(1.0, max(0.0, (moment - self.start) / timedelta(microseconds=1) / length))

    def segment(self, since: datetime, until: datetime, tone: str, said: str) -> Segment:
        x = self.place(since)
        width = max(_NARROWEST, self.place(until) - x)
        return Segment(round(min(x, 100 - width), 3), round(width, 3), tone, said)


def timeline(run: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], now: datetime | None = None) -> Timeline:
    """The picture of a run and its attempts, in the order of the API."""
    now = now or datetime.now(UTC)
    start = _moment(run["created_at"])
    end = max(_moment(run["finished_at"]) if run["finished_at"] else now, start + timedelta(milliseconds=1))
    scale = _Scale(start, end)
    by_step: dict[str, list[Mapping[str, Any]]] = {}
    for step in steps:
        by_step.setdefault(step["step_id"], []).append(step)
    rows = [_row(attempts, scale) for attempts in by_step.values()]
    length = (end - start) / timedelta(milliseconds=1)
    ticks = [(100 * number / _TICKS, words.length(length * number / _TICKS)) for number in range(1, _TICKS)]
    return Timeline(rows, ticks, _queued(run, scale), words.length(length))


def _row(attempts: list[Mapping[str, Any]], scale: _Scale) -> Row:
    # An attempt that a retry of the whole workflow set aside has a number below 0, and came first.
    attempts = sorted(attempts, key=lambda each: (each["is_latest"], each["attempt_number"] > 0, each["created_at"]))
    segments = [_attempt(each, scale) for each in attempts if each["created_at"]]
    segments += _pauses(attempts, scale)
    latest = attempts[-1]
    took = words.length(words.took(latest["started_at"] or latest["created_at"], latest["finished_at"]))
    return Row(latest, attempts, segments, took)


def _attempt(attempt: Mapping[str, Any], scale: _Scale) -> Segment:
    since = _moment(attempt["started_at"] or attempt["created_at"])
    until = _moment(attempt["finished_at"]) if attempt["finished_at"] else scale.end
    status = attempt["status"]
    tone = _TONES.get(status, "gone")
    if attempt["kind"] in _WAITS and status in {"RUNNING", "COMPLETED"}:
        tone = "rest"
    if not attempt["is_latest"] and status == "COMPLETED":
        tone = "gone"
    number = attempt["attempt_number"]
    name = f"attempt {number}" if number > 0 else "set aside"
    length = words.length((until - since) / timedelta(milliseconds=1))
    return scale.segment(since, max(since, until), tone, f"{name}: {words.plain(status)}, {length}")


def _pauses(attempts: Sequence[Mapping[str, Any]], scale: _Scale) -> Iterator[Segment]:
    """What lies between a failed attempt and the next one."""
    for failed, following in pairwise([*attempts, None]):
        if failed is None or failed["status"] != "FAILED" or not failed["finished_at"] or not failed["retry_at"]:
            continue
        since = _moment(failed["finished_at"])
        until = _moment((following["started_at"] or following["created_at"]) if following else failed["retry_at"])
        if until > since:
            yield scale.segment(since, min(until, scale.end), "wait", "waits for the next attempt")


def _queued(run: Mapping[str, Any], scale: _Scale) -> Segment | None:
    started = _moment(run["started_at"]) if run["started_at"] else scale.end
    length = words.length((started - scale.start) / timedelta(milliseconds=1))
    return scale.segment(scale.start, started, "wait", f"waited for a worker: {length}")


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
