"""Handler tasks: what travels with a handler run to its worker. How far a run has come is not stored but follows from
what is on record: the reservations, the ledger and the step `next`. Reads alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import EventSelection, HandlerPhase, HandlerTask, PreparedWork
from kagzi.store import ledger, peeks, rows
from kagzi.store.choice import KIND, PHASE, TRIGGER
from kagzi.store.queries import Queries

_sql = Queries("tasks.sql")
_task = _sql.bind(
    "task",
    columns=(
        "run_id",
        "automation",
        "handler",
        "kind",
        "subscribes",
        "trigger",
        "definition_hash",
        "continues_run_id",
        "input",
        "input_encoding",
        "reserved",
        "prepared_data",
        "prepared_encoding",
        "prepared_title",
        "prepared_ui",
        "prepared_wake_at",
        "emitting",
    ),
)


class _Selection(msgspec.Struct):
    """An entry of the column `reserved`."""

    topic: str
    ids: list[str]


_RESERVED = msgspec.json.Decoder(list[_Selection])


async def of(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, HandlerTask]:
    """The tasks of these runs; ordinary ones have none."""
    found = await _task.fetch(connection, namespace=namespace, run_ids=run_ids)
    held = await ledger.of_runs(connection, namespace, run_ids)
    made = {str(row["run_id"]): _task_of(row, held.get(str(row["run_id"]))) for row in found}
    looking = [row for row in found if row["kind"] == "CONSUMER" and row["reserved"] is None]
    given = [(row["automation"], row["handler"], row["subscribes"]) for row in looking]
    pending = await peeks.glance(connection, namespace, given)
    for row in looking:
        made[str(row["run_id"])].pending.extend(pending.get((row["automation"], row["handler"]), ()))
    return made


def _task_of(row: Record, mutation: Record | None) -> HandlerTask:
    status = None if mutation is None else mutation["status"]
    name = phase(row["reserved"] is not None, status, emitting=row["emitting"])
    return HandlerTask(
        automation=row["automation"],
        handler=row["handler"],
        kind=KIND[row["kind"]],
        trigger=TRIGGER[row["trigger"]],
        phase=PHASE[name] if row["kind"] == "CONSUMER" else HandlerPhase.HANDLER_PHASE_UNSPECIFIED,
        definition_hash=row["definition_hash"] or "",
        state=rows.payload(row["input"], row["input_encoding"]),
        continues_run_id=rows.identity(row["continues_run_id"]),
        prepared=_prepared(row),
        mutation=None if mutation is None else ledger.message_of(mutation),
    )


def _prepared(row: Record) -> PreparedWork | None:
    if row["reserved"] is None:
        return None
    return PreparedWork(
        reserve=selections(row["reserved"]),
        data=rows.payload(row["prepared_data"], row["prepared_encoding"]),
        title=row["prepared_title"] or "",
        ui_json=row["prepared_ui"] or "",
        wake_at=rows.timestamp(row["prepared_wake_at"]),
    )


def selections(text: str | None) -> list[EventSelection]:
    """What the column `reserved` holds."""
    return [EventSelection(topic=one.topic, event_ids=one.ids) for one in _RESERVED.decode(text)] if text else []


def phase(prepared: bool, mutation_status: str | None, *, emitting: bool, committed: bool = False) -> str:
    """How far a consumer's run has come."""
    if committed:
        return "COMMITTED"
    if emitting:
        return "EMITTING"
    if not prepared:
        return "PREPARING"
    match mutation_status:
        case None:
            return "PREPARED"
        case "IN_FLIGHT" | "INDETERMINATE":
            return "MUTATING"
    return "MUTATED"
