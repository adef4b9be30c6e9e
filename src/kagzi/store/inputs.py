"""Inputs: what came from outside, and everything it caused, over all events and runs between. An input is pending while
any delivery it caused is. Skipping one leaves to a run what it has reserved.
"""

from __future__ import annotations

from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import GetInputResponse, Input, InputKey, InputStatus, SkipInputResponse
from kagzi.store import automations, errors, events, ledger, publications, rows, standings, tasks
from kagzi.store.queries import Queries

_sql = Queries("inputs.sql")
_list = _sql.bind(
    "list", columns=("source", "type", "key", "title", "run_id", "created_at", "pending", "skipped", "partial")
)
_events = _sql.bind(
    "events", columns=("topic", "event_id", "payload", "payload_encoding", "run_id", "created_at", "updated_at")
)
_runs = _sql.bind(
    "runs",
    columns=(
        "run_id",
        "handler",
        "status",
        "prepared_title",
        "continues_run_id",
        "reserved",
        "created_at",
        "finished_at",
    ),
)
_skip = _sql.bind("skip")
_reserved = _sql.bind("reserved", columns=("reserved",))

STATUS = {name.removeprefix("INPUT_"): value for name, value in InputStatus.items() if value}
STATUS_NAME = {value: name for name, value in STATUS.items()}

# What one answer shows of each.
_MOST = 500
# What an input caused, where nobody asks for less.
_ALL = 2**31 - 1


async def list_(
    connection: Connection, namespace: str, automation: str, *, look_at: int = 0, **filters: Any
) -> list[Input]:
    """Inputs, newest first, each judged by `look_at` of the deliveries it caused, or by all. `filters` are the query's
    parameters.
    """
    given = {"namespace": namespace, "automation": automation, "look_at": look_at or _ALL}
    return [_input(row) for row in await _list.fetch(connection, input_id=None, **given, **filters)]


async def get(
    connection: Connection, namespace: str, automation: str, key: InputKey, *, look_at: int = 0
) -> GetInputResponse:
    """One input and what became of it: of all it caused, or of `look_at` events and deliveries."""
    found = await _one(connection, namespace, automation, key, look_at)
    given = {"namespace": namespace, "automation": automation, "input_id": publications.input_id(key)}
    most = min(look_at or _MOST, _MOST)
    caused = await _events.fetch(connection, count=most + 1, look_at=look_at + 1 if look_at else _ALL, **given)
    shown = caused[:most]
    delivered = await events.deliveries(connection, namespace, automation, shown)
    run_ids = list({str(run_id) for row in delivered for run_id in row["run_ids"]})
    runs = await _runs.fetch(
        connection, namespace=namespace, run_ids=run_ids[: look_at + 1] if look_at else run_ids, count=most + 1
    )
    held = await ledger.of_runs(connection, namespace, [str(row["run_id"]) for row in runs[:most]], whole=False)
    few = 0 if look_at else events.FEW_INPUTS
    return GetInputResponse(
        input=found,
        events=await events.events_of(connection, namespace, automation, shown, delivered, most_inputs=few),
        runs=[_run(row) for row in runs[:most]],
        mutations=[ledger.message_of(row) for row in sorted(held.values(), key=lambda row: row["created_at"])],
        truncated=len(caused) > most or len(runs) > most,
    )


async def skip(connection: Connection, namespace: str, automation: str, key: InputKey) -> SkipInputResponse:
    """Skips what is pending of an input."""
    await standings.lock(connection, namespace, [automation])
    await _one(connection, namespace, automation, key)
    given = {"namespace": namespace, "automation": automation, "input_id": publications.input_id(key)}
    skipped = await _skip.execute(connection, **given)
    left = await _reserved.first(connection, **given)
    assert left is not None
    now = await _one(connection, namespace, automation, key)
    return SkipInputResponse(input=now, skipped=skipped, reserved=left["reserved"])


async def _one(connection: Connection, namespace: str, automation: str, key: InputKey, look_at: int = 0) -> Input:
    nothing: dict[str, Any] = dict.fromkeys(
        ("source", "type", "statuses", "after_at", "after_source", "after_type", "after_key")
    )
    row = await _list.first(
        connection,
        namespace=namespace,
        automation=automation,
        input_id=publications.input_id(key),
        look_at=look_at or _ALL,
        count=1,
        **nothing,
    )
    if row is None:
        await automations.require(connection, namespace, automation)
        raise errors.not_found("input", f"{key.source}/{key.type}/{key.id}", "key")
    return _input(row)


def _input(row: Record) -> Input:
    status = "PENDING" if row["pending"] else "SKIPPED" if row["skipped"] else "DONE"
    # Where not all was looked at, only what is pending is known to be.
    known = bool(row["pending"]) or not row["partial"]
    return Input(
        key=InputKey(source=row["source"], type=row["type"], id=row["key"]),
        title=row["title"],
        status=STATUS[status] if known else InputStatus.INPUT_STATUS_UNSPECIFIED,
        partial=row["partial"],
        run_id=rows.identity(row["run_id"]),
        pending=row["pending"],
        created_at=rows.timestamp(row["created_at"]),
    )


def _run(row: Record) -> GetInputResponse.CausedRun:
    return GetInputResponse.CausedRun(
        run_id=str(row["run_id"]),
        handler=row["handler"],
        status=rows.RUN_STATUS[row["status"]],
        title=row["prepared_title"] or "",
        continues_run_id=rows.identity(row["continues_run_id"]),
        reserved=tasks.selections(row["reserved"]),
        created_at=rows.timestamp(row["created_at"]),
        finished_at=rows.timestamp(row["finished_at"]),
    )
