"""How watched runs stand: whether they have ended, and as which run. Plain reads for any number of runs at once;
outputs are read apart, so that whoever asks decides how much of them to hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncpg.connection import Connection

from kagzi.protocol.v1.common_pb2 import Failure, Payload
from kagzi.store import rows
from kagzi.store.endings import TERMINAL
from kagzi.store.queries import Queries

_sql = Queries("watches.sql")
_ends = _sql.bind("ends", columns=("asked_id", "run_id", "status", "error", "output_bytes"))
_outputs = _sql.bind("outputs", columns=("run_id", "output", "output_encoding"))


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a run is: itself, or the one that continues it."""

    asked_id: str
    run_id: str
    status: str
    failure: Failure | None
    output_bytes: int

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL


async def ends(connection: Connection, namespace: str, run_ids: Sequence[str], *, live: bool) -> list[Stand]:
    """Those of the runs that have ended or gone on as another; with `live`, all that exist."""
    found = await _ends.fetch(connection, namespace=namespace, run_ids=run_ids, live=live)
    return [
        Stand(
            str(row["asked_id"]),
            str(row["run_id"]),
            row["status"],
            rows.failure(row["error"]) if row["status"] in ("FAILED", "CANCELLED") else None,
            row["output_bytes"],
        )
        for row in found
    ]


async def outputs(connection: Connection, namespace: str, run_ids: Sequence[str]) -> dict[str, Payload]:
    """The outputs of those of the runs that have one."""
    found = await _outputs.fetch(connection, namespace=namespace, run_ids=run_ids)
    return {str(row["run_id"]): Payload(data=row["output"], encoding=row["output_encoding"] or "") for row in found}
