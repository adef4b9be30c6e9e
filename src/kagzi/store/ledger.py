"""The ledger as it stands: mutations by id, or by the run that holds them. Reads alone, and the only place that knows
both the columns of a mutation and its fields on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import Record
from asyncpg.connection import Connection

from kagzi.protocol.v1.automation_pb2 import Mutation, MutationStatus
from kagzi.store import rows
from kagzi.store.queries import Queries

_sql = Queries("ledger.sql")
COLUMNS = (
    "holder_id",
    "mutation_id",
    "automation",
    "handler",
    "run_id",
    "tool",
    "idempotency_key",
    "title",
    "status",
    "parameters",
    "parameters_encoding",
    "result",
    "result_encoding",
    "failure",
    "has_reconciler",
    "checks",
    "next_check_at",
    "resolution",
    "created_at",
    "finished_at",
    "attempt_id",
    "claim_token",
)
_held = _sql.bind("held", columns=COLUMNS)
_get = _sql.bind("get", columns=COLUMNS)

STATUS = {name.removeprefix("MUTATION_"): value for name, value in MutationStatus.items() if value}


async def of_runs(
    connection: Connection, namespace: str, run_ids: Sequence[str], *, whole: bool = True
) -> dict[str, Record]:
    """The mutations that these runs hold, by run; with `whole` also their parameters and results."""
    found = await _held.fetch(connection, namespace=namespace, run_ids=run_ids, whole=whole)
    return {str(row["holder_id"]): row for row in found}


async def by_id(
    connection: Connection, namespace: str, mutation_ids: Sequence[str], *, whole: bool = False
) -> dict[str, Record]:
    """Mutations by id; with `whole` also their parameters and results."""
    found = await _get.fetch(connection, namespace=namespace, mutation_ids=mutation_ids, whole=whole)
    return {str(row["mutation_id"]): row for row in found}


def message_of(row: Any) -> Mutation:
    """The mutation in a row of COLUMNS."""
    return Mutation(
        mutation_id=str(row["mutation_id"]),
        handler=row["handler"],
        run_id=str(row["run_id"]),
        tool=row["tool"],
        idempotency_key=row["idempotency_key"],
        title=row["title"],
        status=STATUS[row["status"]],
        parameters=rows.payload(row["parameters"], row["parameters_encoding"]),
        result=rows.payload(row["result"], row["result_encoding"]),
        failure=rows.failure(row["failure"]),
        has_reconciler=row["has_reconciler"],
        checks=row["checks"],
        next_check_at=rows.timestamp(row["next_check_at"]),
        resolved_by_person=row["resolution"] is not None and row["resolution"] != "CHECK_AGAIN",
        created_at=rows.timestamp(row["created_at"]),
        finished_at=rows.timestamp(row["finished_at"]),
    )
