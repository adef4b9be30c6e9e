"""Launches: storing the runs of templates, for a slot or by hand. The caller holds the template's lock. A slot has one
run, however often it is asked for; a slot whose id a foreign run has taken is stored without an id, and told of.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import uuid_utils
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Payload
from kagzi.store import errors, overlaps
from kagzi.store.operation import Outcome
from kagzi.store.overlaps import Start, Wish
from kagzi.store.queries import Queries
from kagzi.store.templates import Template

_sql = Queries("launches.sql")
_store = _sql.bind("store", columns=("run_id",))
_slots = _sql.bind("slots", columns=("schedule_id", "scheduled_for", "run_id"))
_note = _sql.bind("note")
_triggered = _sql.bind("triggered", columns=("status", "schedule_id"))


@dataclass(slots=True)
class Launched:
    """What was stored, and what it means for others."""

    outcome: Outcome
    run_ids: set[str] = field(default_factory=set)
    # Templates of which a run has no id because a foreign one has that of its slot, each with a notice.
    notices: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Filled:
    """A slot of a backfill: its run, empty where there is none; whether it was there before, or is left out."""

    run_id: str = ""
    existed: bool = False
    skipped: bool = False


async def launch(
    connection: Connection,
    namespace: str,
    starts: Sequence[Start],
    outcome: Outcome,
    given: Payload | None = None,
) -> Launched:
    """Stores runs with their templates' input, or the one that is given. A slot that has its run is left."""
    stored = await _insert(connection, namespace, starts, given, named=True)
    launched = Launched(outcome, stored)
    left = [start for start in starts if start.run_id not in stored]
    if left:
        there = await taken(connection, namespace, left)
        left = [start for start in left if start.slot and (start.template.run_id, start.slot) not in there]
        launched.run_ids |= await _insert(connection, namespace, left, given, named=False)
        for start in left:
            notice = f"the run of slot {start.slot} has no id, because another run has {external_id(start)!r}"
            launched.notices[start.template.run_id] = notice
    for start in starts:
        if start.run_id in launched.run_ids:
            _tell(start, outcome)
    return launched


async def _insert(
    connection: Connection, namespace: str, starts: Sequence[Start], given: Payload | None, *, named: bool
) -> set[str]:
    if not starts:
        return set()
    found = await _store.fetch(
        connection,
        namespace=namespace,
        template_ids=[start.template.run_id for start in starts],
        run_ids=[start.run_id for start in starts],
        external_ids=[external_id(start) if named else None for start in starts],
        slots=[start.slot for start in starts],
        seeds=[random.getrandbits(62) + 1 for _ in starts],
        waits=[start.waits for start in starts],
        awaited=[start.awaited for start in starts],
        new_input=given is not None,
        input=None if given is None else given.data,
        input_encoding=None if given is None else given.encoding or None,
    )
    return {str(row["run_id"]) for row in found}


def external_id(start: Start) -> str | None:
    """The id of a slot's run, as `nightly@2025-03-30T01:00:00Z`."""
    if start.slot is None:
        return None
    return f"{start.template.schedule_id}@{start.slot.replace(tzinfo=None).isoformat()}Z"


def _tell(start: Start, outcome: Outcome) -> None:
    outcome.started.append(start.template.workflow_type)
    if not start.waits:
        outcome.deadline = outcome.deadline or start.template.timeout is not None
        outcome.becomes_due(start.template.task_queue, None)


async def taken(connection: Connection, namespace: str, starts: Sequence[Start]) -> dict[tuple[str, datetime], str]:
    """Slots of these starts that have a run, and which."""
    found = await _slots.fetch(
        connection,
        namespace=namespace,
        template_ids=[start.template.run_id for start in starts],
        slots=[start.slot for start in starts],
    )
    return {(str(row["schedule_id"]), row["scheduled_for"]): str(row["run_id"]) for row in found}


async def trigger(
    connection: Connection, template: Template, run_id: str, overlap: str, given: Payload | None, outcome: Outcome
) -> str | None:
    """Starts one run for no slot. Answers its status; None when the previous run has not ended and the policy leaves it
    out. One with this run id is answered as it is.
    """
    known = await _triggered.first(connection, namespace=template.namespace, run_id=run_id)
    if known is not None:
        if str(known["schedule_id"]) != template.run_id:
            raise errors.conflict(f"run id {run_id} belongs to another run: make a new one", run_id, "run_id")
        status: str = known["status"]
        return status
    wish = Wish(template.run_id, overlap, [Start(template, run_id, None)])
    starts = await overlaps.settle_one(connection, template.namespace, wish, outcome)
    await launch(connection, template.namespace, starts, outcome, given)
    return "PENDING" if starts else None


async def backfill(
    connection: Connection,
    template: Template,
    slots: Sequence[datetime],
    overlap: str,
    outcome: Outcome,
    *,
    dry_run: bool,
) -> dict[datetime, Filled]:
    """The runs of past slots. Those that have none are started, as far as the policy allows; a dry run, which needs no
    lock of the template, starts nothing.
    """
    starts = [Start(template, str(uuid_utils.uuid7()), slot) for slot in slots]
    there = await taken(connection, template.namespace, starts)
    found = {slot: Filled(run_id, existed=True) for (_, slot), run_id in there.items()}
    new = [start for start in starts if start.slot not in found]
    wish = Wish(template.run_id, overlap, new)
    if dry_run:
        allowed = await overlaps.foretell(connection, template.namespace, wish)
    else:
        allowed = await overlaps.settle_one(connection, template.namespace, wish, outcome)
        launched = await launch(connection, template.namespace, allowed, outcome)
        for run_id, notice in launched.notices.items():
            await _note.execute(connection, namespace=template.namespace, run_id=run_id, notice=notice)
    found |= {start.slot: Filled(skipped=True) for start in new if start.slot}
    return found | {start.slot: Filled("" if dry_run else start.run_id) for start in allowed if start.slot}
