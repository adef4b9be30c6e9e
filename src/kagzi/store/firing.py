"""Firing: due templates become runs, and move on to their next slots, in one transaction. A template is locked before
it is looked at, and what was fired since it was found is due no longer, so any number of servers may fire at once and
each slot is fired by one. Which slots are due is decided by the caller's planner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import asyncpg
import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.store import launches, overlaps, templates
from kagzi.store.operation import Outcome
from kagzi.store.overlaps import Start, Wish
from kagzi.store.queries import Queries
from kagzi.store.templates import ALLOW, FINISHED, RUN_LIMIT, Template

_sql = Queries("firing.sql")
_upcoming = _sql.bind("upcoming", columns=("now", "due", "at"))
_due = _sql.bind("due", columns=("namespace", "run_id"))
_newest = _sql.bind("newest", columns=("namespace", "run_id"))
_lock = _sql.bind("lock", columns=(*templates.COLUMNS, "now"))
_move_on = _sql.bind("move_on")
_mark = _sql.bind("mark", columns=("run_id", "external_id", "schedule_error"))

# Runs of one transaction: what is due beyond them stays due and comes with the next.
MOST_RUNS = 1_000
# A template that cannot fire is looked at again after this.
AGAIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a due schedule does: the slots to fire, oldest first, the next one after them and when that fires."""

    slots: Sequence[datetime]
    next_slot: datetime | None
    next_at: datetime | None


# From a template, the time, and how many runs there is room for. What it raises marks the template as broken.
Planner = Callable[[Template, datetime, int], Plan]


@dataclass(slots=True)
class Fired:
    """What one transaction did."""

    outcome: Outcome = field(default_factory=Outcome)
    # Templates that moved on or were marked.
    moved: int = 0
    # By how many seconds each of them was late.
    late: list[float] = field(default_factory=list)
    # Those that cannot fire, by schedule id, with the reason.
    broken: dict[str, str] = field(default_factory=dict)
    # What people should know of others, by their run ids.
    notices: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Upcoming:
    """What there is to fire."""

    now: datetime
    due: bool
    # When the next schedule becomes due; None when none is in sight.
    at: datetime | None


class Held(Exception):
    """A transaction that somebody has open keeps one of the templates from firing."""


async def upcoming(connection: Connection, later: Collection[str] = ()) -> Upcoming:
    """Whether a schedule is due that is not left for later, and when the next one is."""
    row = await _upcoming.first(connection, later=list(later))
    assert row is not None
    return Upcoming(row["now"], row["due"], row["at"])


async def due(connection: Connection, batch: int, later: Collection[str] = ()) -> dict[str, list[str]]:
    """Templates that are due, by namespace, the oldest first; those of `later` are left out."""
    return _by_namespace(await _due.fetch(connection, batch=batch, later=list(later)))


async def newest(connection: Connection, batch: int, later: Collection[str] = ()) -> dict[str, list[str]]:
    """Templates that became due last, by namespace; those of `later` are left out."""
    return _by_namespace(await _newest.fetch(connection, batch=batch, later=list(later)))


def _by_namespace(rows: Iterable[Record]) -> dict[str, list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        found[row["namespace"]].append(str(row["run_id"]))
    return dict(found)


async def fire(connection: Connection, namespace: str, template_ids: Sequence[str], planner: Planner) -> Fired:
    """Fires those of these templates that are due and that nobody else fires or changes."""
    locked = await _lock.fetch(connection, namespace=namespace, run_ids=template_ids)
    fired = Fired()
    plans: list[tuple[Template, Plan]] = []
    broken: dict[str, str] = {}
    room = MOST_RUNS
    for row in locked:
        template = templates.template(row)
        if room == 0:
            break
        try:
            plan = planner(template, row["now"], room)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one template is not the fate of the others
            broken[template.run_id] = str(error) or type(error).__name__
            continue
        room -= len(plan.slots)
        plans.append((template, plan))
        if plan.slots and template.available_at is not None:
            fired.late.append((row["now"] - template.available_at).total_seconds())
    try:
        await _carry_out(connection, namespace, plans, fired)
    except asyncpg.LockNotAvailableError as error:
        raise Held from error
    if broken:
        await mark(connection, namespace, broken, fired)
    return fired


async def _carry_out(
    connection: Connection, namespace: str, plans: Sequence[tuple[Template, Plan]], fired: Fired
) -> None:
    wishes = [_wish(template, plan) for template, plan in plans]
    guarded = [start for wish in wishes if wish.overlap != ALLOW for start in wish.starts]
    if guarded:
        # A slot that was backfilled a moment ago has its run: nothing may wait for one that is not started.
        taken = await launches.taken(connection, namespace, guarded)
        wishes = [_without(wish, taken) for wish in wishes]
    settled = await overlaps.settle(connection, namespace, wishes, fired.outcome)
    moving = [(template, plan) for template, plan in plans if settled[template.run_id] is not None]
    starts = [start for template, _ in moving for start in settled[template.run_id] or ()]
    launched = await launches.launch(connection, namespace, starts, fired.outcome)
    fired.notices |= launched.notices
    started: defaultdict[str, list[datetime]] = defaultdict(list)
    for start in starts:
        if start.run_id in launched.run_ids and start.slot is not None:
            started[start.template.run_id].append(start.slot)
    if moving:
        await _move(connection, namespace, moving, started, launched.notices)
    fired.moved += len(moving)


def _wish(template: Template, plan: Plan) -> Wish:
    starts = [Start(template, str(uuid_utils.uuid7()), slot) for slot in plan.slots]
    return Wish(template.run_id, template.overlap, starts)


def _without(wish: Wish, taken: dict[tuple[str, datetime], str]) -> Wish:
    if wish.overlap == ALLOW:
        return wish
    starts = [start for start in wish.starts if start.slot and (wish.template_id, start.slot) not in taken]
    return Wish(wish.template_id, wish.overlap, starts)


async def _move(
    connection: Connection,
    namespace: str,
    moving: Sequence[tuple[Template, Plan]],
    started: dict[str, list[datetime]],
    notices: dict[str, str],
) -> None:
    pauses = [_pause(template, plan, len(started[template.run_id])) for template, plan in moving]
    await _move_on.execute(
        connection,
        namespace=namespace,
        run_ids=[template.run_id for template, _ in moving],
        slots=[None if pause else plan.next_slot for (_, plan), pause in zip(moving, pauses, strict=True)],
        available_ats=[None if pause else plan.next_at for (_, plan), pause in zip(moving, pauses, strict=True)],
        pauses=pauses,
        started=[len(started[template.run_id]) for template, _ in moving],
        last_slots=[max(started[template.run_id], default=None) for template, _ in moving],
        notices=[notices.get(template.run_id) for template, _ in moving],
    )


def _pause(template: Template, plan: Plan, started: int) -> str | None:
    if template.run_limit is not None and template.fired + started >= template.run_limit:
        return RUN_LIMIT
    return FINISHED if plan.next_slot is None else None


async def mark(connection: Connection, namespace: str, broken: dict[str, str], fired: Fired) -> None:
    """Marks templates that cannot fire, each with the reason; they are looked at again later."""
    found = await _mark.fetch(
        connection,
        namespace=namespace,
        run_ids=list(broken),
        errors=[_clean(text) for text in broken.values()],
        again=AGAIN,
    )
    fired.moved += len(found)
    fired.broken |= {row["external_id"]: row["schedule_error"] for row in found}


def _clean(text: str) -> str:
    return text.replace("\0", "")[:1_000]
