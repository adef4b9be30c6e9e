"""What an automation runs next. The choice is made in the transaction that frees the automation, or by the timer, by
whoever holds the automation's row: one statement chooses, one stores the runs. Where a worker has a free place the run
is stored as claimed and handed over.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby

import uuid_utils
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import HandlerKind, HandlerPhase, HandlerTask, HandlerTrigger, PeekedTopic
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store import peeks, rows
from kagzi.store.operation import Claimed, Outcome, Slot
from kagzi.store.queries import Queries

_sql = Queries("choice.sql")
_choose = _sql.bind(
    "choose",
    columns=(
        "automation",
        "handler",
        "continues_run_id",
        "trigger",
        "kind",
        "task_queue",
        "definition_hash",
        "state",
        "state_encoding",
        "topic",
        *peeks.PEEKED,
    ),
)
_start = _sql.bind("start", columns=("run_id", "now"))

KIND = {name.removeprefix("HANDLER_"): value for name, value in HandlerKind.items() if value}
TRIGGER = {name.removeprefix("TRIGGER_").lower(): value for name, value in HandlerTrigger.items() if value}
PHASE = {name.removeprefix("PHASE_"): value for name, value in HandlerPhase.items() if value}

# How long a handler that may run is passed over by others of its automation, as by a consumer that always has more to
# take. Long enough that topics mostly drain before producers fill them.
PATIENCE = timedelta(minutes=1)

_NO_SLOTS: Mapping[str, Slot] = {}


async def begin(
    connection: Connection,
    namespace: str,
    names: Collection[str],
    outcome: Outcome,
    *,
    lease: timedelta = timedelta(0),
    slots: Mapping[str, Slot] = _NO_SLOTS,
) -> int:
    """Starts what is next in each of these automations, which the caller has locked; answers how many runs that are.
    `slots` are free places at workers, by automation.
    """
    if not names:
        return 0
    found = await _choose.fetch(
        connection,
        namespace=namespace,
        names=list(names),
        patience=PATIENCE,
        most_topics=peeks.GLANCED_TOPICS,
        most_events=peeks.GLANCE,
        room=peeks.GLANCE_ROOM,
    )
    if not found:
        return 0
    looks = {name: list(rows) for name, rows in groupby(found, key=lambda row: row["automation"])}
    chosen = [rows[0] for rows in looks.values()]
    new = {str(uuid_utils.uuid7()): row for row in chosen}
    taken = {run_id: slot for run_id, row in new.items() if (slot := _slot(row, slots)) is not None}
    seeds = {run_id: random.getrandbits(62) + 1 for run_id in new}
    stored = await _start.fetch(
        connection,
        namespace=namespace,
        lease=lease,
        run_ids=list(new),
        task_queues=[row["task_queue"] for row in chosen],
        automations=[row["automation"] for row in chosen],
        handlers=[row["handler"] for row in chosen],
        triggers=[row["trigger"] for row in chosen],
        continues=[row["continues_run_id"] for row in chosen],
        definition_hashes=[row["definition_hash"] for row in chosen],
        seeds=list(seeds.values()),
        tokens=[taken[run_id].token if run_id in taken else None for run_id in new],
        worker_ids=[taken[run_id].worker_id if run_id in taken else None for run_id in new],
    )
    begun = {str(row["run_id"]): row["now"] for row in stored}
    outcome.started += [_type(new[run_id]) for run_id in begun]
    for run_id, now in begun.items():
        row = new[run_id]
        if run_id not in taken:
            outcome.becomes_due(row["task_queue"], None)
            continue
        delivery = _delivery(run_id, row, taken[run_id], seeds[run_id], now, lease)
        delivery.handler.pending.extend(_pending(looks[row["automation"]]))
        outcome.claimed.append(Claimed(taken[run_id], delivery))
        outcome.waited.append((_type(row), 0.0))
    return len(stored)


def _pending(rows: Sequence[Record]) -> Iterator[PeekedTopic]:
    """What the consumer in these rows gets to see unasked."""
    for topic, shown in groupby(rows, key=lambda row: row["topic"]):
        if topic is not None:
            yield peeks.peeked(topic, [row for row in shown if row["event_id"] is not None])


def _slot(row: Record, slots: Mapping[str, Slot]) -> Slot | None:
    """The free place for a chosen run, if it fits. A continuation is claimed, with all that came before it."""
    slot = slots.get(row["automation"])
    if slot is None or row["continues_run_id"] is not None:
        return None
    return slot if _type(row) in slot.types else None


def _type(row: Record) -> str:
    return f"{row['automation']}.{row['handler']}"


def _delivery(run_id: str, row: Record, slot: Slot, seed: int, now: datetime, lease: timedelta) -> Delivery:
    return Delivery(
        run_id=run_id,
        claim_token=slot.token,
        workflow_type=_type(row),
        task_queue=row["task_queue"],
        now_us=rows.microseconds(now),
        lease_until_us=rows.microseconds(now + lease),
        seed=seed,
        created_at=rows.timestamp(now),
        root_run_id=run_id,
        handler=HandlerTask(
            automation=row["automation"],
            handler=row["handler"],
            kind=KIND[row["kind"]],
            trigger=TRIGGER[row["trigger"]],
            phase=PHASE["PREPARING"] if row["kind"] == "CONSUMER" else HandlerPhase.HANDLER_PHASE_UNSPECIFIED,
            definition_hash=row["definition_hash"],
            state=rows.payload(row["state"], row["state_encoding"]),
        ),
    )
