"""Facts in words, as people read them on pages: lengths of time, moments, sizes, and the tone of a status. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# What a status says: good, busy, rest (waits by itself), wait (waits for somebody), bad, gone.
TONES: Mapping[str, str] = {
    "PENDING": "wait",
    "RUNNING": "busy",
    "SLEEPING": "rest",
    "COMPLETED": "good",
    "FAILED": "bad",
    "CANCELLED": "gone",
    "UNKNOWN": "bad",
    "ABANDONED": "gone",
    "INTERRUPTED": "wait",
    "ONLINE": "good",
    "DRAINING": "wait",
    "OFFLINE": "gone",
    "SCHEDULED": "good",
    "PAUSED": "wait",
    "ACTIVE": "good",
    "BLOCKED": "bad",
    "RESERVED": "busy",
    "CONSUMED": "good",
    "SKIPPED": "gone",
    "DONE": "good",
    "IN_FLIGHT": "busy",
    "APPLIED": "good",
    "INDETERMINATE": "bad",
    "SERVING": "good",
    "DEGRADED": "wait",
    "NOT_SERVING": "bad",
}


def tone(status: str | None) -> str:
    """The tone of a status; an unknown one has none."""
    return TONES.get(status or "", "gone")


def plain(status: str | None) -> str:
    """A status as a word in a sentence: NOT_SERVING is "not serving"."""
    return (status or "unknown").replace("_", " ").lower()


def sentence(text: str) -> str:
    """Words as a sentence of their own."""
    text = text.strip()
    return text if not text else text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def length(milliseconds: float | None) -> str:
    """A length of time, as two units at most."""
    if milliseconds is None:
        return "—"
    if milliseconds < 1_000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1_000
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for unit, size, smaller, part in (("min", 60, "s", 1), ("h", 3_600, "min", 60), ("d", 86_400, "h", 3_600)):
        if seconds < size * {"min": 60, "h": 48, "d": 1_000_000}[unit]:
            whole, rest = divmod(int(seconds), size)
            return f"{whole} {unit} {rest // part} {smaller}" if rest // part else f"{whole} {unit}"
    return f"{seconds / 86_400:.0f} d"


def moment(text: str | None) -> datetime | None:
    """A time of the API."""
    return None if text is None else datetime.fromisoformat(text)


def clock(text: str | None) -> str:
    """A time for people, in UTC: with its date only if that is another day."""
    at = moment(text)
    if at is None:
        return "—"
    at = at.astimezone(UTC)
    same_day = at.date() == datetime.now(UTC).date()
    return at.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S")


def count(number: int, most: int | None = None) -> str:
    """A number with its thousands apart; one that was counted no further says so."""
    return f"{number:,}{'+' if most is not None and number >= most else ''}"


def pretty(value: Any) -> str:
    """A JSON value, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def took(since: str | None, until: str | None) -> float | None:
    """Milliseconds between two times; until now when the second is open."""
    began, ended = moment(since), moment(until)
    if began is None:
        return None
    return max(0.0, ((ended or datetime.now(UTC)) - began).total_seconds() * 1_000)


def short(identity: str) -> str:
    """Enough of an id to tell it from its neighbours: ids begin with the time, and end in chance."""
    return identity if len(identity) <= 12 else f"…{identity[-8:]}"
