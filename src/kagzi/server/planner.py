"""The planner: which moments a schedule is due for, and what it does when it is. A slot lies within the schedule's
bounds and fires at itself plus jitter, which derives from schedule and slot: every server computes the same. Pure: it
reads no clock and no database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache

from kagzi.store.firing import Plan
from kagzi.store.templates import Template
from kagzi.timetable import Timetable, read_cron, read_interval

# A single slot that is late by no more than this was not missed.
ON_TIME = timedelta(seconds=5)
_INSTANT = timedelta(microseconds=1)


def timetable(template: Template) -> Timetable:
    """When the schedule is due, bounds aside. Raises TimetableError when that cannot be read any more."""
    return _timetable(template.cron, template.every, template.anchor, template.timezone)


@lru_cache(maxsize=10_000)
def _timetable(cron: str | None, every: timedelta | None, anchor: datetime | None, timezone: str) -> Timetable:
    if cron is not None:
        return read_cron(cron, timezone)
    if every is None or anchor is None:
        raise ValueError("it has neither cron nor interval: give it one of them")
    return read_interval(every, anchor)


def first(template: Template, after: datetime) -> datetime | None:
    """The first slot after a moment; None when there is none."""
    return next(slots(template, after), None)


def slots(template: Template, after: datetime) -> Iterator[datetime]:
    """Every slot after a moment, in order."""
    begin = after if template.starts_at is None else max(after, template.starts_at - _INSTANT)
    for slot in timetable(template).fires(begin):
        if template.ends_at is not None and slot >= template.ends_at:
            return
        yield slot


def newest(template: Template, since: datetime, until: datetime, limit: int) -> list[datetime]:
    """The newest slots from `since` to `until`, both included, in order."""
    begin = since if template.starts_at is None else max(since, template.starts_at)
    end = until if template.ends_at is None else min(until, template.ends_at - _INSTANT)
    return timetable(template).missed(begin - _INSTANT, end, limit) if limit > 0 and begin <= end else []


def fires_at(template: Template, slot: datetime) -> datetime:
    """When the schedule fires for a slot."""
    if not template.jitter:
        return slot
    key = f"{template.run_id}@{slot.timestamp():.6f}".encode()
    digest = hashlib.blake2b(key, digest_size=8, person=b"kagzijit").digest()
    return slot + template.jitter * (int.from_bytes(digest, "big") / 2**64)


def plan(template: Template, now: datetime, room: int) -> Plan:
    """What a due schedule does: the slots to fire and the next one. What is on time fires; of what was missed the
    newest slots, as many as the schedule makes up for; never more than it may start in all, or than there is room for:
    the rest stays due.
    """
    assert template.slot is not None, "a schedule that is due has a slot"
    assert template.available_at is not None, "a schedule that is due has a time"
    # One that could not fire was put off, and is as late as its slot is.
    at = template.available_at if template.error is None else fires_at(template, template.slot)
    due, following = _due(template, template.slot, at, now)
    if template.run_limit is not None:
        left = max(0, template.run_limit - template.fired)
        due = due[len(due) - min(len(due), left) :]
    if len(due) > room:
        return Plan(due[:room], due[room], template.available_at)
    return Plan(due, following, None if following is None else fires_at(template, following))


def _due(template: Template, slot: datetime, at: datetime, now: datetime) -> tuple[list[datetime], datetime | None]:
    """The slots to fire now, and the first that is not due yet."""
    # Whatever their jitter, slots up to here are due; those behind are looked at one by one.
    surely = max(slot, now - template.jitter)
    recent: list[datetime] = []
    following = None
    for later in slots(template, surely):
        if fires_at(template, later) > now:
            following = later
            break
        recent.append(later)
    second = first(template, slot)
    if now - at <= ON_TIME and (second is None or second > surely):
        return [slot, *recent], following
    kept = recent[len(recent) - min(len(recent), template.max_catchup) :]
    return [*newest(template, slot, surely, template.max_catchup - len(kept)), *kept], following
