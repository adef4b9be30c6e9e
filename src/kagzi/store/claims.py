"""Claims: runs that are due, for the free slots of workers. A claim and the reading of input, history and facts are two
statements of one transaction: read in the claim's own statement, a result that was committed while the claim waited for
its lock would be missed, and an acknowledged step would run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from uuid import UUID

import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Step
from kagzi.protocol.v1.worker_pb2 import Delivery
from kagzi.store import endings, facts, rows, steps, tasks
from kagzi.store.operation import Claimed, Ended, Outcome, Slot
from kagzi.store.queries import Queries

_sql = Queries("claims.sql")
_CLAIMED = (
    "run_id",
    "status",
    "claim_token",
    "locked_by",
    "workflow_type",
    "version",
    "attempts",
    "crashes",
    "seed",
    "labels",
    "external_id",
    "created_at",
    "scheduled_for",
    "deadline_at",
    "parent_run_id",
    "root_run_id",
    "last_token",
    "state_number",
    "available_at",
    "now",
    "priority",
    "automation",
    "frees",
)
_claim = _sql.bind("claim", columns=(*_CLAIMED, "waited_ms"))
_inputs = _sql.bind("inputs", columns=("run_id", "input", "input_encoding"))
_recover = _sql.bind("recover", columns=_CLAIMED)
_suspicious = _sql.bind("suspicious", columns=("worker_id",))
_next_due = _sql.bind("next_due", columns=("due", "suspects_due", "at", "now"))

# How long a run that is due is offered to the worker that keeps it in memory, before anybody may have it.
OFFERED_FIRST = timedelta(milliseconds=50)
# A run that takes its worker down this often is set aside.
POISON_AT = 5
_POISON_ERROR = msgspec.json.encode(
    {
        "type": "Poisoned",
        "message": f"the lease of this run ran out {POISON_AT} times in a row: it may take its worker down",
    }
).decode()


@dataclass(frozen=True, slots=True)
class Served:
    """What a group of workers can run: pairs of type and version, in one queue of one namespace."""

    namespace: str
    task_queue: str
    types: tuple[str, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NextDue:
    """What there is to claim. Something that is due may be locked by somebody else, or be a lease that ran out."""

    now: datetime
    # When the next run becomes due; None when nothing is in sight.
    at: datetime | None
    due: bool
    suspects_due: bool


async def claim(
    connection: Connection,
    served: Served,
    slots: Sequence[Slot],
    lease: timedelta,
    outcome: Outcome,
    *,
    expired_too: bool,
    suspects: bool = False,
) -> list[Claimed]:
    """Claims at most one due run for each slot and reads what its worker needs."""
    found = await _claim.fetch(
        connection,
        namespace=served.namespace,
        task_queue=served.task_queue,
        types=served.types,
        versions=served.versions,
        suspects=suspects,
        expired_too=expired_too,
        count=len(slots),
        tokens=[slot.token for slot in slots],
        worker_ids=[slot.worker_id for slot in slots],
        homes=list({slot.worker_id for slot in slots}),
        hold=OFFERED_FIRST,
        lease=lease,
        poison_at=POISON_AT,
        poison_error=_POISON_ERROR,
    )
    poisoned = [row for row in found if row["status"] == "FAILED"]
    if poisoned:
        await _settle_poisoned(connection, served.namespace, poisoned, outcome)
    running = [row for row in found if row["status"] == "RUNNING"]
    outcome.waited += [(row["workflow_type"], row["waited_ms"]) for row in running]
    return await _claimed(connection, served, running, slots)


async def recover(connection: Connection, served: Served, slots: Sequence[Slot]) -> list[Claimed]:
    """Claims with these slots that were committed although nobody was told."""
    found = await _recover.fetch(
        connection,
        namespace=served.namespace,
        worker_ids=[slot.worker_id for slot in slots],
        tokens=[slot.token for slot in slots],
    )
    return await _claimed(connection, served, found, slots)


async def _claimed(
    connection: Connection, served: Served, running: Sequence[Record], slots: Sequence[Slot]
) -> list[Claimed]:
    if not running:
        return []
    by_token = {slot.token: slot for slot in slots}
    deliveries = await _deliveries(connection, served, running, by_token)
    return [Claimed(by_token[delivery.claim_token], delivery) for delivery in deliveries]


async def _settle_poisoned(
    connection: Connection, namespace: str, poisoned: Sequence[Record], outcome: Outcome
) -> None:
    """The end of a poisoned run is an end like any other: its parent hears of it, its children fall with it."""
    ended = [
        Ended(
            str(row["run_id"]),
            "FAILED",
            str(row["parent_run_id"]) if row["parent_run_id"] else None,
            error=_POISON_ERROR,
            took=(row["workflow_type"], (row["now"] - row["created_at"]) / timedelta(milliseconds=1)),
            automation=row["automation"],
            fault="POISONED",
            frees=str(row["frees"]) if row["frees"] else None,
        )
        for row in poisoned
    ]
    await endings.lock_concerned(connection, namespace, ended)
    await steps.interrupt(connection, namespace, [run.run_id for run in ended])
    await endings.settle(connection, namespace, ended, outcome)


async def _deliveries(
    connection: Connection, served: Served, claimed: Sequence[Record], slots: Mapping[str, Slot]
) -> list[Delivery]:
    namespace = served.namespace
    run_ids = [str(row["run_id"]) for row in claimed]
    residents = {str(row["run_id"]) for row in claimed if _resident(row, slots[str(row["claim_token"])])}
    unknown = [run_id for run_id in run_ids if run_id not in residents]
    inputs, histories = await _told(connection, namespace, unknown) if unknown else ({}, {})
    there = await facts.of(connection, namespace, run_ids)
    handling = [str(row["run_id"]) for row in claimed if row["automation"] is not None]
    handed = await tasks.of(connection, namespace, handling) if handling else {}
    deliveries = []
    for row, run_id in zip(claimed, run_ids, strict=True):
        task = handed.get(run_id)
        # The state of a handler is in its task.
        stored = None if task else inputs.get(row["run_id"])
        deliveries.append(
            Delivery(
                run_id=run_id,
                claim_token=str(row["claim_token"]),
                workflow_type=row["workflow_type"],
                version=row["version"],
                task_queue=served.task_queue,
                input=rows.payload(stored["input"], stored["input_encoding"]) if stored else None,
                history=[_recorded(step) for step in histories.get(row["run_id"], ())],
                facts=there.get(run_id),
                lease_until_us=rows.microseconds(row["available_at"]),
                now_us=rows.microseconds(row["now"]),
                attempts=row["attempts"],
                seed=row["seed"],
                labels=rows.labels(row["labels"]),
                external_id=row["external_id"] or "",
                created_at=rows.timestamp(row["created_at"]),
                scheduled_for=rows.timestamp(row["scheduled_for"]),
                deadline_at=rows.timestamp(row["deadline_at"]),
                parent_run_id=rows.identity(row["parent_run_id"]),
                root_run_id=str(row["root_run_id"] or run_id),
                last_token=rows.identity(row["last_token"]),
                resident=run_id in residents,
                state_number=row["state_number"],
                handler=task,
            )
        )
    return deliveries


def _resident(row: Record, slot: Slot) -> bool:
    """Whether the worker keeps the run as it was when it was suspended last, so that it needs no history."""
    return row["last_token"] is not None and slot.residents.get(str(row["run_id"])) == str(row["last_token"])


async def _told(
    connection: Connection, namespace: str, run_ids: Sequence[str]
) -> tuple[dict[UUID, Record], dict[UUID, list[Record]]]:
    """Inputs and histories, for workers that do not have them."""
    inputs = {row["run_id"]: row for row in await _inputs.fetch(connection, namespace=namespace, run_ids=run_ids)}
    recorded = await steps.history(connection, namespace, run_ids)
    return inputs, {run_id: list(group) for run_id, group in groupby(recorded, key=lambda row: row["run_id"])}


def _recorded(row: Record) -> Step:
    """One step of a history: what replay needs, without the times that only people read."""
    return Step(
        step_id=row["step_id"],
        attempt_id=str(row["attempt_id"]),
        attempt_number=row["attempt_number"],
        is_latest=True,
        kind=rows.STEP_KIND[row["kind"]],
        status=rows.STEP_STATUS[row["status"]],
        position=row["position"],
        completed_seq=row["completed_seq"] or 0,
        output=rows.payload(row["output"], row["output_encoding"]),
        failure=rows.failure(row["error"]),
        retry_at=rows.timestamp(row["retry_at"]),
        wake_at=rows.timestamp(row["wake_at"]),
        target=row["target"] or "",
        child_run_id=rows.identity(row["child_run_id"]),
        signal_id=rows.identity(row["signal_id"]),
        input_hash=row["input_hash"] or 0,
        effect=row["effect"],
        unclear=row["unclear"],
    )


async def suspicious(connection: Connection, namespace: str, worker_ids: Sequence[str]) -> set[str]:
    """Those of these workers that hold a run which may take them down; they get no second one."""
    found = await _suspicious.fetch(connection, namespace=namespace, worker_ids=worker_ids)
    return {str(row["worker_id"]) for row in found}


async def next_due(connection: Connection, served: Served) -> NextDue:
    """When the next run of these types is due. Writes and locks nothing."""
    row = await _next_due.first(
        connection,
        namespace=served.namespace,
        task_queue=served.task_queue,
        types=served.types,
        versions=served.versions,
    )
    assert row is not None
    return NextDue(row["now"], row["at"], row["due"], row["suspects_due"])
