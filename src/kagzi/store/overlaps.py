"""What happens at a slot while a run of the same schedule has not ended: both run, the slot is left out, one run waits,
or the previous one is asked to end; a backfill may have its runs wait for their turns. Of several slots that are due at
one moment the newest are kept. Pure but for the cancel it asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import asyncpg
from asyncpg.connection import Connection

from kagzi.store import endings, instances
from kagzi.store.instances import NONE, Instances
from kagzi.store.operation import Outcome
from kagzi.store.templates import ALLOW, CANCEL_PREVIOUS, QUEUE_ALL, SKIP, Template

REASON = "the next run of its schedule is due"
_HELD = "a run of the schedule is in other hands at this moment"


@dataclass(frozen=True, slots=True)
class Start:
    """A run that a template starts. `slot` is None when it was triggered by hand."""

    template: Template
    run_id: str
    slot: datetime | None
    # Waits for the end of the one before; another one waits for its end.
    waits: bool = False
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class Wish:
    """What one template would start, oldest first, under this policy."""

    template_id: str
    overlap: str
    starts: Sequence[Start]


async def settle_one(connection: Connection, namespace: str, wish: Wish, outcome: Outcome) -> list[Start]:
    """What one template may start now, for a caller who comes again when it cannot be told at this moment."""
    starts = (await settle(connection, namespace, [wish], outcome))[wish.template_id]
    if starts is None:
        raise asyncpg.SerializationError(_HELD)
    return starts


async def settle(
    connection: Connection, namespace: str, wishes: Sequence[Wish], outcome: Outcome
) -> dict[str, list[Start] | None]:
    """What each template may start now; None where somebody holds one of its runs, so that it cannot be told. Whoever a
    start waits for is marked. The caller holds the templates' locks.
    """
    guarded = [wish.template_id for wish in wishes if wish.overlap != ALLOW and wish.starts]
    live = await instances.lock(connection, namespace, guarded)
    cancelling = [wish for wish in wishes if wish.overlap == CANCEL_PREVIOUS and wish.starts]
    await _cancel(connection, namespace, cancelling, live, outcome)
    settled: dict[str, list[Start] | None] = {}
    awaited: list[str] = []
    for wish in wishes:
        known = live.get(wish.template_id, NONE)
        starts = settled[wish.template_id] = None if known is None else _allowed(wish, known)
        if known is not None and starts and starts[-1].waits:
            awaited += known.run_ids
    if awaited:
        await instances.await_ends(connection, namespace, awaited)
    return settled


async def foretell(connection: Connection, namespace: str, wish: Wish) -> list[Start]:
    """What a template could start now, as far as can be told without asking anybody to end."""
    if wish.overlap in (ALLOW, CANCEL_PREVIOUS):
        return _allowed(wish, NONE)
    live = await instances.lock(connection, namespace, [wish.template_id])
    known = live[wish.template_id]
    if known is None:
        raise asyncpg.SerializationError(_HELD)
    return _allowed(wish, known)


async def _cancel(
    connection: Connection, namespace: str, wishes: Sequence[Wish], live: dict[str, Instances | None], outcome: Outcome
) -> None:
    """Asks previous runs to end, and leaves in `live` those that have not yet."""
    asked = [run_id for wish in wishes for run_id in (live[wish.template_id] or NONE).run_ids]
    if not asked:
        return
    statuses = await endings.request_cancel(connection, namespace, asked, REASON, outcome)
    for wish in wishes:
        known = live[wish.template_id]
        if known is not None:
            left = tuple(run_id for run_id in known.run_ids if statuses.get(run_id) in endings.LIVE)
            live[wish.template_id] = Instances(left)


def _allowed(wish: Wish, live: Instances) -> list[Start]:
    newest = list(wish.starts[-1:])
    if not newest or wish.overlap == ALLOW:
        return list(wish.starts)
    if wish.overlap == QUEUE_ALL:
        last = len(wish.starts) - 1
        return [
            replace(start, waits=number > 0 or bool(live.run_ids), awaited=number < last)
            for number, start in enumerate(wish.starts)
        ]
    if wish.overlap == SKIP:
        return [] if live.run_ids else newest
    if live.waiting:
        return []
    if live.run_ids:
        return [replace(newest[0], waits=True)]
    if wish.overlap == CANCEL_PREVIOUS or len(wish.starts) == 1:
        return newest
    return [replace(wish.starts[-2], awaited=True), replace(newest[0], waits=True)]
